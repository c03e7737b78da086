"""How many chains make up a sum where nobody said."""

from dataclasses import replace

import numpy as np
import pytest
import scalar_cost_model
from msgspec import structs

from fastsgemm import rungs
from fastsgemm.config import PipelinedConfig
from fastsgemm.device import DeviceInfo
from fastsgemm.geometry.grid import chain, split
from fastsgemm.heuristics import database, database_entries, partial_accumulators
from fastsgemm.heuristics.alternatives import Search
from fastsgemm.heuristics.choice import PREDICTED, choose_config
from fastsgemm.heuristics.cost_model import CostModel, splits
from fastsgemm.heuristics.curve_fit import fit
from fastsgemm.heuristics.device_database import device_database
from fastsgemm.heuristics.products import Product
from fastsgemm.problem import LAYOUTS, Problem
from fastsgemm.request import Request

H200 = 232448
PIPE = PipelinedConfig(
    64, 64, 16, 4, 4, 32, 32, 2, GROUP_M=8, MIN_BLOCKS=1, ORDER=1, FRAGMENTS=2, CP_ASYNC=1, SPREAD=2, SPLIT_K=1
)
FITTED = database.fitted("sm_90")
RUNG = rungs.find("pipelined")


@pytest.mark.parametrize(
    ("K", "expected"), [(0, 1), (1, 1), (512, 1), (513, 2), (1024, 2), (1025, 3), (7681, 16), (8192, 16), (10**6, 16)]
)
def test_no_chain_is_longer_than_512_steps_unless_that_takes_more_than_16(K, expected):
    assert partial_accumulators.chains_needed(K) == expected


