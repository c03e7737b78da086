"""Arguments beside arrays: what is taken for an integer, a name and a switch."""

import numpy as np
import pytest

from fastsgemm import arguments
from fastsgemm.errors import ArgumentError


@pytest.mark.parametrize("kind", [int, np.int8, np.uint16, np.int64, np.uint64, np.intp])
def test_integers_of_every_type_are_integers(kind):
    found = arguments.integer(kind(7))
    assert found == 7 and type(found) is int


@pytest.mark.parametrize("value", [True, np.True_, 7.0, np.float32(7), "7", None, np.array(7), [7], int])
def test_what_is_no_integer(value):
    assert arguments.integer(value) is None


@pytest.mark.parametrize("value", [None, [], np.array(["A"]), {}, b"A", 0])
def test_what_is_no_name(value):
    assert not arguments.is_one_of(value, ("A", "B")) and not arguments.is_one_of(value, {"A": 1})


def test_names():
    assert arguments.is_one_of("A", ("A", "B")) and arguments.is_one_of(np.str_("B"), ("A", "B"))


@pytest.mark.parametrize(("value", "on"), [(True, True), (False, False), (np.True_, True), (0, False), (2, True)])
def test_switches(value, on):
    assert arguments.switch("on", value) is on


@pytest.mark.parametrize("value", ["no", "yes", None, 1.0, [], np.ones(2)])
def test_what_is_no_switch(value):
    with pytest.raises(ArgumentError, match="on must be True or False, got "):
        arguments.switch("on", value)


def test_places():
    assert arguments.place(np.int64(1)) == 1 and arguments.place("sm_90") == "sm_90"
    for value in (None, [], 1.0, True, b"sm_90"):
        with pytest.raises(ArgumentError, match="device must be the number or the name of a device, got "):
            arguments.place(value)
