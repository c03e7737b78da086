"""The program that measures curves again, on the fake evaluator."""

import json
from contextlib import nullcontext

import pytest
from msgspec import structs

from fastsgemm.heuristics import curve_fit, curve_problems, database
from fastsgemm.heuristics.database_entries import Content

IN_ORDER = "pipelined", 1024

curves = pytest.importorskip("curves", reason="tests/benchmarks is part of a checkout only")


@pytest.fixture
def measured(evaluator, data_folder, monkeypatch):
    """Return a function that measures the curves of a file of configs, or those that a content has, on the fake."""

    def measured(content, path=None):
        monkeypatch.setattr(curves.device, "open_gpu", lambda ordinal: evaluator.device)
        monkeypatch.setattr(curves.tuner, "evaluating", lambda gpu: nullcontext(evaluator))
        monkeypatch.setattr(curves.tuner, "exclusive_lock", lambda device: nullcontext())
        monkeypatch.setattr(curves.database, "shipped", lambda arch: content)
        return curves.measured(path)

    return measured


@pytest.fixture
def some():
    """One shipped curve of each rung and order of summation that has any, on the fake device."""
    curves = (structs.replace(curve, device="Fake 9000") for curve in database.shipped("sm_90").curves)
    by_rung = {(curve.rung, curve.config.segment): curve for curve in curves}
    assert IN_ORDER in by_rung
    return by_rung


def test_the_configs_that_have_curves_are_measured_again_each_for_its_rung(measured, some):
    """Those of one order of summation too, for which no search space exists."""
    found = measured(Content("sm_90", 232448, (), tuple(some.values()))).curves
    assert {(curve.rung, curve.config) for curve in found} == {(curve.rung, curve.config) for curve in some.values()}
    assert len(found) == len(some) and all(curve.source not in [old.source for old in some.values()] for curve in found)
    for curve in found:
        form = curve_problems.problems_of(curve.config, curve.blocks_per_sm, curve.multiprocessors)
        assert curve.times.keys() == set(form.problems())
        assert len(curve_fit.numbers_of(curve).bandwidth) == 4


def test_curves_of_named_configs_take_the_place_of_those_of_their_rung_alone(measured, some, tmp_path):
    given = some[IN_ORDER].config.replace(STAGES=4)
    path = tmp_path / "configs.json"
    path.write_text(json.dumps([{"rung": "pipelined", "constants": given.constants}]))
    found = measured(Content("sm_90", 232448, (), tuple(some.values())), path).curves
    others = [curve for curve in some.values() if not curve.config.segment]
    assert list(found[:-1]) == others
    assert (found[-1].rung, found[-1].config) == ("pipelined", given)
