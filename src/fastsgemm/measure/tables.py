"""Tables: in Markdown from a format for each column, and in lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def markdown(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]], text: Iterable[str] = ()) -> list[str]:
    """Return the lines of a table.

    Parameters
    ----------
    columns : mapping
        The format of each column's cells, by its heading: ``{ms:.4g}`` shows what a row has for ``ms``. Lines of a
        heading become words.
    rows : iterable of mapping
    text : iterable of str, optional
        The headings of columns that hold text, besides the first. The others hold numbers.
    """
    left = {next(iter(columns)), *text}
    heads = line(*(" ".join(heading.split()) for heading in columns))
    rule = "|" + "".join("---|" if heading in left else "---:|" for heading in columns)
    return [heads, rule, *(line(*_cells(columns, row)) for row in rows)]


def line(*cells: object) -> str:
    """Return a line of such a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def plain(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the same for a terminal, in columns as wide as they need to be; each heading has as many lines."""
    lines = [*zip(*(heading.split("\n") for heading in columns), strict=True), *(_cells(columns, row) for row in rows)]
    first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
    return [aligned(cells, (first, *(1 + width for width in others))) for cells in lines]


def _cells(columns: Mapping[str, str], row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(cell.format_map(row) for cell in columns.values())


def aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of a terminal: the first cell to the left, the others to the right of their widths."""
    right = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "".join([cells[0].ljust(widths[0]), *right]).rstrip()


def rung_title(number: int | None, name: str) -> str:
    """Return how a table names a rung, with its number, or a library, which has none."""
    return f"{number} {name}" if number else name
