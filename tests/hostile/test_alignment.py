"""Arrays with elements between two floats: an error on a device, on the host and on the simulated device alike."""

import numpy as np
import pytest

from fastsgemm import OperandError, sgemm, sim
from fastsgemm.call import arrays
from fastsgemm.rungs import RUNGS

ATTACK = "operand: elements between two floats"
ADDRESS = "must lie at an address divisible by 4; its address modulo 16 is "
STRIDES = r"must have strides that are multiples of 4 bytes, got \("


def at_offset(offset):
    return np.zeros(4 * 16 + offset, np.uint8)[offset:].view(np.float32).reshape(4, 4)


def fields(*formats):
    """The field of float32 of records of 4 x 4, which lie close to each other."""
    names = [f"f{number}" for number in range(len(formats))]
    table = np.zeros((4, 4), np.dtype(list(zip(names, formats, strict=True))))
    return table[names[formats.index("f4")]]


WRONG = {
    "address + 1": (at_offset(1), ADDRESS),
    "address + 2": (at_offset(2), ADDRESS),
    "rows of 21 bytes": (fields("f4", "u1"), STRIDES),
    "rows of 24 bytes": (fields("f4", "u2"), STRIDES),
    "backwards": (fields("f4", "u1")[::-1, ::-1], ADDRESS),
    "behind a byte": (fields("u1", "f4"), ADDRESS),
}
# An extent of 1 has no stride, and an array without elements has no address.
RIGHT = {
    "one element": fields("f4", "u1")[:1, :1],
    "no element": fields("u1", "f4")[:0],
    "every fourth record": fields("f4", "u1")[:, ::4],
    "records of 8 bytes": fields("f4", "u4"),
}


@pytest.fixture(params=["host", "sim", "directly"])
def product(request, monkeypatch, fresh_machine):
    """`sgemm` on the host and on the simulated device, and what runs there."""
    if request.param == "directly":
        naive = RUNGS[0]
        config = naive.config(8, 32)
        return lambda A, B, C=None, out=None: sim.sgemm(naive, config, A, B, 1.0, 0.0 if C is None else 1.0, C, out=out)
    monkeypatch.setenv("FASTSGEMM_DEVICE", request.param)
    return lambda A, B, C=None, out=None: sgemm(A, B, 1.0, 0.0 if C is None else 1.0, C, out=out)


@pytest.mark.filterwarnings("ignore:fastsgemm found no NVIDIA GPU")
@pytest.mark.parametrize("case", WRONG)
def test_it_is_refused_in_every_place(product, case, tried):
    wrong, message = WRONG[case]
    ones = np.ones((4, 4), np.float32)
    wrong[...] = 7.5
    places = {
        "A": lambda: product(wrong, ones),
        "B": lambda: product(ones, wrong),
        "C": lambda: product(ones, ones, wrong),
        "out": lambda: product(ones, ones, None, wrong),
    }
    for name, call in places.items():
        with pytest.raises(OperandError, match=f"^{name} {message}"):
            call()
    assert (wrong == 7.5).all()
    with pytest.raises(OperandError, match=f"^C {message}"):
        product(ones, ones, wrong, np.zeros((4, 4), np.float32))
    tried(ATTACK, len(places) + 1)


@pytest.mark.filterwarnings("ignore:fastsgemm found no NVIDIA GPU")
@pytest.mark.parametrize("case", RIGHT)
def test_what_lies_on_floats_is_taken(product, case):
    right = RIGHT[case]
    right[...] = 2.0
    result = product(right, np.ones((right.shape[1], 3), np.float32))
    result = result[0] if isinstance(result, tuple) else result
    assert (result == 2.0 * right.shape[1]).all() and len(result) == len(right)


@pytest.mark.parametrize("case", [*WRONG, *RIGHT])
def test_arrays_on_a_device_are_judged_alike(case, tried):
    """By address and strides, which is all that there is of an array on a device."""
    x, message = WRONG[case] if case in WRONG else (RIGHT[case], None)
    fault = arrays.misaligned(x.ctypes.data & 15, x.shape, x.strides)
    assert (fault is None) == (message is None) == (arrays.host_fault(x) is None)
    assert fault is None or str(fault("A")) == str(arrays.host_fault(x)("A"))
    tried(ATTACK)
