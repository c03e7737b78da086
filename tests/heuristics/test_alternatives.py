"""Which way is taken: what packing costs against what it gains."""

import pytest

from fastsgemm import rungs
from fastsgemm.config import PipelinedConfig
from fastsgemm.device import DeviceInfo
from fastsgemm.geometry import variants
from fastsgemm.geometry.layout import LeadingDimension
from fastsgemm.geometry.matrix import Operand
from fastsgemm.heuristics import alternatives, database
from fastsgemm.heuristics.alternatives import Search
from fastsgemm.heuristics.choice import choose
from fastsgemm.heuristics.cost_model import CLOSE, CostModel
from fastsgemm.heuristics.device_database import device_database
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.heuristics.products import Product
from fastsgemm.heuristics.selection import EXACT, PREDICTED, Selection
from fastsgemm.problem import Problem
from fastsgemm.request import Request

CONFIG = PipelinedConfig(BM=64, BN=64, BK=32, TM=4, TN=4, WM=32, WN=64, WNITER=2)
DEVICE = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
BOTH, NEITHER = (True, True), (False, False)


def operand(rows, columns, layout="N", padding=0):
    trans = layout == "T"
    return Operand((rows, columns), LeadingDimension(trans, (rows if trans else columns) + padding))


class Times:
    """What `Search.picks` answers: milliseconds by layout, or by layout and whether M is whole vectors."""

    def __init__(self):
        self.known, self.measured, self.asked = {}, set(), []

    def pick(self, product):
        p = product.problem
        self.asked.append((p, product.narrow))
        keys = (p.layout, p.M % 4 == 0), p.layout
        key = next((key for key in keys if key in self.known), None)
        ms = 100.0 if key is None else self.known[key]
        rule = EXACT if key in self.measured or ("all" in self.measured) else PREDICTED
        return Selection(alternatives.READER, CONFIG, rule, None, ms)


@pytest.fixture
def times(monkeypatch):
    """Let products take these times, and copying 1 ms and a launch of 0.5 ms for each operand of a million elements."""
    found = Times()
    monkeypatch.setattr(alternatives, "_MOST_SHARE", 1e4)  # of times that are much longer than a device's
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


@pytest.mark.parametrize("padding", [0, 1], ids=["whole vectors", "odd lines"])
def test_an_operand_is_packed_where_the_product_gains_two_percent_more_than_the_copy_costs(times, padding):
    for packed in (False, True):
        times.known = {"NN": 102.0, "TN": 102.0 / CLOSE - 1.5 + (-0.1 if packed else 0.1)}  # the copy takes 1.5
        found = take(*square(padding=(padding, 0, 0)))
        assert found.packs == ((True, False) if packed else NEITHER)
        assert found.ms == (times.known["TN"] + 1.5 if packed else 102.0)


def test_both_are_packed_where_that_is_least(times):
    times.known = {"NT": 100.0, "NN": 97.0, "TT": 97.0, "TN": 90.0}
    found = take(*square("NT"))
    assert found.packs == BOTH and found.ms == 93.0  # each has a launch


def test_an_operand_that_lies_as_a_packed_one_is_not_packed(times):
    times.known = {"TN": 50.0, "NN": 100.0}
    assert take(*square("TN")).packed == ""
    assert "B" not in take(*square("TN", (1, 0, 0))).packed


def test_an_odd_leading_dimension_counts_as_narrow_loads(times):
    times.known = {("TN", False): 80.0, ("TN", True): 60.0}
    found = take(*square("TN", (1, 0, 0)))
    assert (found.packed, found.pick.ms) == ("A", 60.0)


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
    monkeypatch.setattr(alternatives, "_MOST_SHARE", 1 / 3)
    typical = 4e9 / device_database(DEVICE).model(alternatives.READER).peak
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


# With the shipped data


def test_a_shipped_prediction_is_packed():
    assert choose(DEVICE, Request(), *variants.dense_operands(Problem(5001, 5003, 5005, "NT"))).packed == "AB"


@pytest.mark.parametrize(
    "problem", [Problem(300, 200, 100), Problem(1800, 1800, 1800), Problem(5001, 5003, 5005, "NT")], ids=str
)
def test_a_choice_takes_one_table(problem, monkeypatch):
    """Of the times of operands as they lie and packed."""
    asked = []
    predict = CostModel.predict
    monkeypatch.setattr(CostModel, "predict", lambda self, products: asked.append(products) or predict(self, products))
    database.forget()
    choose(DEVICE, Request(), *variants.dense_operands(problem))
    assert len(asked) == 1


def test_several_products_have_the_times_that_each_has_alone():
    model = device_database(DEVICE).model(*rungs.DEFAULTS)
    problems = [Problem(17, 4096, 999), Problem(1000, 30, 128, "TT"), Problem(300, 500, 3, "NT"), Problem(64, 64, 9999)]
    products = [Product(one, one.M < 33 or one.N < 33) for one in problems]
    table = model.predict(products)
    for plane, one in enumerate(products):
        together, alone = table.best(plane), model.predict([one]).best()
        assert (together.config, together.ms) == (
            alone.config,
            pytest.approx(alone.ms),
        )
