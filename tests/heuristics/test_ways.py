"""Which way is taken: what packing costs against what it gains, and where C is cut in two."""

from itertools import product

import entries
import pytest

from fastsgemm import rungs
from fastsgemm.config import PipelinedConfig
from fastsgemm.device import DeviceInfo
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import Stored
from fastsgemm.geometry.matrix import Operand
from fastsgemm.heuristics import choice, database, ways
from fastsgemm.heuristics.choice import choose
from fastsgemm.heuristics.cost_model import CLOSE, CostModel
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.heuristics.knowledge import knowledge
from fastsgemm.heuristics.products import Product
from fastsgemm.heuristics.shares import EXACT, PREDICTED, Pick
from fastsgemm.heuristics.ways import Search
from fastsgemm.problem import LAYOUTS, Problem
from fastsgemm.request import Request

CONFIG = PipelinedConfig(BM=64, BN=64, BK=32, TM=4, TN=4, WM=32, WN=64, WNITER=2)
CURVE = entries.curve("pipelined", CONFIG, 1, {})
DEVICE = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
M, N, K = 1000, 900, 1024
BOTH, A_ALONE, NEITHER = (True, True), (True, False), (False, False)


def operand(rows, columns, layout="N", padding=0):
    trans = layout == "T"
    return Operand((rows, columns), Stored(trans, (rows if trans else columns) + padding))


class Times:
    """What `Search.picks` answers: milliseconds by (M, N), by layout or by layout and whether M is whole vectors."""

    def __init__(self):
        self.known, self.measured, self.asked, self.of_share = {}, set(), [], {}

    def pick(self, product):
        p = product.problem
        self.asked.append((p, product.narrow))
        keys = (p.M, p.N), (p.layout, p.M % 4 == 0), p.layout
        key = next((key for key in keys if key in self.known), None)
        ms = 100.0 if key is None else self.known[key]
        rung, config, evidence = self.of_share.get((p.M, p.N), ("pipelined", CONFIG, None))
        rule = EXACT if key in self.measured or ("all" in self.measured) else PREDICTED
        return Pick(rungs.find(rung), config, rule, evidence, ms, float("inf") if ms is None else ms)


@pytest.fixture
def times(monkeypatch):
    """Let products take these times, and copying 1 ms and a launch of 0.5 ms for each operand of a million elements."""
    found = Times()
    monkeypatch.setattr(ways, "_MOST_SHARE", 1e4)  # of times that are much longer than a device's
    monkeypatch.setattr(Search, "picks", lambda self, products: [found.pick(one) for one in products])
    packing = Fitted(packing_ms=0.5, packing_bytes_per_ms=8e6)
    monkeypatch.setattr(database, "fitted", lambda arch: packing)
    database.forget()
    yield found
    database.forget()


def take(a, b, c, extents=(), device=DEVICE):
    database.forget()
    return choose(device, Request(), a, b, c, extents)


def square(layout="NN", padding=(0, 0, 0)):
    return [operand(1000, 1000, letter, more) for letter, more in zip(layout + "N", padding, strict=True)]


# Packing


@pytest.mark.parametrize(("padding", "most"), [(0, 102.0 / CLOSE), (1, 102.0)], ids=["whole vectors", "odd lines"])
def test_an_operand_is_packed_where_the_product_gains_more_than_the_copy_costs(times, padding, most):
    """Whole vectors are packed only for a gain of two percent."""
    for packed in (False, True):
        times.known = {"NN": 102.0, "TN": most - 1.5 + (-0.1 if packed else 0.1)}  # the copy takes 1.5
        found = take(*square(padding=(padding, 0, 0)))
        assert found.shares[0].packed == ((True, False) if packed else NEITHER)
        assert found.ms == (times.known["TN"] + 1.5 if packed else 102.0)


def test_both_are_packed_where_that_is_least(times):
    times.known = {"NT": 100.0, "NN": 97.0, "TT": 97.0, "TN": 90.0}
    found = take(*square("NT"))
    assert found.shares[0].packed == BOTH and found.ms == 93.0  # each has a launch


