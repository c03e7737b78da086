import pytest
from quick_configs import quick_configs

from fastsgemm import config as configs
from fastsgemm import resources, rungs
from fastsgemm.heuristics import database
from fastsgemm.tuning.candidates import of_space
from fastsgemm.tuning.spaces import AUTOTUNED, PIPELINED, SPACES, WARPTILED

H200 = 232448
# What a block may opt in to on every architecture, 64 KB on sm_75
LEAST = min(database.shipped(path.stem).shared_limit for path in resources.folder("tuning_db").glob("sm_*.json"))

LIMITS = database.search_limits()
QUICK = {rung: quick_configs(rung) for rung in SPACES}
PICKED = {rung: database.candidates(rung, "picked") for rung in SPACES}

EVERY = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


@EVERY
def test_every_candidate_is_legal_and_drawn_once(space):
    drawn = of_space(space, H200)
    assert len(set(drawn)) == len(drawn) > 100
    rung = rungs.find(space.rung)
    assert [config for config in drawn if rung.violations(config, H200)] == []


@EVERY
def test_nearly_all_quick_candidates_are_legal_on_every_device(space):
    few = [config for config in QUICK[space.rung] if config.shared_bytes <= LEAST]
    assert of_space(space, LEAST, quick=True) == few and len(few) >= len(QUICK[space.rung]) - 3
    assert len(set(QUICK[space.rung])) == len(QUICK[space.rung])


@EVERY
def test_less_shared_memory_means_fewer_candidates(space):
    if space.rung != "skinny":  # its shared memory is static: the same on every device
        assert len(of_space(space, 8 * 1024)) < len(of_space(space, H200))
    assert all(config.shared_bytes <= 8 * 1024 for config in of_space(space, 8 * 1024))


@pytest.mark.parametrize("tile", [(128, 128, 16, 8, 8), (64, 64, 16, 4, 4), (128, 128, 8, 8, 8)], ids=str)
def test_rung_7s_space_has_the_winners_of_the_literature(tile):
    assert configs.VectorizedConfig(*tile) in of_space(AUTOTUNED, H200)


def test_refinements_keep_the_tile():
    config = QUICK["warptiled"][0]
    others = WARPTILED.refinements(config, H200, LIMITS)
    assert config not in others
    assert WARPTILED.refinements(config, config.shared_bytes - 1, LIMITS) == []
    assert {(other.BM, other.BN, other.BK, other.WM, other.TM) for other in others} == {(128, 128, 8, 64, 8)}
    assert {other.GROUP_M for other in others} == {1, 4, 8, 16}
    assert {other.PREFETCH for other in others} == {other.SERPENTINE for other in others} == {0, 1}


def test_blocks_are_asked_for_only_where_that_bounds_registers():
    for config in QUICK["warptiled"]:
        for other in WARPTILED.refinements(config, H200, LIMITS):
            bound = 65536 // (other.MIN_BLOCKS * other.threads)
            assert other.least_registers <= bound
            assert other.MIN_BLOCKS == 1 or bound < configs.MAX_REGISTERS
    small = QUICK["warptiled"][15]
    assert small.threads == 64
    assert {other.MIN_BLOCKS for other in WARPTILED.refinements(small, H200, LIMITS)} == {1}


def test_k_is_divided_for_a_problem_and_not_by_the_space():
    assert {config.SPLIT_K for config in of_space(PIPELINED, H200)} == {1}
    large = next(c for c in PICKED["pipelined"] if c.CP_ASYNC == 2 and c.BM * c.BN == 16384)
    first, second = (PIPELINED.refinements(large, H200, LIMITS, step) for step in range(2))
    assert {other.SPLIT_K for other in first + second} == {1}
    assert {other.ORDER for other in first} == {1, 4, 5} and {other.ORDER for other in second} == {4}
    assert {other.FRAGMENTS for other in first} == {1, 2} and {other.SPREAD for other in first} == {0, 1, 2}
    assert {other.CP_ASYNC for other in second} == {1, 2, 3} and {other.CP_ASYNC for other in first} == {2}
    small = next(c for c in QUICK["pipelined"] if (c.BM, c.BN, c.CP_ASYNC) == (24, 64, 3)).replace(CP_ASYNC=2)
    last = PIPELINED.refinements(small, H200, LIMITS, 1)
    assert {(other.STAGES, other.CP_ASYNC) for other in last} == {
        (2, 1), (2, 3), (3, 2), (3, 3), (4, 2), (4, 3),
    }  # fmt: skip


@pytest.mark.parametrize(("BM", "BN", "WM"), [(32, 128, 32), (128, 32, 64)])
def test_refinements_lead_from_the_grid_to_the_best_narrow_tiles_in_lines(BM, BN, WM):
    """With MIN_BLOCKS of 1: 2 blocks of 128 threads can have all registers, and the machine code is the same."""
    picked = next(c for c in PICKED["pipelined"] if (c.BM, c.BN, c.WM, c.CP_ASYNC) == (BM, BN, WM, 3))
    known = picked.replace(MIN_BLOCKS=1)
    assert (known.BK, known.STAGES, known.SLICED_K, known.FRAGMENTS) == (32, 3, 2, 4)
    start = known.replace(ORDER=1, CP_ASYNC=1, STAGES=2, FRAGMENTS=2)
    assert start in of_space(PIPELINED, H200)
    changes = [{"ORDER": 4}, {"CP_ASYNC": 3, "STAGES": 3}, {"FRAGMENTS": 4}]
    for step, constants in enumerate(changes):
        refined = PIPELINED.refinements(start, H200, LIMITS, step)
        start = start.replace(**constants)
        assert start in refined
    assert start == known


def test_a_picked_config_keeps_a_min_blocks_that_bounds_nothing():
    kept = [c for c in PICKED["pipelined"] if c.MIN_BLOCKS == 2 and c.threads == 128 and c.CP_ASYNC == 3]
    assert len(kept) == 2
    for config in kept:
        assert {other.MIN_BLOCKS for other in PIPELINED.refinements(config, H200, LIMITS)} == {2}


def test_the_best_config_of_an_h200_is_in_the_space():
    assert configs.WarptiledConfig(128, 128, 8, 8, 8, 64, 32, 1, 1, 1, 8, 1) in of_space(WARPTILED, H200)


def test_the_default_rungs_are_tuned_first():
    assert tuple(SPACES) == ("pipelined", "skinny", "warptiled", "autotuned")
    assert tuple(rung.name for rung in rungs.DEFAULTS) == tuple(SPACES)[:2]
