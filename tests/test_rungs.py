"""The ladder: one name everywhere."""

import re

import pytest

import fastsgemm
from fastsgemm import resources, rungs
from fastsgemm.errors import UnknownRungError
from fastsgemm.rungs import RUNGS


def test_the_ladder_is_public_numbered_from_one_and_each_name_is_used_once():
    assert fastsgemm.RUNGS is RUNGS
    assert [rung.number for rung in RUNGS] == list(range(1, len(RUNGS) + 1))
    assert len({rung.name for rung in RUNGS}) == len(RUNGS)


@pytest.mark.parametrize("rung", RUNGS, ids=str)
def test_a_rung_is_found_by_name_number_and_itself(rung):
    assert rungs.find(rung.name) is rungs.find(rung.number) is rungs.find(rung) is rung


@pytest.mark.parametrize("key", ["", "Naive", "1", 0, 99, None, 1.0, True, ["naive"], {}], ids=repr)
def test_any_other_key_is_refused_and_the_ladder_shown(key):
    with pytest.raises(UnknownRungError, match=f"unknown rung .*{RUNGS[0]}.*{RUNGS[-1]}"):
        rungs.find(key)


@pytest.mark.parametrize("rung", RUNGS, ids=str)
def test_file_kernel_and_registry_agree(rung):
    text = (resources.folder("cuda_src") / rung.file).read_text()
    kernels = re.findall(r'extern "C" __global__ void [^;{]*?(\w+)\(int M', text)
    assert kernels == [rung.kernel]


def test_every_rung_file_is_on_the_ladder():
    files = {path.name for path in resources.folder("cuda_src").glob("[0-9]*.cu")}
    assert files == {rung.file for rung in RUNGS}


def test_rung_10_is_for_few_rows_or_few_columns():
    skinny = rungs.find("skinny")
    for M, N, suited in ((1, 1, True), (32, 9999, True), (9999, 32, True), (33, 33, False), (33, 9999, False)):
        assert skinny.suits(M, N) is suited
        assert rungs.ladder(M, N) == (RUNGS if suited else RUNGS[:-1])


def test_a_config_without_a_rung_belongs_to_the_default_rung_that_has_its_constants():
    pipelined, skinny = rungs.DEFAULTS
    assert (pipelined.name, skinny.name) == ("pipelined", "skinny")
    for rung in rungs.DEFAULTS:
        assert rungs.having(rung.knobs) is rung
        assert rungs.having(set(rung.knobs) - {"SPLIT_K"}) is rung
        assert rungs.having(dict.fromkeys(rung.knobs, 1)) is rung
    assert rungs.having(("BM", "BN")) is pipelined  # whose rules then say what is missing
    assert rungs.having(rungs.find("warptiled").knobs) is pipelined


def test_the_repr_of_a_rung_says_what_it_is():
    assert repr(rungs.find("coalesced")) == "<Rung 2 coalesced: a warp reads and writes neighbours>"
