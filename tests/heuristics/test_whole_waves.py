"""First shares of whole waves: what they leave out, and what they take."""

import random

import numpy as np
import pytest

from fastsgemm.device import DeviceInfo
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Stored
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import choose, packing, whole_waves
from fastsgemm.problem import Problem

H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
LARGE = Problem(8192, 4000, 4096)


@pytest.fixture
def model():
    return choose.model(H200, packing.READER)


def quickest(problem, of_c="N"):
    a, b, c = variants.dense_operands(problem)
    return whole_waves.quickest(H200, a, b, Operand(c.shape, Stored(True, c.shape[0])) if of_c == "T" else c)


@pytest.mark.parametrize("problem", [Problem(6000, 7000, 1000, "TN"), Problem(8000, 8000, 8000)])
def test_a_share_of_all_tiles_takes_as_long_as_the_product(model, problem):
    rows, columns = model.tile
    ms = model.of_tiles(problem, np.ceil(problem.M / rows) * np.ceil(problem.N / columns))
    unsplit = [one for one in model.ranking(problem) if one.config.split_k == 1]
    assert len(unsplit) > 3 and all(ms[model.fits.index(one.fit)] == one.ms for one in unsplit)


@pytest.mark.parametrize("seed", range(20))
def test_the_quickest_share_for_its_elements_is_found(model, seed):
    draw = random.Random(seed)
    M, N, K = (draw.randint(600, 6000) for _ in range(3))
    problem = Problem(M, N, K, draw.choice(["NN", "NT", "TN", "TT"]))
    shares = {}  # of each config: the axis and where the second share begins, the time and the elements of the first
    for place, fit in enumerate(model.fits):
        BM, BN = fit.curve.config.BM, fit.curve.config.BN
        down, across = -(-M // BM), -(-N // BN)
        most = down * across // 132 * 132  # tiles of whole waves
        sizes = [(rows, across) for rows in range(1, down)] + [(down, columns) for columns in range(1, across)]
        fitting = [(m, n) for m, n in sizes if m * n <= most < down * across]
        if fitting and most:
            m, n = max(fitting, key=lambda size: size[0] * size[1])
            *end, elements = (0, m * BM, m * BM * N) if n == across else (1, n * BN, n * BN * M)
            ms = model.of_tiles(problem, np.full(len(model.fits), float(m * n)))[place]
            shares[fit.curve.config] = end, ms, elements
    found = quickest(problem)
    end, ms, elements = shares[found.choice.evidence.config]
    assert [found.axis, found.end, found.choice.ms] == [*end, ms]
    assert ms / elements <= 1.02 * min(t / e for _, t, e in shares.values())


@pytest.mark.parametrize("problem", [LARGE, LARGE.transposed])
def test_a_column_major_c_ends_where_its_transpose_does(problem):
    one, other = quickest(problem.transposed), quickest(problem, "T")
    assert (1 - one.axis, one.end, one.choice) == other


def test_a_device_without_curves_has_none(monkeypatch):
    monkeypatch.setattr(choose, "model", lambda device, rung: None)
    assert not quickest(LARGE)


def test_a_c_of_few_tiles_has_none():
    assert not quickest(Problem(64, 64, 4096))


@pytest.mark.parametrize(("multiprocessors", "M", "N"), [(132, 2**30, 2**30), (2, 8359, 790099396)])
def test_a_c_whose_grids_with_a_wave_to_leave_out_have_too_many_blocks_has_none(multiprocessors, M, N):
    """The second C has a grid, of an even number of tiles: with 2 multiprocessors, it has no such wave."""
    device = DeviceInfo("NVIDIA H200", "sm_90", 232448, multiprocessors)
    assert not whole_waves.quickest(device, *variants.dense_operands(Problem(M, N, 66)))
