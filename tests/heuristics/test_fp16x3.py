"""Which tile of rung 11 a problem gets, and where an IEEE kernel is taken."""

import pytest

from fastsgemm import explain
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import PrecisionError
from fastsgemm.geometry.variants import dense_operands, extents_of
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choice import choose
from fastsgemm.problem import Problem
from fastsgemm.request import of_call, resolve

H200 = DeviceInfo("NVIDIA H200", "sm_90", 227 * 1024, 132)
FP16X3, FORCED = resolve(precision="fp16x3"), resolve("fp16x3")


def split(a, b):
    """Return the request of a call whose A or B was split before."""
    return of_call(FP16X3, (a, b))


def chosen(device, problem, request):
    return choose(device, request, *dense_operands(problem), extents_of(problem))


def other(arch, shared_limit):
    return DeviceInfo("Some GPU", arch, shared_limit, 100)


@pytest.mark.parametrize("n", [1024, 2048, 4096, 8192, 16384])
def test_large_squares_use_rung_11(n):
    choice = chosen(H200, Problem(n, n, n), FP16X3)
    assert choice.tensor_cores and choice.ms < choice.ieee_ms and "quicker than the IEEE kernel" in choice.why


@pytest.mark.parametrize("problem", [Problem(128, 128, 128), Problem(1, 4096, 4096), Problem(4096, 4096, 31)], ids=str)
def test_small_thin_and_shallow_products_use_ieee_kernels(problem):
    assert not chosen(H200, problem, FP16X3).tensor_cores


@pytest.mark.parametrize(("M", "N"), [(64, 8192), (8192, 64)])
def test_the_narrow_side_gets_the_narrow_side_of_the_tile(M, N):
    choice = chosen(H200, Problem(M, N, 8192), split(True, True))
    assert choice.config.BN <= 64 and choice.trans_c is (M < N)


def test_few_strided_lines_are_split_by_part_of_the_device():
    """Clusters of eight blocks for 32 lines each: 256 lines keep 64 of 132 SMs busy."""
    narrow = {layout: chosen(H200, Problem(8192, 256, 16384, layout), FORCED).ms for layout in ("NN", "NT")}
    wide = {layout: chosen(H200, Problem(8192, 1024, 16384, layout), FORCED).ms for layout in ("NN", "NT")}
    assert narrow["NN"] - narrow["NT"] > 1.5 * (wide["NN"] - wide["NT"]) / 4
    assert not chosen(H200, Problem(256, 256, 16384), FP16X3).tensor_cores


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_strided_lines_that_make_a_wave_of_blocks_and_a_fifth_are_split_in_the_time_of_two(device):
    """The IEEE kernel takes 57 us on both, and rung 11 took 71 and 77."""
    choice = chosen(DeviceInfo(device, "sm_90", 227 * 1024, 132), Problem(617, 110, 11850, "TT"), FP16X3)
    assert not choice.tensor_cores and 0.062 < choice.tensor_ms < 0.08


def test_of_tiles_that_are_equally_quick_the_largest_is_taken():
    """9 waves of 128 x 128 against 16 of 128 x 64, within 1 %: the larger takes less power."""
    choice = chosen(H200, Problem(1800, 9024, 4640, "NT"), FP16X3)
    assert (choice.config.BM, choice.config.BN) == (128, 128)


def test_splitting_counts_and_does_not_change_the_tile():
    problem = Problem(512, 8192, 8192)
    times = [chosen(H200, problem, split(*how)) for how in ((False, False), (False, True), (True, True))]
    assert times[0].ms > times[1].ms > times[2].ms
    assert len({one.config for one in times}) == 1


@pytest.mark.parametrize("K", [32, 255, 256, 2047, 2048, 8192])
def test_a_tile_is_used_where_its_errors_are_as_promised(K):
    config = chosen(H200, Problem(4096, 4096, K), FORCED).config
    [tile] = [one for one in database.rates("sm_90").tiles if one.config == config.kernel]
    assert tile.least_k <= K <= (tile.most_k or K)
    assert config.PROMOTE_STAGES == 2 or K <= 2048


def test_other_architectures():
    problem = Problem(4096, 4096, 4096)
    assert "sm_80 or later" in chosen(other("sm_75", 65536), problem, FP16X3).why
    assert not chosen(other("sm_75", 65536), problem, FORCED).tensor_cores
    assert "nobody measured" in chosen(other("sm_89", 101376), problem, FP16X3).why
    assert chosen(other("sm_89", 101376), problem, FORCED).config.shared_bytes <= 101376
    assert chosen(other("sm_80", 166912), problem, FP16X3).tensor_cores
    assert not chosen(other("sm_80", 166912), Problem(256, 256, 256), FP16X3).tensor_cores


def test_an_explanation_says_which_and_why():
    text = str(explain(4096, 4096, 4096, device="NVIDIA H200", precision="fp16x3"))
    assert "rung       fp16x3" in text and "quicker than the IEEE kernel" in text
    text = str(explain(64, 64, 64, device="NVIDIA H200", precision="fp16x3"))
    assert "rung       pipelined" in text and "precision  fp16x3: the IEEE kernel" in text
    found = explain(4096, 4096, 4096, device="NVIDIA H200", rung="fp16x3").json()
    assert found["rung"] == "fp16x3" and found["why"] == "rung fp16x3 was asked for"
    with pytest.raises(PrecisionError):
        explain(64, 64, 64, device="NVIDIA H200", precision="double")
