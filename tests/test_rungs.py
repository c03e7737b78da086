"""The ladder: one name everywhere."""

import re

import pytest

import fastsgemm
from fastsgemm import resources, rungs
from fastsgemm.config import BlockConfig, PipelinedConfig, SharedTileConfig, SkinnyConfig, VectorizedConfig
from fastsgemm.errors import ConfigError, PrecisionError, UnknownRungError
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


@pytest.mark.parametrize(
    ("key", "meant"), [("Naive", "naive"), ("pipeline", "pipelined"), ("warp_tiled", "warptiled"), ("cutlass", None)]
)
def test_what_a_misspelt_rung_may_mean(key, meant):
    with pytest.raises(UnknownRungError) as caught:
        rungs.find(key)
    assert str(caught.value).endswith(f"; did you mean {meant!r}?" if meant else str(RUNGS[-1]))


@pytest.mark.parametrize(
    ("precision", "hint"),
    [
        ("IEEE", "; did you mean 'ieee'?"),
        ("fp16_x3", "; did you mean 'fp16x3'?"),
        ("TF32", "; TF32 is never used: 'fp16x3' has the accuracy of float32 on tensor cores"),
        ("fp32", ""),
    ],
)
def test_what_another_precision_may_mean(precision, hint):
    with pytest.raises(PrecisionError) as caught:
        rungs.precision_of(None, precision)
    assert str(caught.value) == f"precision must be 'ieee' or 'fp16x3', got {precision!r}{hint}"


@pytest.mark.parametrize("rung", RUNGS, ids=str)
def test_file_kernel_and_registry_agree(rung):
    text = (resources.folder("cuda_src") / rung.file).read_text()
    kernels = re.findall(r'extern "C" __global__ void [^;{]*?(\w+)\((?:const unsigned short|int M)', text)
    assert kernels == [rung.kernel]


def test_every_rung_file_is_on_the_ladder():
    files = {path.name for path in resources.folder("cuda_src").glob("[0-9]*.cu")}
    others = {"11_fp16x3_mma.cu", "11_half.cu"}  # rung 11 on devices without wgmma, and of 16-bit operands
    assert files == {rung.file for rung in (*RUNGS, rungs.SKINNY_IN_ORDER)} | others


def test_rung_10_is_for_few_rows_or_few_columns():
    skinny = rungs.find("skinny")
    for M, N, suited in ((1, 1, True), (32, 9999, True), (9999, 32, True), (33, 33, False), (33, 9999, False)):
        assert skinny.suits(M, N) is suited
        assert all(rung.suits(M, N) for rung in RUNGS if rung is not skinny)


def test_a_config_without_a_rung_belongs_to_the_default_rung_that_has_its_constants():
    pipelined, skinny = rungs.DEFAULTS
    assert (pipelined.name, skinny.name) == ("pipelined", "skinny")
    assert rungs.of_config(PipelinedConfig(64, 64, 16, 4, 4, 32, 32, 2)) is pipelined
    assert rungs.of_config(SkinnyConfig(4, 64, 256, TN=4, TK=16)) is skinny


@pytest.mark.parametrize(
    ("config", "taking"),
    [(BlockConfig(32, 32), "naive, coalesced"), (VectorizedConfig(64, 64, 16, 4, 4), "vectorized, autotuned")],
)
def test_a_config_of_no_default_rung_needs_a_rung_and_the_message_lists_them(config, taking):
    with pytest.raises(
        ConfigError, match=rf"a {type(config).__name__} needs a rung; the rungs that take it: {taking}$"
    ):
        rungs.of_config(config)


def test_a_rung_refuses_the_config_of_another_family():
    with pytest.raises(
        ConfigError, match=r"rung naive .*class of the config must be BlockConfig, got SharedTileConfig"
    ):
        rungs.find("naive").check(SharedTileConfig(32, 32, 8), 49152)


def test_the_repr_of_a_rung_says_what_it_is():
    assert repr(rungs.find("coalesced")) == "<Rung 2 coalesced: a warp reads and writes neighbours>"
