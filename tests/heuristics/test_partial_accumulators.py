"""How many chains make up a sum where nobody said."""

from dataclasses import replace

import pytest
import scalar_cost_model

from fastsgemm import rungs
from fastsgemm.config import PipelinedConfig
from fastsgemm.device import DeviceInfo
from fastsgemm.heuristics import choose, database, database_entries, partial_accumulators
from fastsgemm.heuristics.cost_model import splits
from fastsgemm.problem import Problem

H200 = 232448
PIPE = PipelinedConfig(
    64, 64, 16, 4, 4, 32, 32, 2, GROUP_M=8, MIN_BLOCKS=1, ORDER=1, FRAGMENTS=2, CP_ASYNC=1, SPREAD=2, SPLIT_K=1
)
FITTED = database.fitted("sm_90")
RUNG = rungs.find("pipelined")


@pytest.mark.parametrize(
    ("problem", "change", "expected"),
    [
        (Problem(1000, 1000, 1024), {}, 4),
        (Problem(1000, 1000, 1023), {}, 1),  # short enough
        (Problem(1000, 900, 256), {}, 4),  # a C that does not fill a device
        (Problem(1000, 900, 255), {}, 1),
        (Problem(1000, 901, 256), {}, 1),
        (Problem(256, 512, 255), {}, 4),  # a small C
        (Problem(256, 513, 255), {}, 1),
        (Problem(256, 512, 16), {}, 1),  # nothing to shorten
        (Problem(256, 512, 17), {}, 4),
        (Problem(1000, 1000, 4096), {"PARTIAL_ACCUMULATORS": 8}, 8),  # it was said
        (Problem(1000, 1000, 4096), {"SPLIT_K": 4}, 1),  # shared out among blocks
        (Problem(1000, 1000, 4096), {"SPLIT_K": 2}, 4),
        (Problem(1000, 1000, 4096), {"SPLIT_K": 2, "SLICED_K": 2}, 1),  # and threads
        (Problem(1000, 1000, 300), {"SPLIT_K": 300}, 1),
    ],
    ids=str,
)
def test_long_sums_are_made_of_four_chains_if_they_are_one_chain(problem, change, expected):
    given = replace(PIPE, **change)
    found = partial_accumulators.shortened(given, problem, H200, FITTED)
    assert (
        expected == found.PARTIAL_ACCUMULATORS
        and replace(found, PARTIAL_ACCUMULATORS=given.PARTIAL_ACCUMULATORS) == given
    )


def test_sums_that_do_not_fit_into_shared_memory_stay_one_chain():
    """The two stages of this tile take 17,408 bytes and the sums 16,384."""
    problem, need = Problem(1000, 1000, 1024), 17408 + 16384
    assert replace(PIPE, PARTIAL_ACCUMULATORS=4).shared_bytes == need
    assert partial_accumulators.shortened(PIPE, problem, need, FITTED).PARTIAL_ACCUMULATORS == 4
    assert partial_accumulators.shortened(PIPE, problem, need - 1, FITTED) == PIPE
    found = RUNG.violations(replace(PIPE, PARTIAL_ACCUMULATORS=4), need - 1)
    assert [str(one) for one in found] == [
        "shared memory of a block, set by BM, BN, BK, STAGES and PARTIAL_ACCUMULATORS, "
        f"must be at most {need - 1} bytes on this device, got {need} bytes"
    ]


@pytest.mark.parametrize("rung", ["vectorized", "warptiled", "skinny"])
def test_other_rungs_have_no_such_constant(rung):
    given = next(r.config for r in database.shipped(database_entries.GENERIC).records if r.rung == rung)
    assert partial_accumulators.shortened(given, Problem(1000, 1000, 1000), H200, FITTED) == given


def test_the_choice_for_an_untuned_problem_has_short_chains():
    """One that was tuned gets what was found."""
    device = DeviceInfo("NVIDIA H200", "sm_90", H200, 132)
    found = choose.choose(device, RUNG, Problem(3001, 2999, 3003))
    assert found.rule == choose.PREDICTED
    parts = found.config.SPLIT_K * found.config.SLICED_K * found.config.PARTIAL_ACCUMULATORS
    assert parts >= partial_accumulators.ACCUMULATORS and all(
        o.config.SPLIT_K * o.config.SLICED_K * o.config.PARTIAL_ACCUMULATORS >= 4 for o in found.options
    )
    assert all(
        o.config.PARTIAL_ACCUMULATORS == 1 for o in choose.choose(device, RUNG, Problem(3001, 2999, 203)).options
    )


def test_chains_are_not_free():
    """Where one config, or division of K, needs them and another one does not, the other may take a little longer."""
    device, problem = DeviceInfo("NVIDIA H200", "sm_90", H200, 132), Problem(1408, 1081, 6332)
    found = choose.choose(device, RUNG, problem)
    plain = {
        curve.config: scalar_cost_model.CostModel(curve)
        for curve in choose.database.load(device.arch).curves
        if curve.rung == RUNG.name
    }
    seen = set()
    for option in found.options:
        whole = replace(option.config, PARTIAL_ACCUMULATORS=1, SPLIT_K=1)
        costs = {}
        for parts in splits(whole, problem, device.multiprocessors):
            used = partial_accumulators.shortened(replace(whole, SPLIT_K=parts), problem, H200, FITTED)
            ms = plain[whole].predict_split(problem, replace(whole, SPLIT_K=parts), device.multiprocessors)
            costs[used] = partial_accumulators.cost(used, FITTED, plain[whole].accumulators_cost) * ms
        # The numbers of a curve have 7 digits, those of the scalar model all.
        assert option.ms == pytest.approx(costs[option.config], rel=1e-5)
        assert costs[option.config] == min(costs.values())
        seen.add(option.config.PARTIAL_ACCUMULATORS)
    assert seen == {1, partial_accumulators.ACCUMULATORS}
    assert [option.ms for option in found.options] == sorted(option.ms for option in found.options)