@pytest.mark.parametrize(
    ("needed", "change", "expected"),
    [
        (1, {}, 1),
        (2, {}, 2),
        (5, {}, 5),
        (16, {}, 16),
        (33, {}, 16),  # no more are used
        (33, {"PARTIAL_ACCUMULATORS": 2}, 2),  # it was said
        (4, {"SPLIT_K": 4}, 1),  # shared out among blocks
        (5, {"SPLIT_K": 4}, 2),
        (4, {"SPLIT_K": 2, "SLICED_K": 2}, 1),  # and threads
        (16, {"SPLIT_K": 2, "SLICED_K": 2}, 4),
        (20, {"SPLIT_K": 300}, 1),  # 1000 steps are 63 tiles
    ],
    ids=str,
)
def test_a_config_gets_the_chains_that_it_lacks(needed, change, expected, monkeypatch):
    monkeypatch.setattr(partial_accumulators, "CHAIN", -(-1000 // needed))
    given = replace(PIPE, **change)
    found = partial_accumulators.shortened(given, 1000, H200)
    assert expected == found.PARTIAL_ACCUMULATORS
    assert replace(found, PARTIAL_ACCUMULATORS=given.PARTIAL_ACCUMULATORS) == given


@pytest.mark.parametrize(
    ("BK", "parts", "K", "several"),
    [(8, 1, 31, False), (8, 1, 32, True), (16, 1, 31, False), (16, 1, 32, True), (64, 1, 127, False),
     (64, 1, 128, True), (64, 2, 128, False), (64, 2, 129, True), (64, 2, 256, True)],
)  # fmt: skip
def test_a_part_that_is_too_short_for_a_second_chain_gets_no_accumulators(BK, parts, K, several, monkeypatch):
    """They would cost time and make no second chain of 16 steps and whole tiles."""
    monkeypatch.setattr(partial_accumulators, "CHAIN", 1)
    given = replace(PIPE, BK=BK, SPLIT_K=parts)
    used = partial_accumulators.shortened(given, K, H200)
    assert (used.PARTIAL_ACCUMULATORS > 1) is several
    whole_tiles = min(K, split(given, K)[1]) // BK * BK
    assert (2 * chain(replace(given, PARTIAL_ACCUMULATORS=16), K) <= whole_tiles) is several


def summed(a, b, chains):
    """Return the sums of products in so many chains of FMAs of equal length, whose sums are added in their order."""
    total = None
    for part in np.array_split(np.arange(a.shape[1]), chains):
        chain = np.zeros(a.shape[0], np.float32)
        for k in part:  # a double has room for the product, and rounds it with the sum nearly always as an FMA does
            chain = (a[:, k].astype(np.float64) * b[:, k] + chain).astype(np.float32)
        total = chain if total is None else total + chain
    return total


@pytest.mark.parametrize("K", [640, 2560])
@pytest.mark.parametrize("chains", [1, 4, 9])
def test_the_error_of_a_sum_falls_with_the_root_of_its_chains(K, chains):
    """The rule rests on this: a sum of K steps in n chains errs like 0.3 u sqrt(K / n)."""
    generator = np.random.default_rng(K)
    a, b = generator.standard_normal((2, 4000, K)).astype(np.float32)
    exact = np.einsum("ij,ij->i", a.astype(np.float64), b.astype(np.float64))
    error = np.linalg.norm(summed(a, b, chains) - exact) / np.linalg.norm(exact)
    assert error == pytest.approx(0.3015 * 2.0**-24 * (K / chains) ** 0.5, rel=0.08)


@pytest.mark.parametrize(
    ("problem", "of_cublas", "most"),
    [
        (Problem(836, 2579, 4338, "NT"), 4.21e-7, 1.2),
        (Problem(3512, 248, 7696, "TT"), 5.26e-7, 1.2),
        (Problem(7168, 7168, 7168), 1.52e-6, 1.2),
        (Problem(5120, 5120, 5120, "TN"), 7.41e-7, 1.2),
        (Problem(736, 688, 1568, "TN"), 2.74e-7, 1.31),  # cuBLAS shares out K of a C that does not fill the device
    ],
    ids=str,
)
def test_choices_err_little_more_than_cublas(problem, of_cublas, most):
    """The errors of cuBLAS were measured on an H200; ours follows from the number of chains."""
    config = choose_config(DeviceInfo("NVIDIA H200", "sm_90", H200, 132), RUNG, problem).config
    chains = split(config, problem.K)[0] * config.SLICED_K * config.PARTIAL_ACCUMULATORS
    assert 0.3015 * 2.0**-24 * (problem.K / chains) ** 0.5 <= most * of_cublas


def test_sums_that_do_not_fit_into_shared_memory_stay_one_chain():
    """The two stages of this tile take 17,408 bytes and the sums 16,384."""
    K, need = 2560, 17408 + 16384
    assert replace(PIPE, PARTIAL_ACCUMULATORS=4).shared_bytes == need
    assert partial_accumulators.shortened(PIPE, K, need).PARTIAL_ACCUMULATORS > 1
    assert partial_accumulators.shortened(PIPE, K, need - 1) == PIPE
    [broken] = RUNG.violations(replace(PIPE, PARTIAL_ACCUMULATORS=4), need - 1)
    assert broken.quantity.startswith("shared memory of a block") and "PARTIAL_ACCUMULATORS" in broken.quantity
    assert (broken.limit, broken.value) == (f"at most {need - 1} bytes", f"{need} bytes")


@pytest.mark.parametrize("rung", ["vectorized", "warptiled", "skinny"])
def test_other_rungs_have_no_such_constant(rung):
    given = next(r.config for r in database.shipped(database_entries.GENERIC).records if r.rung == rung)
    assert partial_accumulators.shortened(given, 1000, H200) == given


def ranking(device, problem):
    return Search(device_database(device), Request(RUNG)).ranking(problem)


def test_the_choice_for_an_untuned_problem_has_short_chains():
    """One that was tuned gets what was found."""
    device = DeviceInfo("NVIDIA H200", "sm_90", H200, 132)
    found = choose_config(device, RUNG, Problem(3001, 2999, 3003))
    assert found.rule == PREDICTED
    needed = partial_accumulators.chains_needed(3003)
    assert needed > 1 and all(
        needed <= one.SPLIT_K * one.SLICED_K * one.PARTIAL_ACCUMULATORS
        for one in (found.config, *(option.config for option in ranking(device, Problem(3001, 2999, 3003))))
    )
    assert all(one.config.PARTIAL_ACCUMULATORS == 1 for one in ranking(device, Problem(3001, 2999, 203)))


def test_chains_cost_what_was_measured_in_a_layout_or_else_what_they_cost_on_the_architecture():
    shipped = next(curve for curve in database.shipped("sm_90").curves if curve.rung == RUNG.name)
    costs = dict(zip(LAYOUTS, (0.0, 1.5, 0.0, 2.5), strict=True))
    model = CostModel([fit(structs.replace(shipped, accumulators_cost=[*costs.values()]))], 132, H200, FITTED)
    for layout, own in costs.items():
        problem = Problem(4096, 4096, 4096, layout)
        (found,), one_chain = (
            model.predict([Product(problem, True)]).ranking(),
            {parts: ms for _, parts, ms in model.times(problem)},
        )
        factor = scalar_cost_model.accumulators_factor(found.config, FITTED, own)
        assert factor > 1 and found.ms == pytest.approx(factor * one_chain[found.config.SPLIT_K])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chains_are_not_free(layout):
    """Where one config, or division of K, needs them and another one does not, the other may take a little longer."""
    device, problem = DeviceInfo("NVIDIA H200", "sm_90", H200, 132), Problem(1408, 1081, 6332, layout)
    options = ranking(device, problem)
    plain = {
        curve.config: scalar_cost_model.CostModel(curve)
        for curve in database.load(device.arch).curves
        if curve.rung == RUNG.name and not curve.config.segment
    }
    seen = set()
    for option in options:
        whole = replace(option.config, PARTIAL_ACCUMULATORS=1, SPLIT_K=1)
        costs = {}
        for parts in splits(whole, problem, device.multiprocessors):
            used = partial_accumulators.shortened(replace(whole, SPLIT_K=parts), problem.K, H200)
            ms = plain[whole].predict_split(problem, replace(whole, SPLIT_K=parts), device.multiprocessors)
            own = plain[whole].accumulators_costs[problem.layout]
            costs[used] = scalar_cost_model.accumulators_factor(used, FITTED, own) * ms
        # The numbers of a curve have 7 digits, those of the scalar model all.
        assert option.ms == pytest.approx(costs[option.config], rel=1e-5)
        assert costs[option.config] == min(costs.values())
        seen.add(option.config.PARTIAL_ACCUMULATORS)
    assert len(seen) > 1
    assert [option.ms for option in options] == sorted(option.ms for option in options)
