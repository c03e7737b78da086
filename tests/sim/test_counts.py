"""The counts that the documentation shows are those of the kernels and constants as they are."""

import json
from pathlib import Path

import pytest
from msgspec import convert

from fastsgemm import rungs
from fastsgemm.geometry import variants
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.measure import simulated_ladder
from fastsgemm.measure.counts import Table
from fastsgemm.measure.simulated_ladder import climb
from fastsgemm.problem import Problem
from fastsgemm.sim import Machine

KEPT = Path(__file__).resolve().parents[2] / "docs" / "data" / "counts.json"

pytestmark = pytest.mark.skipif(not KEPT.exists(), reason="docs/ is part of a checkout only")

# The rest depends on the version of the compiler, and registers and occupancy with it.
OF_THE_SOURCE = (
    "loads_a",
    "loads_b",
    "stores_c",
    "thread_fmas",
    "fmas",
    "barriers",
    "divergent_branches",
    "shared_bytes",
)


@pytest.fixture(scope="module")
def kept():
    return convert(json.loads(KEPT.read_text()), Table)


def test_every_rung_is_there_with_the_shipped_constants(kept, data_folder):
    device = Machine(kept.device).device
    assert [row.name for row in kept.rows] == [rung.name for rung in rungs.IEEE if rung.suits(kept.M, kept.N)]
    for row in kept.rows:
        shipped = choose_config(device, rungs.find(row.name), simulated_ladder.TYPICAL).config
        assert row.constants == shipped.constants, f"{row.name}: run make counts"


def test_every_rung_is_counted_on_the_kernel_of_a_large_problem(kept):
    """No tile reaches beyond C, so nothing is guarded or computed in vain."""
    for row in kept.rows:
        rung, config = rungs.find(row.name), rungs.find(row.name).config(**row.constants)
        counted, typical = (
            variants.variant_for(
                rung,
                variants.call_with_swap_ab(rung, variants.dense_call(problem)),
                config,
                database.fitted("sm_90").peeled_tiles,
            )
            for problem in (Problem(kept.M, kept.N, kept.K), simulated_ladder.TYPICAL)
        )
        assert counted == typical, row.name
        assert kept.M % config.BM == kept.N % config.BN == 0, row.name
        assert row.thread_fmas == kept.M * kept.N * kept.K, row.name


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("number", range(sum(rung.suits(4096, 4096) for rung in rungs.IEEE)))
def test_a_climb_counts_the_same(kept, data_folder, number, monkeypatch):
    monkeypatch.setattr(simulated_ladder.ragged, "mismatch", lambda *question: None)  # which is not what is counted
    assert kept.ok
    known = kept.rows[number]
    (row,) = climb(Problem(kept.M, kept.N, kept.K), [rungs.find(known.name)], machine=Machine(kept.device)).rows
    for name in OF_THE_SOURCE:
        assert getattr(row, name) == getattr(known, name), f"{row.name}, {name}: run make counts"
    assert row.shared_loads.words == known.shared_loads.words, f"{row.name}: run make counts"
