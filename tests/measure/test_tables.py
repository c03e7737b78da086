"""Tables have the same cells in Markdown and on a terminal, aligned as their columns are."""

import pytest

from fastsgemm.measure import tables

COLUMNS = {"\nname": "{name}", "time\nin ms": "{ms:.2f}"}
ROWS = [{"name": "naive", "ms": 12.345}, {"name": "fp16x3", "ms": 1.0}]


def test_markdown_has_words_of_headings_and_aligns_numbers_to_the_right():
    assert tables.markdown(COLUMNS, tables.cells(COLUMNS, ROWS)) == [
        "| name | time in ms |",
        "|---|---:|",
        "| naive | 12.35 |",
        "| fp16x3 | 1.00 |",
    ]


def test_columns_of_text_are_named():
    assert tables.markdown(("a", "b", "c"), [(1, None, "x")], text=("c",)) == [
        "| a | b | c |",
        "|---|---:|---|",
        "| 1 | None | x |",
    ]


def test_a_terminal_has_columns_as_wide_as_their_longest_cell():
    assert tables.plain(COLUMNS, tables.cells(COLUMNS, ROWS)) == [
        "        time",
        "name   in ms",
        "naive  12.35",
        "fp16x3  1.00",
    ]


def test_a_line_ends_with_its_last_cell():
    assert tables.aligned(("rung", "1", ""), (6, 4, 5)) == "rung     1"
    with pytest.raises(ValueError, match="longer"):
        tables.aligned(("rung", "1"), (6, 4, 5))


def test_a_rung_is_named_with_its_number():
    assert (tables.rung_title(1, "naive"), tables.rung_title(None, "cuBLAS")) == ("1 naive", "cuBLAS")
