"""What reports of both switches are made of."""

from types import SimpleNamespace

import pytest

from fastsgemm.switches.base_report import Report, Totals, number


def test_lines_with_a_reason_were_passed_on():
    lines = [SimpleNamespace(reason=reason) for reason in ("", "an empty operand", "")]
    report = Report(lines)
    assert report.lines == tuple(lines)
    assert report.replaced == (lines[0], lines[2]) and report.passed_on == (lines[1],)


def test_totals_of_each_kind():
    totals = Totals({"mm": (1, 24)})
    totals.add("mm", 2, 48)
    totals.add("dot", 1, 8)
    assert totals == {"mm": (3, 72), "dot": (1, 8)}


@pytest.mark.parametrize(("count", "text"), [(0, "0 products"), (1, "1 product"), (2, "2 products")])
def test_numbers(count, text):
    assert number(count, "product") == text
