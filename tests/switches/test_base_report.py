"""What reports of both switches are made of."""

from types import SimpleNamespace

import pytest

from fastsgemm.errors import RecordError
from fastsgemm.switches.base_report import Report, Totals, number, read


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


def line(size, count, flops, reason=""):
    return SimpleNamespace(size=size, count=count, flops=flops, reason=reason)


def test_sizes_are_those_of_all_products_that_have_one():
    tf32 = "TF32 is allowed"
    lines = line("8,8,8", 2, 100), line("64,64,64,NT", 1, 700), line("8,8,8", 1, 200, tf32), line("", 9, 0, "int8")
    report = Report([*lines])
    assert report.sizes == (("64,64,64,NT", 1, 0.7), ("8,8,8", 3, 0.3))
    assert (
        report.table()
        == "by size:\n  64,64,64,NT  1 product, 70.0% of FLOPs\n  8,8,8        3 products, 30.0% of FLOPs"
    )
    assert report.arguments().splitlines()[:2] == ["# 1 product, 70.0% of FLOPs", "--size=64,64,64,NT"]
    many = Report([line(f"{n},1,1", 1, n) for n in range(1, 31)])
    assert many.table().count("\n") == 21 and many.table().endswith("  and 10 sizes more, 11.8% of FLOPs")
    assert many.arguments().count("--size=") == 30
    assert Report([]).table() == Report([]).arguments() == ""


def test_a_file_of_sizes_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "sizes.txt"
    path.write_text(Report([line("64,64,64,NT,x3", 1, 700), line("8,8,8", 12, 100)]).arguments())
    assert read(path) == [("64,64,64,NT,x3", 1), ("8,8,8", 12)]
    path.write_text(Report([]).arguments())
    assert read(path) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8,8,8\n", "above 0 of 0"),
        ("--size=8,8,8\n", "above 0 of 1"),
        ("# 2 products, 50.0% of FLOPs\n--size=8,8,8\n--size=9\n", "above 1 of 2"),
    ],
)
def test_a_file_without_the_number_of_products_is_an_error(tmp_path, text, message):
    path = tmp_path / "sizes.txt"
    path.write_text(text)
    with pytest.raises(RecordError, match=message):
        read(path)


def test_a_file_that_is_missing_or_no_text_is_an_error(tmp_path):
    with pytest.raises(RecordError, match="none cannot be read: No such file"):
        read(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(RecordError, match="binary cannot be read: 'utf-8' codec"):
        read(tmp_path / "binary")
