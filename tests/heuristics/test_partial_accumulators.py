"""How many chains make up a sum where nobody said."""

from dataclasses import replace

import pytest

from fastsgemm import config, rungs
from fastsgemm.config import Config
from fastsgemm.device import DeviceInfo
from fastsgemm.heuristics import choose, partial_accumulators
from fastsgemm.heuristics.cost_model import CostModel, splits
from fastsgemm.problem import Problem

H200 = 232448
PIPE = Config(64, 64, 16, 4, 4, 32, 32, 2, GROUP_M=8, MIN_BLOCKS=1, ORDER=1, FRAGMENTS=2, ASYNC=1, SPREAD=2, SPLIT_K=1)
RUNG = rungs.find("pipelined")


@pytest.mark.parametrize(
    ("problem", "change", "expected"),
    [
        (Problem(1000, 1000, 1024), {}, 4),
        (Problem(1000, 1000, 1023), {}, None),  # short enough
        (Problem(1000, 900, 256), {}, 4),  # a C that does not fill a device
        (Problem(1000, 900, 255), {}, None),
        (Problem(1000, 901, 256), {}, None),
        (Problem(256, 512, 255), {}, 4),  # a small C
        (Problem(256, 513, 255), {}, None),
        (Problem(256, 512, 16), {}, None),  # nothing to shorten
        (Problem(256, 512, 17), {}, 4),
        (Problem(1000, 1000, 4096), {"CHAINS": 8}, 8),  # it was said
        (Problem(1000, 1000, 4096), {"SPLIT_K": 4}, None),  # shared out among blocks
        (Problem(1000, 1000, 4096), {"SPLIT_K": 2}, 4),
        (Problem(1000, 1000, 4096), {"SPLIT_K": 2, "SLICES": 2}, None),  # and threads
        (Problem(1000, 1000, 300), {"SPLIT_K": 300}, None),
    ],
    ids=str,
)
def test_long_sums_are_made_of_four_chains_if_they_are_one_chain(problem, change, expected):
    given = replace(PIPE, **change)
    found = partial_accumulators.shortened(RUNG, given, problem, H200)
    assert expected == found.CHAINS and replace(found, CHAINS=given.CHAINS) == given


def test_sums_that_do_not_fit_into_shared_memory_stay_one_chain():
    """The two stages of this tile take 17,408 bytes and the sums 16,384."""
    problem, need = Problem(1000, 1000, 1024), 17408 + 16384
    assert replace(PIPE, CHAINS=4).shared_bytes == need
    assert partial_accumulators.shortened(RUNG, PIPE, problem, need).CHAINS == 4
    assert partial_accumulators.shortened(RUNG, PIPE, problem, need - 1) == PIPE
    found = config.violations(RUNG, replace(PIPE, CHAINS=4), need - 1)
    assert [str(one) for one in found] == [
        f"shared memory of a block: needs at most {need - 1} bytes on this device, got {need} bytes"
    ]


@pytest.mark.parametrize("rung", ["vectorized", "warptiled", "skinny"])
def test_other_rungs_have_no_such_constant(rung):
    given = Config(128, 128, 8, 8, 8)
    assert partial_accumulators.shortened(rungs.find(rung), given, Problem(1000, 1000, 1000), H200) == given


def test_the_choice_for_an_untuned_problem_has_short_chains():
    """One that was tuned gets what was found."""
    device = DeviceInfo("NVIDIA H200", "sm_90", H200, 132)
    found = choose.choose(device, RUNG, Problem(3001, 2999, 3003))
    assert found.rule == choose.PREDICTED
    parts = (found.config.SPLIT_K or 1) * (found.config.SLICES or 1) * (found.config.CHAINS or 1)
    assert parts >= partial_accumulators.CHAINS and all(
        (o.config.SPLIT_K or 1) * (o.config.SLICES or 1) * (o.config.CHAINS or 1) >= 4 for o in found.options
    )
    assert all(o.config.CHAINS is None for o in choose.choose(device, RUNG, Problem(3001, 2999, 203)).options)


def test_chains_are_not_free():
    """Where one config, or division of K, needs them and another one does not, the other may take a little longer."""
    device, problem = DeviceInfo("NVIDIA H200", "sm_90", H200, 132), Problem(1408, 1081, 6332)
    found = choose.choose(device, RUNG, problem)
    plain = {
        curve.config: CostModel(curve) for curve in choose.database.load(device.arch).curves if curve.rung == RUNG.name
    }
    seen = set()
    for option in found.options:
        whole = replace(option.config, CHAINS=None, SPLIT_K=1)
        costs = {}
        for parts in splits(whole, problem, device.multiprocessors):
            used = partial_accumulators.shortened(RUNG, replace(whole, SPLIT_K=parts), problem, H200)
            ms = plain[whole]._split(problem, replace(whole, SPLIT_K=parts), device.multiprocessors)
            costs[used] = (partial_accumulators.COST if used.CHAINS else 1.0) * ms
        assert option.ms == min(costs.values()) == costs[option.config]
        seen.add(option.config.CHAINS)
    assert seen == {None, partial_accumulators.CHAINS}
    assert [option.ms for option in found.options] == sorted(option.ms for option in found.options)
