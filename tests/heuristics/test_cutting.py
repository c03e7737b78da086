"""Where C is cut in two: what both shares take against what the whole does."""

from dataclasses import replace
from itertools import product

import pytest

from fastsgemm import rungs
from fastsgemm.call import dispatch
from fastsgemm.config import PipelinedConfig
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Stored
from fastsgemm.geometry.variants import Operand
from fastsgemm.heuristics import choose, cutting, packing, selection, whole_waves
from fastsgemm.heuristics.cost_model import CLOSE
from fastsgemm.heuristics.database_entries import Curve, Tools
from fastsgemm.problem import LAYOUTS, Problem

CONFIG = PipelinedConfig(BM=64, BN=64, BK=32, TM=4, TN=4, WM=32, WN=64, WNITER=2)
M, N, K = 1000, 900, 1024


class Device:
    name, arch, shared_limit, multiprocessors = "NVIDIA H200", "sm_90", 232448, 132


def operand(rows, columns, layout="N", padding=0):
    trans = layout == "T"
    return Operand((rows, columns), Stored(trans, (rows if trans else columns) + padding))


@pytest.fixture
def times(monkeypatch):
    """Let a product of M x N elements take these milliseconds, or 100, and nothing be worth packing."""
    found = {}

    def answer(device, rung, problem, only=None):
        ms = found.get((problem.M, problem.N), 100.0)
        return choose.Choice(rung or rungs.find("skinny"), CONFIG, choose.PREDICTED, None, ms)

    monkeypatch.setattr(choose, "choose", answer)
    monkeypatch.setattr(choose, "model", lambda device, rung: None)
    monkeypatch.setattr(packing, "_cost", lambda *given: float("inf"))
    return found


def select(shape=(M, N), steps=K, **how):
    a, b, c = operand(shape[0], steps), operand(steps, shape[1]), operand(*shape)
    return selection.select(Device, a, b, c, **how)


def spans(selected, shape=(M, N)):
    return list(selected.cut.spans(shape))


def test_c_is_cut_where_both_shares_take_less_than_the_whole(times):
    times |= {(960, N): 90.0, (40, N): 100 / CLOSE - 90.01}
    found = select()
    assert spans(found) == [((0, 960), (0, N)), ((960, 40), (0, N))]
    assert found.cut.ms == pytest.approx(100 / CLOSE - 0.01) and str(found.cut) == "row 960"
    times[40, N] += 0.02
    assert select().cut is None


@pytest.mark.parametrize("rest", [3.0, 4.0, 6.0])  # milliseconds of the second share of rows
def test_the_quickest_cut_is_taken(times, rest):
    times |= {(960, N): 90.0, (40, N): rest, (M, 896): 90.0, (M, 4): 5.0}
    assert str(select().cut) == ("row 960" if rest < 5.0 else "column 896")
    assert select().cut.ms == 90.0 + min(rest, 5.0)


@pytest.mark.parametrize("unknown", [(960, N), (40, N)])
def test_a_cut_needs_the_times_of_both_shares(times, unknown):
    times |= {(960, N): 90.0, (40, N): 4.0, unknown: None}
    assert select().cut is None


def test_columns_are_divided_as_rows_are(times):
    times |= {(M, 896): 90.0, (M, 4): 4.0}
    assert spans(select()) == [((0, M), (0, 896)), ((0, M), (896, 4))]


def test_a_measured_time_is_given_up_only_for_a_clear_gain(times, monkeypatch):
    answer = choose.choose

    def measured(device, rung, problem, only=None):
        found = answer(device, rung, problem)
        return replace(found, rule=choose.EXACT) if problem.M * problem.N == M * N else found

    monkeypatch.setattr(choose, "choose", measured)
    times |= {(960, N): 90.0, (40, N): 4.1}
    assert select().cut is None
    times[40, N] = 3.9
    assert select().cut is not None


@pytest.fixture
def waves(times, monkeypatch):
    """Return a function that says where a first share of whole waves ends, and how many milliseconds it takes."""

    def offer(axis, end, ms):
        choice = choose.Choice(packing.READER, CONFIG, choose.PREDICTED, None, ms)
        monkeypatch.setattr(whole_waves, "quickest", lambda *given: whole_waves.FirstShare(axis, end, choice))

    return offer


def test_whole_waves_end_with_a_row_or_a_column(times, waves):
    waves(0, 768, 64.0)
    times |= {(232, N): 10.0, (960, N): 88.0, (40, N): 3.0}
    assert spans(select()) == [((0, 768), (0, N)), ((768, 232), (0, N))]
    waves(1, 640, 64.0)
    assert str(select().cut) == "row 960"
    times[M, 260] = 10.0
    assert spans(select()) == [((0, M), (0, 640)), ((0, M), (640, 260))]
    waves(1, 640, 100 / CLOSE - 9.99)
    assert str(select().cut) == "row 960"
    times[960, N] = 100.0
    assert select().cut is None


def test_shares_that_cannot_be_quicker_are_not_asked_for(times, waves, monkeypatch):
    """The second share is taken to need as long for each element as the first, or longer."""
    asked, answer = [], choose.choose
    monkeypatch.setattr(choose, "choose", lambda *given: asked.append(given[2].M) or answer(*given))
    times[500, N] = 1.0
    waves(0, 500, 50 / CLOSE - 0.01)
    assert select().cut is not None and asked.count(500) == 1
    waves(0, 500, 50 / CLOSE + 0.01)
    assert select().cut is None and asked.count(500) == 1


