"""Tables: the cells of rows by a format for each column, shown in Markdown and in lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def cells(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row.

    Parameters
    ----------
    columns : mapping
        The format of each column by its heading: ``{ms:.4g}`` shows what a row has for ``ms``.
    rows : iterable of mapping
    """
    for row in rows:
        yield tuple(cell.format_map(row) for cell in columns.values())


def markdown(headings: Iterable[str], rows: Iterable[Iterable[object]], text: Iterable[str] = ()) -> list[str]:
    """Return the lines of a table of cells. The first column and those with headings in `text` are no numbers."""
    heads = [" ".join(heading.split()) for heading in headings]
    rule = "".join("---|" if heading in (heads[0], *text) else "---:|" for heading in heads)
    return [_line(heads), f"|{rule}", *map(_line, rows)]


def _line(row: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, row))} |"


def plain(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the table for a terminal, with minimal column widths. All headings have the same number of lines."""
    lines = [*zip(*(heading.split("\n") for heading in headings), strict=True), *rows]
    first, *rest = (max(map(len, column)) for column in zip(*lines, strict=True))
    return [aligned(row, (first, *(1 + width for width in rest))) for row in lines]


def aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line for a terminal: the first cell left-aligned, the others right-aligned in their widths."""
    right = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return "".join([row[0].ljust(widths[0]), *right]).rstrip()


def rung_title(number: int | None, name: str) -> str:
    """Return the title of a rung, with its number, or of a library, which has none."""
    return f"{number} {name}" if number else name
