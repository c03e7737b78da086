"""The stored runs: what the files of docs/data and tuning_db hold, and which device a run was made on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from generated import ROOT

from fastsgemm.heuristics.database import file_name

OF_SEVERAL = (
    "benchmarks",
    "cublaslt",
    "fp16x3",
    "grouped",
    "half",
    "symmetric",
    "tensor_order",
    "unknown",
)  # NAME-DEVICE.json has another device

Data = dict[str, Any]
Stored = Mapping[str, Any]  # the content of the files by name; without those that do not exist


def read_data(root: Path = ROOT) -> dict[str, Any]:
    """Return the content of the data files by name."""
    paths = [*sorted((root / "docs" / "data").glob("*.json")), *sorted((root / "tuning_db").glob("sm_*.json"))]
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def runs(data: Stored, name: str) -> Iterator[Data]:
    """Yield the runs of one kind: that of the pages, then those of other devices, in files NAME-DEVICE.json."""
    for file, run in sorted(data.items()):
        if run is not None and (file == name or file.startswith(f"{name}-")):
            yield run


def of_each(measured: Iterable[Data], table: Callable[[Data], str]) -> str:
    """Return a table of each run: first that of the page, then the others, below their device and date."""
    first, *others = measured
    return "\n\n".join([table(first), *(f"On one {run['device']}, {run['date']}:\n\n{table(run)}" for run in others)])


def place(run: Data) -> str:
    """Return device, version of PyTorch and date of a run."""
    return f"one {run['device']}, torch {run['torch']}, {run['date']}"


def about(run: Data) -> Data:
    """Return where and when a run of pytest-benchmark was made, as `fastsgemm.measure.environment` has it."""
    info = run["machine_info"]["fastsgemm"]
    return {
        "date": run["datetime"][:10],
        "device": info["devices"][0]["name"],
        "driver": info["driver"],
        "nvrtc": info["nvrtc"],
        "packages": run["machine_info"]["packages"],
        **run["machine_info"].get("facts", {}),
    }


def file_of(folder: Path, name: str, device: str) -> Path:
    """Return the file for runs on a device: NAME.json, or NAME-DEVICE.json where that of the pages is of another."""
    path = folder / f"{name}.json"
    of_pages = not path.exists() or json.loads(path.read_text(encoding="utf-8"))["device"] == device
    return path if of_pages else folder / f"{name}-{file_name(device)}.json"