def test_an_operand_that_lies_as_a_packed_one_is_not_packed(times):
    times.known = {"TN": 50.0, "NN": 100.0}
    assert take(*square("TN")).packed == ""
    assert "B" not in take(*square("TN", (1, 0, 0))).packed


def test_an_odd_leading_dimension_counts_as_narrow_loads(times):
    times.known = {("TN", False): 80.0, ("TN", True): 60.0}
    found = take(*square("TN", (1, 0, 0)))
    assert (found.packed, found.shares[0].ms) == ("A", 60.0)


def test_a_c_that_is_stored_float_by_float_costs_more_where_its_columns_are_packed(times, monkeypatch):
    """The prediction for packed columns is that of a C that is stored 16 bytes at a time."""
    slow = Fitted(packing_ms=0.5, packing_bytes_per_ms=8e6, odd_store_bytes_per_ms=4e6)  # 1 ms for this C
    monkeypatch.setattr(database, "fitted", lambda arch: slow)
    times.known = {"TT": 100.0, "TN": 100.0 / CLOSE - 2.0}
    assert take(*square("TT")).packed == "B"
    assert take(*square("TT", (0, 0, 1))).packed == ""


def test_a_record_is_given_up_only_for_a_clear_gain_or_a_better_record(times):
    times.known, times.measured = {"NN": 100.0, "TN": 93.0}, {"NN"}
    assert take(*square()).packed == ""
    times.known["TN"] = 92.0
    assert take(*square()).packed == "A"
    times.measured, times.known["TN"] = {"all"}, 100 / CLOSE - 1.6
    assert take(*square()).packed == "A"


@pytest.mark.parametrize("share", [0.32, 0.34])
def test_a_copy_of_more_than_a_third_of_the_time_is_not_considered(times, monkeypatch, share):
    """That is the time at half the rate of the quickest config."""
    monkeypatch.setattr(ways, "_MOST_SHARE", 1 / 3)
    typical = 4e9 / knowledge(DEVICE).model(ways.READER).peak
    monkeypatch.setattr(database, "fitted", lambda arch: Fitted(packing_ms=share * typical, packing_bytes_per_ms=1e15))
    times.known = {"NN": 1.0, "TN": 0.1}
    assert take(*square()).packed == ("A" if share < 1 / 3 else "")


def test_without_times_nothing_is_packed_and_a_batch_never(times, monkeypatch):
    times.known = {"NN": None, "TN": 1.0}
    assert take(*square()).packed == "" and take(*square()).ms is None
    times.known["NN"] = 100.0
    assert take(*square()).packed == "A" and take(*square(), extents=(3,)).packed == ""
    monkeypatch.setattr(database, "fitted", lambda arch: Fitted())
    assert take(*square()).packed == ""


def test_a_packed_operand_is_read_by_rung_9_alone(times):
    times.known = {"NN": 100.0, "TN": 1.0}
    take(operand(16, 1000), operand(1000, 1000), operand(16, 1000))
    assert {narrow for p, narrow in times.asked if p.M == 16 and p.layout == "NN"} == {True}
    assert {narrow for p, narrow in times.asked if p.layout == "TN"} == {False}


# Cuts


def cut(shape=(M, N), steps=K, padding=0, **how):
    a, b = operand(shape[0], steps, "T", padding), operand(steps, shape[1])  # no use to pack them
    return take(a, b, operand(*shape), **how)


def spans(choice):
    return [
        (share.rows, share.columns) for share in sorted(choice.shares, key=lambda share: (share.rows, share.columns))
    ]


def test_c_is_cut_where_both_shares_take_less_than_the_whole(times):
    times.known = {(960, N): 90.0, (40, N): 100 / CLOSE - 90.01}
    found = cut()
    assert spans(found) == [((0, 960), (0, N)), ((960, 40), (0, N))] and found.cut == "row 960"
    assert found.ms == pytest.approx(100 / CLOSE - 0.01)
    times.known[40, N] += 0.02
    assert cut().cut == ""


