"""When one triangle of a symmetric result is computed, and what `explain` says of it."""

import dataclasses

import entries
import pytest
from msgspec.structs import replace

from fastsgemm import explain
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import ShapeError
from fastsgemm.geometry import grid, variants
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choice import alternatives, choose
from fastsgemm.heuristics.database_entries import Content
from fastsgemm.problem import Problem, Sym
from fastsgemm.request import PLAIN, of_gram, of_problem, resolve

H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
UNKNOWN = DeviceInfo("Unknown", "sm_70", 98304, 80)


def chosen(problem, request=PLAIN, device=H200):
    operands = variants.dense_operands(problem)
    request = of_problem(request, dataclasses.replace(problem, symmetric=True))
    return choose(device, request, *operands, extents=variants.extents_of(problem))


@pytest.mark.parametrize("layout", ["NT", "TN"])
@pytest.mark.parametrize("K", [64, 1000, 4096, 65536])
@pytest.mark.parametrize("n", [16, 100, 256, 512, 1000, 2048, 5000, 8192])
def test_it_is_predicted_to_be_no_slower_than_the_whole_product(n, K, layout):
    problem = Problem(n, n, K, layout)
    whole = choose(H200, PLAIN, *variants.dense_operands(problem))
    one = chosen(problem)
    if n >= 2048 and K >= 1000:
        assert one.triangle and one.ms < 0.68 * whole.ms
    if n <= 256 and K <= 4096:
        assert not one.triangle
    if not one.triangle:
        assert one.rung.name in ("pipelined", "skinny")
        asked = of_problem(PLAIN, dataclasses.replace(problem, symmetric=True))
        compared = alternatives(H200, asked, *variants.dense_operands(problem))
        assert one.ms <= next(way.ms for way in compared if way.name == "as they lie")


def test_storing_twice_is_no_second_start_of_a_kernel():
    """Of an H100, 1942 x 86: 19.6 us for one triangle, 25.3 us for the whole product; a kernel that does nothing: 4."""
    assert chosen(Problem(1942, 1942, 86, "NT")).triangle
    square = Problem(512, 512, 64)
    one, whole = chosen(square), choose(H200, PLAIN, *variants.dense_operands(square))
    assert one.triangle and not whole.triangle and 0 < one.ms - whole.ms < 0.003


@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_a_declared_result_is_always_one_triangle(layout):
    for n in (4, 100, 3000):
        assert chosen(Problem(n, n, 200, layout)).triangle


def test_a_batch_and_one_order_of_summation():
    assert chosen(Problem(512, 512, 512, "NT", 64)).triangle
    assert chosen(Problem(4096, 4096, 4096, "NT"), resolve(batch_invariant=True)).triangle
    assert not chosen(Problem(1, 1, 5000, "NT"), resolve(batch_invariant=True)).triangle


def test_rung_11_computes_one_triangle_and_counts_one_split():
    for n in (64, 4096):
        one = chosen(Problem(n, n, 4096, "NT"), resolve("fp16x3"))
        whole = choose(H200, resolve("fp16x3"), *variants.dense_operands(Problem(n, n, 4096, "NT")))
        assert one.triangle and not one.trans_c and one.ms < whole.ms
    quicker = chosen(Problem(64, 64, 64, "NT"), resolve(precision="fp16x3"))
    assert not quicker.tensor_cores and quicker.why


def test_without_times_the_waves_decide():
    for n in (64, 8192):
        one = chosen(Problem(n, n, 512, "NT"), device=UNKNOWN)
        assert one.triangle is (n == 8192)


def test_a_column_major_result_turns_the_triangle():
    a, b, c = variants.dense_operands(Problem(4096, 4096, 512, "NT"))
    one = choose(H200, of_gram(PLAIN), a, b, c.transposed)
    assert one.triangle and one.pick == choose(H200, of_gram(PLAIN), b.transposed, a.transposed, c).pick


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
def test_explain(precision):
    found = explain(4096, 4096, 4096, "NT", device="NVIDIA H200", precision=precision, symmetric=True)
    assert "symmetric  computes one triangle, stores each result twice" in str(found)
    assert found.json()["triangle"] is True
    plain = explain(4096, 4096, 4096, "NT", device="NVIDIA H200", precision=precision)
    assert "symmetric" not in str(plain) and plain.json()["triangle"] is False
    written = explain(4096, 4096, 4096, "SYM", device="NVIDIA H200", precision=precision)
    assert str(written) == str(found)
    with pytest.raises(ShapeError, match="as many rows as columns"):
        explain(4096, 4000, 4096, "NT", device="NVIDIA H200", symmetric=True)


@pytest.mark.parametrize(("BM", "BN", "N"), [(128, 128, 4096), (64, 128, 1000), (96, 64, 777), (128, 256, 100)])
def test_the_cost_model_counts_the_tiles_that_are_launched(BM, BN, N):
    config = chosen(Problem(4096, 4096, 4096, "TN")).config.replace(BM=BM, BN=BN)
    wanted = sum(
        first < min(end + BM, N) for end in range(0, N, BM) for first in range(0, N, BN)
    )  # tiles whose last row is not above their first column
    assert grid.tiles(config, Problem(N, N, 8, "NT", symmetric=True)) == wanted


@pytest.mark.parametrize("n", [4, 100, 3000])
@pytest.mark.parametrize("symmetric", [Sym.BOTH, Sym.LOWER, Sym.UPPER])
def test_what_the_caller_says_is_never_computed_whole(n, symmetric):
    """Of a triangle, nothing else may be written, however small it is."""
    request = replace(of_gram(PLAIN), symmetric=symmetric)
    one = choose(H200, request, *variants.dense_operands(Problem(n, n, 200, "NT")))
    assert one.triangle and one.rung.name == "pipelined"


def test_a_record_of_a_symmetric_result_is_found_for_it_alone(data_folder):
    symmetric, whole = Problem(900, 900, 900, "NT", symmetric=True), Problem(900, 900, 900, "NT")
    config = chosen(whole).config.replace(SPLIT_K=7)
    record = entries.measured("pipelined", config, symmetric, 1e-3, device=H200.name)
    database.save(Content("sm_90", H200.shared_limit, (record,), ()))
    found = chosen(whole)
    assert found.triangle and found.rule == "exact" and found.config == config
    other = choose(H200, PLAIN, *variants.dense_operands(whole))
    assert other.rule != "exact"
    [read] = database.own("sm_90").records
    assert read.problem == symmetric
