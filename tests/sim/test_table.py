"""The literature's arithmetic, held to what the compiled kernels do."""

import dataclasses

import pytest

from fastsgemm import rungs
from fastsgemm.sim import markdown, table


@pytest.fixture(scope="module")
def rows(configs):
    choices = [(rung, configs[rung.name]) for rung in rungs.RUNGS]
    return {row.rung.name: row for row in table(choices)}


def test_naive_strides_and_coalesced_does_not(rows):
    assert (rows["naive"].sectors_a, rows["naive"].sectors_b, rows["naive"].sectors_c) == (32, 1, 32)
    assert (rows["coalesced"].sectors_a, rows["coalesced"].sectors_b, rows["coalesced"].sectors_c) == (1, 4, 4)


def test_two_global_loads_an_fma_without_tiles(rows):
    for name in ("naive", "coalesced"):
        total = rows[name].report.total
        assert total.loads["A"].requests + total.loads["B"].requests == 2 * total.fmas
        assert total.thread_fmas == 128**3


def test_tiles_read_global_memory_once(rows):
    total = rows["smem_tiled"].report.total
    assert total.loads["A"].bytes == 4 * 128 * 128 * 128 // 32


@pytest.mark.parametrize(
    ("name", "fmas", "words"),
    [("smem_tiled", 1, 2), ("blocktile_1d", 8, 9), ("blocktile_2d", 64, 16), ("vectorized", 64, 16)],
)
def test_shared_words_for_the_fmas(rows, name, fmas, words):
    assert rows[name].fmas_per_word == fmas / words


def test_rung_6_turns_scalar_loads_into_vectors(rows):
    """NVRTC at times splits one of the vectors in two, and not in every run: hence the margin."""
    vectors = rows["vectorized"].report.total.shared_loads
    assert vectors.words == pytest.approx(4 * vectors.requests, rel=0.05)
    assert rows["vectorized"].fmas_per_load == pytest.approx(16, rel=0.05)


def test_rung_6_moves_16_bytes_a_global_load(rows):
    scalar, vector = (rows[name].report.total.loads["A"] for name in ("blocktile_2d", "vectorized"))
    assert scalar.bytes == vector.bytes
    assert scalar.requests == 4 * vector.requests


@pytest.mark.parametrize("wniter", [1, 2, 4])
def test_rung_8_reuses_fragments_across_sub_tiles(wniter, configs):
    config = dataclasses.replace(configs["warptiled"], WM=64, WN=64, TM=4, WNITER=wniter)
    (row,) = table([(rungs.find("warptiled"), config)])
    rows_of_a, columns_of_b = config.wmiter * config.TM, wniter * config.TN
    assert row.fmas_per_word == rows_of_a * columns_of_b / (rows_of_a + columns_of_b)


def test_barriers(rows):
    for name, row in rows.items():
        assert row.barriers == (2 * 128 / row.config.BK if row.config.BK else 0), name


def test_markdown(rows):
    lines = markdown(list(rows.values())).splitlines()
    assert len(lines) == 2 + len(rows)
    assert lines[2].startswith("| 1 naive | 32.0 | 1.0 | 32.0 |")
    assert len({line.count("|") for line in lines}) == 1
