"""C in two shares on the simulated device: every element is computed once, and the bits are those of two products."""

import forced_choice
import numpy as np
import pytest

from fastsgemm import rungs
from fastsgemm.config import PipelinedConfig, SkinnyConfig
from fastsgemm.sim import Machine, schedule, sgemm
from fastsgemm.sim.global_memory import GlobalMemory

LARGE = rungs.find("pipelined"), PipelinedConfig(32, 32, 8, 4, 4, 16, 32, 1, CP_ASYNC=2)
SMALL = rungs.find("skinny"), SkinnyConfig(BM=4, BN=32, BK=16, TN=4, TK=4, SPLIT_K=2)
M, N, K = 70, 75, 37


@pytest.fixture(params=[False, True], ids=["first first", "second first"])
def cut(monkeypatch, request):
    """Return a function that lets every C be cut there, with rung 9 for the first share and rung 10 for the second.

    The shares are launched in both orders.
    """

    def at(axis, place, which=(False, False)):
        forced_choice.force(monkeypatch, forced_choice.cut(axis, place, LARGE, SMALL, which, request.param))

    return at


def drawn(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def stored(x, layout):
    return np.asfortranarray(x) if layout == "T" else np.ascontiguousarray(x)


def by_shares(axis, place, a, b, alpha, beta, c, machine):
    """The same by two products, each by the rung and config of its share."""
    for part, (rung, config) in ((slice(None, place), LARGE), (slice(place, None), SMALL)):
        rows, columns = (part, slice(None)) if axis == 0 else (slice(None), part)
        own = c[rows, columns].copy(order="K")
        sgemm(rung, config, a[rows], b[:, columns], alpha, beta, own, machine)
        c[rows, columns] = own
    return c


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("axis", "place", "of_c"), [(0, 64, "N"), (1, 64, "N"), (0, 66, "T"), (1, 67, "T")])
def test_a_cut_product_has_the_bits_of_two(cut, layout, axis, place, of_c):
    machine = Machine()
    A, B, C = stored(drawn(M, K), layout[0]), stored(drawn(K, N), layout[1]), stored(drawn(M, N), of_c)
    alpha, beta = (1.0, 0.0) if layout in ("NN", "TT") else (0.7, -1.3)
    expected = by_shares(axis, place, A, B, alpha, beta, C.copy(order="K"), machine)
    cut(axis, place)
    found, report = sgemm(None, None, A, B, alpha, beta, C.copy(order="K"), machine)
    assert np.array_equal(found, expected)
    np.testing.assert_allclose(found, alpha * (A.astype(np.float64) @ B) + beta * C, atol=1e-4)
    assert report.kernel == "fastsgemm_pipelined"  # that of the first share


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("which", [(True, True), (True, False), (False, True)])
def test_only_the_first_share_reads_packed_operands(cut, axis, which):
    A, B = drawn(M, K), drawn(N, K).T
    cut(axis, 64)
    plain, _ = sgemm(None, None, A, B)
    cut(axis, 64, which)
    found, _ = sgemm(None, None, A, B)
    assert np.array_equal(found, plain)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["row", "column", "matrix", "column-major"])
def test_each_share_reads_its_own_part_of_a_source(cut, axis, kind):
    A, B, out = drawn(M, K), drawn(K, N), np.full((M, N), np.nan, np.float32)
    source = {
        "row": drawn(N), "column": drawn(M, 1), "matrix": drawn(M, N), "column-major": drawn(N, M).T,
    }[kind]  # fmt: skip
    cut(axis, 64)
    sgemm(None, None, A, B, 1.0, 0.5, source, out=out)
    in_place, _ = sgemm(None, None, A, B, 1.0, 0.5, np.broadcast_to(source, (M, N)).copy())
    assert np.array_equal(out, in_place)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("which", [(False, False), (True, True)])
@pytest.mark.parametrize("kind", ["batch", "batch with a source", "row of blocks"])
def test_a_batch_that_is_one_product_can_be_cut(cut, axis, which, kind):
    A, B = drawn(2, M // 2, K), drawn(K, N)
    if kind == "row of blocks":  # A is shared, so the products lie side by side
        A, B = drawn(M, K), drawn(K, 3, N // 3).swapaxes(0, 1)
    C = drawn(M, 3, N // 3).swapaxes(0, 1) if kind == "row of blocks" else drawn(2, M // 2, N)
    out = np.full_like(C, np.nan) if "source" in kind else C.copy(order="K")
    cut(axis, 64, which)
    sgemm(None, None, A, B, 0.7, 1.5, C if "source" in kind else out, out=out)
    np.testing.assert_allclose(out, 0.7 * (A.astype(np.float64) @ B) + 1.5 * C, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_product_of_a_vector_can_be_cut(cut, axis):
    A, B = (drawn(M, K), drawn(K)) if axis == 0 else (drawn(K), drawn(K, N))
    cut(axis, 64)
    found, _ = sgemm(None, None, A, B)
    np.testing.assert_allclose(found, A.astype(np.float64) @ B, atol=1e-4)


def test_nothing_is_read_without_alpha(cut):
    cut(0, 64, (True, True))
    A, B, C = np.full((M, K), np.nan, np.float32), np.full((K, N), np.nan, np.float32), drawn(M, N)
    found, _ = sgemm(None, None, A, B, 0.0, 2.0, C.copy())
    assert np.array_equal(found, 2 * C)


SECOND = {
    "rung 9": (LARGE, 75),
    "rung 9, 16 bytes a store": (LARGE, 72),
    "rung 9, sliced-K": ((LARGE[0], LARGE[1].replace(SLICED_K=2)), 72),
    "rung 9, split-K": ((LARGE[0], LARGE[1].replace(SPLIT_K=2)), 75),
    "rung 10": (SMALL, 75),
}


@pytest.mark.parametrize("kind", SECOND)
def test_no_block_of_a_second_share_ends_before_the_first_share(monkeypatch, kind):
    """What is launched next waits for the second share only."""
    run, blocks = schedule.run, []

    def early(batch, *more):
        batch.begin_early()
        there = batch.alive.copy()
        run(batch, *more)
        waited = there if batch.unwaited is None else there & ~batch.unwaited
        blocks.extend(waited.reshape(batch.blocks, batch.width).any(axis=1))

    for check in ("_check_waited", "_check_read_only"):  # it needs nothing that the first share writes
        monkeypatch.setattr(GlobalMemory, check, lambda *given: None)
    monkeypatch.setattr(schedule, "run", early)
    (rung, config), columns = SECOND[kind]
    report = sgemm(rung, config, drawn(M, K), drawn(K, columns))[1]
    assert len(blocks) >= report.grid > 1 and all(blocks[: report.grid])