@pytest.mark.parametrize("rest", [3.0, 4.0, 6.0])  # milliseconds of the second share of rows
def test_the_quickest_cut_is_taken(times, rest):
    times.known = {(960, N): 90.0, (40, N): rest, (M, 896): 90.0, (M, 4): 5.0}
    found = cut()
    assert found.cut == ("row 960" if rest < 5.0 else "column 896") and found.ms == 90.0 + min(rest, 5.0)


def test_a_cut_gives_up_a_measured_time_only_for_a_clear_gain(times):
    times.known, times.measured = {(960, N): 90.0, (40, N): 4.1, (M, N): 100.0}, {(M, N)}
    assert cut().cut == ""
    times.known[40, N] = 3.9
    assert cut().cut == "row 960"


def test_a_first_share_without_the_last_wave_is_considered(times):
    """Of 16 x 15 tiles of 64 x 64, 132 multiprocessors have 108 in a second wave: 7 columns of tiles are left out."""
    times.known = {(M, 512): 45.0, (M, 388): 50.0}
    assert spans(cut()) == [((0, M), (0, 512)), ((0, M), (512, 388))]
    times.known[M, 512] = 57.0  # more for each element than the whole takes
    times.asked.clear()
    assert cut().cut == "" and (M, 388) not in {(p.M, p.N) for p, _ in times.asked}


@pytest.mark.parametrize(
    ("shape", "places"),
    [
        ((64 * 12, 64 * 11), []),  # 132 tiles are one wave
        ((64 * 6, 64 * 11), []),  # there is no other wave
        ((64 * 24 + 32, 64 * 11), [(0, 64 * 24)]),  # both places are the same
        ((64 * 25, 64 * 11), [(0, 64 * 24)]),
        ((64 * 11, 64 * 25), [(1, 64 * 24)]),
        ((64 * 12 + 4, 64 * 11 + 8), [(0, 64 * 12), (1, 64 * 11), (0, 64 * 11)]),
        ((64 * 25 + 4, 64 * 11), [(0, 64 * 25), (0, 64 * 24)]),
    ],
)
def test_c_may_be_cut_before_a_whole_edge_and_before_the_last_wave(shape, places):
    whole = Pick(ways.READER, CONFIG, PREDICTED, CURVE, 1.0, 1.0)
    assert Search(knowledge(DEVICE), Request())._places(whole, shape) == places


def test_a_product_whose_tiles_fit_is_not_cut(times):
    """1000 x 832 elements of 16 x 13 tiles: 208 in two waves of 105 are 96 %, in waves of 132 they are 76 %."""
    times.known = {(960, 832): 1.0, (40, 832): 1.0}
    fewer = DeviceInfo(DEVICE.name, DEVICE.arch, DEVICE.shared_limit, 105)
    assert cut((M, 832)).cut == "row 960" and not cut((M, 832), device=fewer).cut


def test_what_a_cut_cannot_help_is_not_cut(times):
    times.known = {(960, N): 1.0, (40, N): 1.0}
    assert cut().cut and not cut(extents=(3,)).cut
    times.known |= {(M, N): 0.05, (960, N): 0.01, (40, N): 0.01}
    assert cut().cut
    times.known[M, N] = 0.049  # a launch takes too much of it
    assert not cut().cut


def test_only_the_first_share_reads_packed_operands(times):
    times.known = {(960, N): 60.0, (40, N): 3.0, "TN": 80.0, "NT": 100.0}
    a, b, c = operand(M, K, padding=1), operand(K, N, "T", padding=1), operand(M, N)
    first, second = take(a, b, c).shares
    assert (first.packed, second.packed) == (BOTH, NEITHER)
    assert {p.layout for p, _ in times.asked if p.M == 40} == {"NT"}


