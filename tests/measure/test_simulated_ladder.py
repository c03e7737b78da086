"""The literature's arithmetic, held to what the compiled kernels do."""

import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from forced_constants import climb_with
from msgspec import convert

from fastsgemm import rungs
from fastsgemm.errors import ShapeError
from fastsgemm.heuristics import database, database_entries
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.measure import constants, simulated_ladder
from fastsgemm.measure.counts import Table
from fastsgemm.measure.simulated_ladder import climb
from fastsgemm.problem import Problem
from fastsgemm.sim import Machine, Report

SMALL = Problem(128, 128, 32)  # whole tiles of every rung


@pytest.fixture(scope="module")
def configs():
    """The generic constants of every rung, by its name."""
    records = database.load(database_entries.GENERIC).records
    return {record.rung: record.config for record in reversed(records)}  # of one order of summation last


@pytest.fixture(scope="module")
def found(configs):
    """The rungs at whole tiles alone; tests/measure/test_ragged.py is about the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated_ladder.ragged, "mismatch", lambda *question: None)
        return climb_with(configs, SMALL)


@pytest.fixture
def nothing_ragged(monkeypatch):
    """A climb runs its problem alone; tests/measure/test_ragged.py is about the others."""
    monkeypatch.setattr(simulated_ladder.ragged, "mismatch", lambda *question: None)


@pytest.fixture(scope="module")
def rows(found):
    return {row.name: row for row in found.rows}


def test_naive_strides_and_coalesced_does_not(rows):
    def sectors(row):
        return tuple(one.sectors_per_request for one in (row.loads_a, row.loads_b, row.stores_c))

    assert sectors(rows["naive"]) == (32, 1, 32)
    assert sectors(rows["coalesced"]) == (1, 4, 4)


def test_two_global_loads_an_fma_without_tiles(rows):
    for name in ("naive", "coalesced"):
        row = rows[name]
        assert row.loads_a.requests + row.loads_b.requests == 2 * row.fmas
        assert row.thread_fmas == 128 * 128 * 32


def test_tiles_read_global_memory_once(rows):
    assert rows["smem_tiled"].loads_a.bytes == 4 * 128 * 32 * 128 // 32


@pytest.mark.parametrize(
    ("name", "fmas", "words"),
    [("smem_tiled", 1, 2), ("blocktile_1d", 8, 9), ("blocktile_2d", 64, 16), ("vectorized", 64, 16)],
)
def test_shared_words_for_the_fmas(rows, name, fmas, words):
    assert rows[name].fmas_per_word == fmas / words


def test_rung_6_turns_scalar_loads_into_vectors(rows):
    """NVRTC at times splits one or two of 32 vectors in two, and not in every run: hence the margin."""
    vectors = rows["vectorized"].shared_loads
    assert vectors.words == pytest.approx(4 * vectors.requests, rel=2 / 32)
    assert rows["vectorized"].fmas_per_load == pytest.approx(16, rel=2 / 32)


def test_rung_6_moves_16_bytes_a_global_load(rows):
    scalar, vector = (rows[name].loads_a for name in ("blocktile_2d", "vectorized"))
    assert scalar.bytes == vector.bytes
    assert scalar.requests == 4 * vector.requests


@pytest.mark.parametrize("wniter", [2, *(pytest.param(wniter, marks=pytest.mark.slow) for wniter in (1, 4))])
def test_rung_8_reuses_fragments_across_sub_tiles(wniter, configs, nothing_ragged):
    config = dataclasses.replace(configs["warptiled"], WM=64, WN=64, TM=4, WNITER=wniter)
    (row,) = climb_with({"warptiled": config}, SMALL, [rungs.find("warptiled")]).rows
    rows_of_a, columns_of_b = config.wmiter * config.TM, wniter * config.TN
    assert row.fmas_per_word == rows_of_a * columns_of_b / (rows_of_a + columns_of_b)


def test_barriers(rows):
    for name, row in rows.items():
        BK = row.constants.get("BK")
        tiles = 32 / BK if BK else 0
        # Two a tile; with two stages one, one before the first and one after the last.
        assert row.barriers == (tiles + 2 if rungs.find(name).splits else 2 * tiles), name


def test_rung_11_shows_its_kernels_and_its_own_error(found, rows):
    tensor_cores = found.fp16x3
    kernels = {row.name: row for row in tensor_cores.kernels}
    assert list(kernels) == ["split", "fp16x3", "guard_fp16x3"]
    assert kernels["split"].loads.bytes == 2 * 4 * 128 * 32  # each operand once: short lines stay in registers
    assert kernels["guard_fp16x3"].stores.sectors == 0  # nothing was left out
    assert tensor_cores.mismatch is None and 0 < tensor_cores.error != rows["naive"].error
    text = found.text()
    assert f"error {tensor_cores.error:.2g}; its bits are its own" in text
    assert "11 fp16x3       BM=128 BN=128" in text
    assert (kernels["split"].blocks, kernels["split"].loads.sectors) == (12, 1024)


def test_a_wrong_result_of_rung_11_is_seen(monkeypatch):
    def wrong(request, A, B, C, alpha, beta, machine):
        C[...] = A @ B * np.float32(1.001)
        return []

    monkeypatch.setattr(simulated_ladder, "multiply", wrong)
    climbed = climb(Problem(8, 8, 8), [rungs.find("fp16x3")])
    assert not climbed.ok and climbed.fp16x3.error == pytest.approx(1e-3, rel=0.1)
    assert "fp16x3 is WRONG: C[0, 0] is " in climbed.text()


def test_resources_are_those_of_the_cubin_on_the_device(rows):
    assert all(0 < row.registers <= 255 and row.spilled == 0 and 0 < row.occupancy <= 1 for row in rows.values())
    assert rows["smem_tiled"].shared_bytes == 2 * 32 * 32 * 4


def test_without_constants_they_are_those_of_a_large_problem(launchless, monkeypatch):
    asked = []

    def choose(*question):
        asked.append(question)
        return choose_config(*question)

    monkeypatch.setattr(constants, "choose_config", choose)
    machine, rung = Machine("sm_86"), rungs.find("warptiled")
    climbed = climb(Problem(8, 8, 8), [rung], machine)
    assert asked == [(machine.device, rung, Problem(4096, 4096, 4096))]
    assert climbed.rows[0].constants == choose_config(*asked[0]).config.constants
    assert "with the constants for 4096 x 4096 x 4096" in climbed.text()


@pytest.fixture
def launchless(monkeypatch, nothing_ragged):
    """`simulated_ladder.sgemm` with a product by NumPy and the report of a launch that is done once."""
    report = climb_one()
    monkeypatch.setattr(simulated_ladder, "sgemm", lambda rung, config, A, B, machine: (A @ B, report))


def climb_one():
    A = np.ones((8, 8), np.float32)
    _, report = simulated_ladder.sgemm(rungs.find("naive"), None, A, A)
    assert isinstance(report, Report)
    return report


def test_parts_of_k_are_right_but_other_bits(configs, nothing_ragged):
    divided = {"pipelined": configs["pipelined"].replace(SPLIT_K=3)}
    chosen = [rungs.find("naive"), rungs.find("coalesced"), rungs.find("pipelined")]
    climbed = climb_with(configs | divided, Problem(33, 65, 100), chosen)
    assert climbed.ok and all(row.mismatch is None for row in climbed.rows)
    assert "the results of the 2 rungs are the same bits" in climbed.text()
    whole = climb_with(configs, Problem(33, 65, 100), chosen)
    assert whole.rows[2].error != climbed.rows[2].error
    assert "the results of the 3 rungs are the same bits" in whole.text()


@pytest.mark.parametrize("fault", [np.nan, 0.5])
def test_a_wrong_result_is_seen(monkeypatch, launchless, fault):
    right = simulated_ladder.sgemm

    def wrong(rung, *rest, **more):
        C, report = right(rung, *rest, **more)
        C[0, 0] += fault if rung.name == "coalesced" else 0.0
        return C, report

    monkeypatch.setattr(simulated_ladder, "sgemm", wrong)
    climbed = climb(Problem(8, 8, 8), rungs.IEEE[:3])
    assert not climbed.ok and not climbed.identical
    assert [row.mismatch is None for row in climbed.rows] == [True, False, True]
    assert "coalesced is WRONG: C[0, 0] is " in climbed.text() and "NOT the same bits" in climbed.text()
    json.dumps(climbed.json(), allow_nan=False)


@pytest.mark.sampled(every=11)  # of ten: the first
@pytest.mark.parametrize("name", ["warptiled", *(rung.name for rung in rungs.IEEE if rung.name != "warptiled")])
def test_a_rung_takes_less_than_a_gigabyte(name):
    """In a process of its own, so that memory is its own; the compilation is included."""
    script = (
        "from fastsgemm import rungs\nfrom fastsgemm.measure import simulated_ladder\n"
        "from fastsgemm.problem import Problem\n"
        f"simulated_ladder.climb(Problem(128, 128, 128), [rungs.find({name!r})])\n"
        "print(open('/proc/self/status').read())"  # ru_maxrss would begin with what pytest has used
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    kilobytes = int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1])
    assert 50_000 < kilobytes < 1_000_000


def test_a_layout_is_run_as_it_is_stored(configs):
    climbed = climb_with(configs, Problem(33, 65, 40, "TN"), [rungs.find("naive"), rungs.find("coalesced")])
    assert climbed.ok and climbed.layout == "TN" and "33 x 65 x 40, TN," in climbed.heading()
    plain = climb_with(configs, Problem(33, 65, 40), [rungs.find("naive")])
    assert climbed.rows[0].loads_a.sectors < plain.rows[0].loads_a.sectors  # a warp reads a column of A
    assert convert(json.loads(json.dumps(climbed.json())), Table) == climbed


@pytest.mark.parametrize("problem", [Problem(1024, 1024, 1024), Problem(1, 1, 10**7)])
def test_what_takes_too_long_is_refused_before_it_starts(monkeypatch, problem):
    monkeypatch.setattr(simulated_ladder, "sgemm", lambda *given, **named: pytest.fail("it was started"))
    with pytest.raises(ShapeError, match=r"FLOPs in whole tiles, about .* minutes; the limit is 5e\+09"):
        climb(problem)
