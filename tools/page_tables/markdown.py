"""Markdown tables, where a run was made, places in a page, and what stands where nothing was measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fastsgemm.measure.tables import line, markdown

NOT_MEASURED = "*Not measured yet: run `make bench` and then `make tables` on a machine with a device.*"

OF_SEVERAL = ("benchmarks", "cublaslt", "fp16x3", "half", "symmetric")  # NAME-DEVICE.json has another device

Data = dict[str, Any]


def about(run: Data) -> Data:
    """Return where and when a run of pytest-benchmark was made, as `machine` shows it."""
    info = run["machine_info"]["fastsgemm"]
    return {
        "date": run["datetime"][:10],
        "device": info["devices"][0]["name"],
        "driver": info["driver"],
        "nvrtc": info["nvrtc"],
        "packages": run["machine_info"]["packages"],
        **run["machine_info"].get("facts", {}),
    }


def runs(data: Mapping[str, Data | None], name: str) -> Iterator[Data]:
    """Yield the runs of one kind: that of the pages, then those of other devices, in files NAME-DEVICE.json."""
    for file, run in sorted(data.items()):
        if run is not None and (file == name or file.startswith(f"{name}-")):
            yield run


def of_each(measured: Iterable[Data], table: Callable[[Data], str]) -> str:
    """Return a table of each run: first that of the page, then the others, below their device and date."""
    first, *others = measured
    return "\n\n".join([table(first), *(f"On one {run['device']}, {run['date']}:\n\n{table(run)}" for run in others)])


def fill(text: str, contents: Mapping[str, str]) -> str:
    """Return a page with the tables put between their markers, ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``."""
    for name, content in contents.items():
        place = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text = place.sub(lambda match, content=content: f"{match[1]}{content}\n{match[2]}", text)  # type: ignore[misc]
    return text


def table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table whose columns after the first hold numbers; see `fastsgemm.measure.tables.markdown`."""
    return "\n".join(markdown(columns, rows))


def header(first: str, *rest: str) -> list[str]:
    """Return the first two lines of a table whose columns after the first hold numbers."""
    return [line(first, *rest), "|---|" + "---:|" * len(rest)]