@pytest.mark.parametrize(("layout", "of_c", "axis"), [*product(LAYOUTS, "NT", (0, 1))])
def test_the_shares_are_the_problem_in_two(times, layout, of_c, axis):
    at = 960 if axis == 0 else 896
    halves = {(960, N): 1.0, (40, N): 1.0} if axis == 0 else {(M, 896): 1.0, (M, 4): 1.0}
    times.known = halves | {(n, m): ms for (m, n), ms in halves.items()}  # as a kernel sees a column-major C
    c = operand(M, N, of_c, 4)
    shares = spans(take(operand(M, K, layout[0], 4), operand(K, N, layout[1], 8), c))
    assert [share[axis] for share in shares] == [(0, at), (at, c.shape[axis] - at)]
    assert [share[1 - axis] for share in shares] == [(0, c.shape[1 - axis])] * 2


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
def test_a_second_share_of_few_blocks_is_launched_first(times, rung, parts, together, multiprocessors, turned):
    """Its blocks would crowd on the first multiprocessors that have room."""
    times.known = {(960, N): 1.0, (40, N): 1.0}
    curve = together and entries.curve("pipelined", CONFIG, together, {})
    times.of_share = {
        (960, N): ("pipelined", CONFIG, curve), (40, N): (rung, CONFIG.replace(SPLIT_K=parts), None),
    }  # fmt: skip
    found = cut(device=DeviceInfo(DEVICE.name, DEVICE.arch, DEVICE.shared_limit, multiprocessors))
    assert tuple(share.rows[1] for share in found.shares) == ((40, 960) if turned else (960, 40))


def test_a_named_rung_and_a_named_config_are_taken_as_they_are(times):
    times.known = {(960, N): 1.0, (40, N): 1.0}
    operands = operand(M, K, "T"), operand(K, N), operand(M, N)
    for request in (Request(rungs.find("pipelined")), Request(rungs.find("pipelined"), CONFIG)):
        assert len(choose(DEVICE, request, *operands).shares) == 1


# With the shipped data


def test_a_shipped_prediction_is_cut_and_another_is_packed():
    """On an H200 no tiles of one size fill whole waves of 1800 x 1800 elements; those of the first 1664 rows do."""
    operands = variants.dense_operands(Problem(1800, 1800, 1800))
    found = choose(DEVICE, Request(), *operands)
    lying = next(way for way in choice.ways(DEVICE, Request(), *operands) if way.name == "as they lie")
    assert found.cut and found.ms < 0.95 * lying.ms
    assert choose(DEVICE, Request(), *variants.dense_operands(Problem(5001, 5003, 5005, "NT"))).packed == "AB"


@pytest.mark.parametrize(
    ("problem", "tables"),
    [(Problem(300, 200, 100), 1), (Problem(1800, 1800, 1800), 3), (Problem(5001, 5003, 5005, "NT"), 3)],
    ids=str,
)
def test_a_choice_takes_few_tables(problem, tables, monkeypatch):
    """One for operands as they lie and packed, one for the first shares of cuts, and one for the second shares."""
    asked = []
    predict = CostModel.predict
    monkeypatch.setattr(CostModel, "predict", lambda self, products: asked.append(products) or predict(self, products))
    database.forget()
    choose(DEVICE, Request(), *variants.dense_operands(problem))
    assert 1 <= len(asked) <= tables


def test_a_time_is_no_rank():
    """Where sums have too few chains, a config is ranked by more than its time, which stays what it is."""
    few = Problem(16, 4096, 60000)
    search = Search(knowledge(DEVICE), Request())
    ranked = search.ranking(few)
    penalised = [one for one in ranked if one.cost > one.ms]
    assert penalised and all(one.cost == pytest.approx(1.25 * one.ms) for one in penalised)
    assert ranked == sorted(ranked, key=lambda one: one.cost)


def test_several_products_have_the_times_that_each_has_alone():
    model = knowledge(DEVICE).model(*rungs.DEFAULTS)
    problems = [Problem(17, 4096, 999), Problem(1000, 30, 128, "TT"), Problem(300, 500, 3, "NT"), Problem(64, 64, 9999)]
    products = [Product(one, one.M < 33 or one.N < 33) for one in problems]
    table = model.predict(products)
    for plane, one in enumerate(products):
        together, alone = table.best(plane), model.predict([one]).best()
        assert (together.config, together.ms, together.cost) == (
            alone.config,
            pytest.approx(alone.ms),
            pytest.approx(alone.cost),
        )