def test_what_a_cut_cannot_help_is_not_cut(times):
    times |= {(960, N): 1.0, (40, N): 1.0}
    assert select().cut is not None
    assert select(extents=(3,)).cut is None  # a batch
    assert select(steps=32).cut is not None
    assert select(steps=31).cut is None  # it waits for the memory
    times |= {(M, N): 0.05, (960, N): 0.01, (40, N): 0.01}
    assert select().cut is not None
    times[M, N] = 0.049  # a launch takes too much of it
    assert select().cut is None


def test_only_the_first_share_reads_packed_operands(times, monkeypatch):
    monkeypatch.setattr(packing, "_cost", lambda fitted, which, *operands: 0.5 if which == (True, True) else 1e9)
    asked = []
    answer = choose.choose

    def choosing(device, rung, problem, only=None):
        asked.append((rung, problem.layout, problem.M))
        return (
            replace(answer(device, rung, problem), ms=99.0) if problem.layout == "TN" else answer(device, rung, problem)
        )

    monkeypatch.setattr(choose, "choose", choosing)
    times |= {(40, N): 3.0}
    monkeypatch.setattr(cutting, "CLOSE", 0.9)
    a, b, c = operand(M, K, padding=1), operand(K, N, "T", padding=1), operand(M, N)
    first, second = dispatch.choose_shares(Device, None, None, a, b, c)
    assert (first.a.padded, first.b.padded, first.rung.name) == (True, True, "pipelined")
    assert (second.a, second.b, second.rung.name) == (a, b, "skinny")
    assert (packing.READER, "TN", 960) in asked and (None, "NT", 40) in asked


@pytest.mark.parametrize(("layout", "of_c", "axis"), [*product(LAYOUTS, "NT", (0, 1))])
def test_the_shares_are_the_problem_in_two(times, layout, of_c, axis):
    at = 960 if axis == 0 else 896
    times |= {(960, N): 1.0, (40, N): 1.0} if axis == 0 else {(M, 896): 1.0, (M, 4): 1.0}
    times |= {(n, m): ms for (m, n), ms in times.items()}  # as a kernel sees a column-major C
    a, b, c = operand(M, K, layout[0], 4), operand(K, N, layout[1], 8), operand(M, N, of_c, 4)
    shares = sorted(dispatch.choose_shares(Device, None, None, a, b, c), key=lambda share: (share.rows, share.columns))
    assert [(share.rows, share.columns)[axis] for share in shares] == [(0, at), (at, c.shape[axis] - at)]
    assert [(share.rows, share.columns)[1 - axis] for share in shares] == [(0, c.shape[1 - axis])] * 2
    for share in shares:
        part_a, part_b, part_c = share.operands(c)
        m, n = share.rows[0], share.columns[0]
        for part, whole, first in ((part_a, a, (m, 0)), (part_b, b, (0, n)), (part_c, c, (m, n))):
            down, right = (1, whole.how.ld) if whole.how.trans else (whole.how.ld, 1)
            assert part.how == whole.how
            assert whole.offset(first) == 4 * (first[0] * down + first[1] * right)
            assert part.misalignment == whole.offset(first) % 16
        assert part_c.shape == (share.rows[1], share.columns[1])
        assert (part_a.shape, part_b.shape) == ((part_c.shape[0], K), (K, part_c.shape[1]))


@pytest.mark.parametrize(
    ("rung", "parts", "together", "multiprocessors", "turned"),
    [
        ("pipelined", 1, 1, 132, True),
        ("pipelined", 2, 1, 132, False),  # adding up parts would delay the other share
        ("skinny", 1, 1, 132, False),  # done too soon to matter
        ("pipelined", 1, 2, 132, False),  # the 225 blocks of the first share leave room for others
        ("pipelined", 1, None, 132, False),  # how many of its blocks fit is unknown
        ("pipelined", 1, 1, 3, False),  # the 15 blocks of the second share are many
    ],
)
def test_a_second_share_of_few_blocks_is_launched_first(
    times, monkeypatch, rung, parts, together, multiprocessors, turned
):
    """Its blocks would crowd on the first multiprocessors that have room."""
    answer, device = choose.choose, type("Device", (Device,), {"multiprocessors": multiprocessors})

    def choosing(device, asked, problem):
        curve = together and Curve("sm_90", "NVIDIA H200", 132, "pipelined", CONFIG, together, (), Tools("", "", ""))
        config = CONFIG.replace(SPLIT_K=parts if problem.M == 40 else 1)
        return replace(answer(device, rungs.find(rung), problem), config=config, evidence=curve)

    monkeypatch.setattr(choose, "choose", choosing)
    times |= {(960, N): 1.0, (40, N): 1.0}
    shares = dispatch.choose_shares(device, None, None, operand(M, K), operand(K, N), operand(M, N))
    assert tuple(share.rows[1] for share in shares) == ((40, 960) if turned else (960, 40))


def test_a_named_rung_and_a_named_config_are_not_cut(times):
    times |= {(960, N): 1.0, (40, N): 1.0}
    a, b, c = operand(M, K), operand(K, N), operand(M, N)
    assert len(dispatch.choose_shares(Device, None, None, a, b, c)) == 2
    assert len(dispatch.choose_shares(Device, rungs.find("pipelined"), CONFIG, a, b, c)) == 1


def test_a_shipped_prediction_is_cut():
    """On an H200 no tiles of one size fill whole waves of 1800 x 1800 elements; those of the first 1664 rows do."""
    selected = selection.select(Device, *variants.dense_operands(Problem(1800, 1800, 1800)))
    assert selected.cut is not None and selected.cut.ms < 0.95 * selected.choice.ms
