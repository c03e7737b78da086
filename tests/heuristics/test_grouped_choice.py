"""The config of groups of which only the mean size is known."""

import dataclasses

import numpy as np
import pytest

from fastsgemm import rungs
from fastsgemm.config import SEGMENT
from fastsgemm.device import DeviceInfo
from fastsgemm.heuristics.alternatives import Search
from fastsgemm.heuristics.choice import choose_grouped
from fastsgemm.heuristics.device_database import device_database
from fastsgemm.heuristics.products import Product
from fastsgemm.problem import LAYOUTS, Problem, Ragged
from fastsgemm.request import Request

RUNG = rungs.find("pipelined")
H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
DEVICES = [H200, DeviceInfo("an A100", "sm_80", 166912, 108), DeviceInfo("a T4", "sm_75", 65536, 40)]
KINDS = [Ragged.ROWS, Ragged.K, Ragged.COLUMNS]


def drawn(count):
    random = np.random.default_rng(6)
    for _ in range(count):
        M, N, K, groups = (2.0 ** random.uniform(0, most) for most in (9, 12, 12, 9))
        yield Problem(int(M), int(N), int(K), LAYOUTS[random.integers(4)], int(groups))


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("ragged", KINDS)
@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
def test_each_group_is_summed_by_one_block(device, ragged, in_order):
    for drawn_problem in drawn(60):
        problem = dataclasses.replace(drawn_problem, ragged=ragged)
        choice = choose_grouped(device, Request(batch_invariant=in_order), problem)
        assert choice.rung is RUNG and RUNG.violations(choice.config, device.shared_limit) == []
        if in_order:
            assert choice.config.segment == SEGMENT
            assert choice.config.adds_chains or (problem.K <= SEGMENT and ragged is not Ragged.K)
        else:
            assert choice.config.split_k == 1


def test_k_is_split_where_the_groups_are_one_product():
    """So that the test before this one says something."""
    search = Search(device_database(H200), Request(RUNG))
    assert any(search.pick(mean).config.split_k > 1 for mean in drawn(60))


@pytest.mark.parametrize(("ragged", "layout"), [(Ragged.ROWS, "NN"), (Ragged.COLUMNS, "TT")])
def test_the_last_tile_of_a_group_is_half_full(ragged, layout):
    """So 256 groups of 512 rows take as long as 272 products of 8 tiles of 64 rows, but for checks of bounds."""
    model = device_database(H200).model(RUNG)

    def times(groups, ragged):
        mean = Problem(512, 1024, 1024, batch=groups)
        mean = mean if layout == "NN" else mean.transposed
        options = model.predict([Product(mean, ragged=ragged)]).options()
        return [(fit, ms) for fit, parts, ms in options if parts == 1]

    grouped = times(256, ragged)
    for tile, products in ((64, 272), (32, 264)):
        even = times(products, Ragged.NOTHING)
        side = "BM" if layout == "NN" else "BN"
        pairs = [
            (fit, ours / theirs)
            for (fit, ours), (_, theirs) in zip(grouped, even, strict=True)
            if getattr(fit.curve.config, side) == tile
        ]
        assert pairs and all(0.99 < ratio < 1.01 * fit.numbers.guard for fit, ratio in pairs)
