"""What every page is made of: tables, their places, and what stands where nothing was measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fastsgemm.measure.tables import markdown

NOT_MEASURED = "*Not measured yet: run `make bench` and then `make tables` on a machine with a device.*"


def table(headings: Iterable[str], rows: Iterable[Iterable[object]], text: Iterable[str] = ()) -> str:
    """Return a table of cells; see `fastsgemm.measure.tables.markdown`."""
    return "\n".join(markdown(headings, rows, text))


def fill(text: str, contents: Mapping[str, str]) -> str:
    """Return a page with the tables put between their markers, ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``."""
    for name, content in contents.items():
        place = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text = place.sub(lambda match, content=content: f"{match[1]}{content}\n{match[2]}", text)  # type: ignore[misc]
    return text
