"""First shares of whole waves: what they leave out, and what they take."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from msgspec import structs

from fastsgemm.config import PipelinedConfig
from fastsgemm.device import DeviceInfo
from fastsgemm.geometry import grid, variants
from fastsgemm.geometry.layout import Stored
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import choose, packing, whole_waves
from fastsgemm.problem import Problem

H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
LARGEST = Problem(16384, 16384, 16384)  # with a record of a config of which a multiprocessor holds one block


def walk(down, across, group):
    """The tiles of C in the order of the blocks of rung 9."""
    for first in range(0, down, group):
        yield from ((m, n) for n in range(across) for m in range(first, min(first + group, down)))


def left_out(down, across, group, count):
    """The sizes of the rectangles at the bottom right that have so many tiles, and that a first share can leave out."""
    tiles = [*walk(down, across, group)]
    for rows in range(1, down + 1):
        for columns in range(1, across + 1):
            corner = {(m, n) for m in range(down - rows, down) for n in range(across - columns, across)}
            of_last_blocks = corner == set(tiles[len(tiles) - len(corner) :])
            if len(corner) >= count and (rows == down or columns == across or of_last_blocks):
                yield len(corner), (rows, columns)


@pytest.mark.parametrize("seed", range(60))
def test_the_smallest_rectangle_of_enough_last_tiles_is_left_out(seed):
    draw = random.Random(seed)
    down, across, group = draw.randint(1, 20), draw.randint(1, 12), draw.choice([1, 2, 4, 8])
    config = PipelinedConfig(BM=64, BN=32, BK=32, TM=4, TN=4, WM=32, WN=32, WNITER=2, GROUP_M=group)
    problem = Problem(64 * down - draw.randint(0, 63), 32 * across - draw.randint(0, 31), 64)
    for count in range(1, down * across):
        allowed = [*left_out(down, across, group, count)]
        found = whole_waves._last_tiles(config, problem, count)
        assert (found[0] * found[1], found) in allowed and found[0] * found[1] == min(allowed)[0]


@pytest.fixture
def model():
    return choose.model(H200, packing.READER)


def call_for(problem, of_c="N"):
    a, b, c = variants.dense_operands(problem)
    return variants.call_for(a, b, Operand(c.shape, Stored(True, c.shape[0])) if of_c == "T" else c)


def quickest(call):
    return whole_waves.quickest(H200, call, call.problem)


def with_fewer_blocks(call, choice):
    return whole_waves.with_fewer_blocks(H200, call, call.problem, choice)


def whole(problem):
    return choose.choose(H200, None, problem)


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
    shares = {}  # of each config: where the second share begins, the time and the elements of the first
    for place, fit in enumerate(model.fits):
        BM, BN = fit.curve.config.BM, fit.curve.config.BN
        down, across = -(-M // BM), -(-N // BN)
        most = down * across // 132 * 132  # tiles of whole waves
        sizes = [(rows, across) for rows in range(1, down)] + [(down, columns) for columns in range(1, across)]
        fitting = [(m, n) for m, n in sizes if m * n <= most < down * across]
        if fitting and most:
            m, n = max(fitting, key=lambda size: size[0] * size[1])
            end, elements = ((m * BM, 0), m * BM * N) if n == across else ((0, n * BN), n * BN * M)
            ms = model.of_tiles(problem, np.full(len(model.fits), float(m * n)))[place]
            shares[fit.curve.config] = end, ms, elements
    found = quickest(call_for(problem))
    end, ms, elements = shares[found.choice.evidence.config]
    assert (found.end, found.choice.ms) == (end, ms)
    assert ms / elements <= 1.02 * min(t / e for _, t, e in shares.values())


def test_a_column_major_c_ends_where_its_transpose_does():
    straight, turned = call_for(LARGEST.transposed), call_for(LARGEST, "T")
    for find in (quickest, partial(with_fewer_blocks, choice=whole(LARGEST))):
        one, other = find(straight), find(turned)
        assert one.end[::-1] == other.end and one.choice == other.choice


def test_the_config_of_the_whole_loses_its_last_wave():
    choice = whole(LARGEST)
    config, found = choice.config, with_fewer_blocks(call_for(LARGEST), choice)
    assert found.choice.config == config and 0 < found.end[0] < LARGEST.M and 0 < found.end[1] < LARGEST.N
    waves, rest = divmod(LARGEST.M // config.BM * (LARGEST.N // config.BN), 132)
    assert (LARGEST.M - found.end[0]) // config.BM * ((LARGEST.N - found.end[1]) // config.BN) == rest > 0
    assert found.choice.ms / choice.ms == pytest.approx(waves / (waves + 1), rel=2e-3)


def test_a_ragged_c_has_as_many_tiles():
    """The corner begins with a tile and ends with C; the grid of the first share has whole waves."""
    problem, choice = Problem(LARGEST.M - 100, LARGEST.N - 200, 4099), whole(LARGEST)
    row, column = with_fewer_blocks(call_for(problem), choice).end
    assert (row, column) == with_fewer_blocks(call_for(LARGEST), choice).end
    blocks = grid.blocks(choice.config, problem, (problem.M - row, problem.N - column))
    assert blocks % 132 == 0 < blocks == grid.blocks(choice.config, problem) // 132 * 132


def test_that_is_known_of_no_other_config(model, monkeypatch):
    call, choice = call_for(LARGEST), whole(LARGEST)
    assert with_fewer_blocks(call, choice)
    for config in (choice.config.replace(SPLIT_K=2), choice.config.replace(BM=192, WM=96)):
        assert not with_fewer_blocks(call, replace(choice, config=config))
    narrow = whole(Problem(4, 8192, 8192))
    assert narrow.rung.narrow and not with_fewer_blocks(call, narrow)
    fits = tuple(structs.replace(fit, curve=structs.replace(fit.curve, blocks_per_sm=2)) for fit in model.fits)
    monkeypatch.setattr(type(model), "fits", property(lambda _: fits))
    assert not with_fewer_blocks(call, choice)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(11, 6), (11, 12), (11, 24), (1, 3)],  # half a wave, one wave, two waves, and less than one
)
def test_whole_waves_and_less_than_one_lose_nothing(rows, columns):
    choice = whole(LARGEST)
    problem = Problem(rows * choice.config.BM, columns * choice.config.BN, 4096)
    assert not with_fewer_blocks(call_for(problem), choice)


def test_a_device_without_curves_has_none(monkeypatch):
    choice = whole(LARGEST)
    monkeypatch.setattr(choose, "model", lambda device, rung: None)
    assert not quickest(call_for(LARGEST))
    assert not with_fewer_blocks(call_for(LARGEST), choice)


def test_a_c_of_few_tiles_has_none():
    assert not quickest(call_for(Problem(64, 64, 4096)))
