"""What README.md says first: the speeds of each device with their losses, and on what each architecture was tried."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from fastsgemm import known_devices
from page_tables.benchmarks import LARGE, speeds
from page_tables.markdown import NOT_MEASURED, OF_SEVERAL, Data, header, line, runs
from page_tables.pytorch import step_times

_GENERATIONS = {
    "sm_75": "Turing", "sm_80": "Ampere", "sm_86": "Ampere", "sm_89": "Ada", "sm_90": "Hopper",
    "sm_100": "Blackwell", "sm_120": "Blackwell",
}  # fmt: skip
_SIZES = {"launch-bound": "small", "memory-bound": "memory-bound", "compute-bound": "compute-bound"}  # of the table


def texts(data: Mapping[str, Data | None]) -> dict[str, str]:
    """Return the headline, its table and the table of architectures.

    Parameters
    ----------
    data : mapping
        As `write_tables.read_data` returns it.
    """
    run, split = data["benchmarks"], data["fp16x3"]
    rows = [*_rows(data)]
    return {
        "headline": NOT_MEASURED if run is None or split is None else _sentence(run, split),
        "headline-table": "\n".join(_table(rows)) if rows else NOT_MEASURED,
        "supported": "\n".join(_supported(data)),
    }


def _sentence(run: Data, split: Data) -> str:
    """Return the numbers of the first paragraph."""
    random = [speeds([row for row in run["random"] if row["size"] == size]) for size in _SIZES]
    large = speeds(run["large"])
    small, memory, compute, big = (f"**{statistics.geometric_mean(group):.2f}**" for group in (*random, large))
    every = [*(speed for group in random for speed in group), *large]
    tensor = [float(row["times_cublas"]) for row in split["large"]]
    chosen = f"; the heuristics of cuBLAS {run['cublas']} chose its kernels" if "cublas" in run else ""
    return (
        f"On random problems that were never tuned, `sgemm` has {small} times the speed of cuBLAS FP32 if they are "
        f"small, {memory} times if they are memory-bound, {compute} times if they are compute-bound, and {big} times "
        f'from {LARGE}; cuBLAS is faster on {_lost(every)} of these {len(every)}. With `precision="fp16x3"`, which '
        f"gets the accuracy of float32 from FP16 tensor cores, it has **{statistics.geometric_mean(tensor):.2f}** "
        f"times that speed from {LARGE}; cuBLAS is faster on {_lost(tensor)} of {len(tensor)}. These are geometric "
        f"means on one {_same(run, split)}{chosen}."
    )


def _same(run: Data, split: Data) -> str:
    """Return the devices and days of two runs."""
    if run["device"] == split["device"]:
        return f"{run['device']}, {' and '.join(sorted({run['date'], split['date']}))}"
    return f"{run['device']}, {run['date']}, and with fp16x3 on one {split['device']}, {split['date']}"


def _lost(ratios: Sequence[float]) -> int:
    return sum(speed < 1.0 for speed in ratios)


def _rows(data: Mapping[str, Data | None]) -> Iterator[tuple[str, str, str, list[float]]]:
    """Yield device and date, problems, what they are compared with, and the speeds of each row of the table."""
    for run in runs(data, "benchmarks"):
        for size, name in _SIZES.items():
            yield _place(run), name, "cuBLAS FP32", speeds([row for row in run["random"] if row["size"] == size])
        yield _place(run), f"large, {LARGE}", "cuBLAS FP32", speeds(run["large"])
    for split in runs(data, "fp16x3"):
        large = [float(row["times_cublas"]) for row in split["large"]]
        yield _place(split), f"`fp16x3`, {LARGE}", "cuBLAS FP32", large
    for half in runs(data, "half"):
        us = [row["us"] for row in half["rows"]]
        ratios = [one["cast, cuBLAS FP32"] / one["fp16x3"] for one in us]
        yield _place(half), "16-bit operands, `fp16x3`", "a cast and cuBLAS FP32", ratios
    for symmetric in runs(data, "symmetric"):
        ms = [row["ms"] for row in (*symmetric["sizes"], *symmetric["random"])]
        yield _place(symmetric), "`sgemm(A, A.T)`", "cuBLAS FP32", [one["cuBLAS"] / one["ieee"] for one in ms]
    for (place, kind), steps in step_times(data["pytorch"]).items():
        for precision in ("ieee", "fp16x3"):
            yield place, f"{kind}, `{precision}`", "PyTorch", [ms["PyTorch"] / ms[precision] for ms in steps]


def _place(data: Data) -> str:
    return f"{data['device']}, {data['date']}"


def _table(rows: Sequence[tuple[str, str, str, list[float]]]) -> list[str]:
    lines = header("problems", "number", "compared with", "mean speed", "slower on", "slowest", "device and date")
    for place, what, other, ratios in rows:
        if ratios:
            mean, slowest = f"{statistics.geometric_mean(ratios):.2f}", f"{min(ratios):.2f}"
            lines.append(line(what, len(ratios), other, mean, _lost(ratios), slowest, place))
    return lines


def _supported(data: Mapping[str, Data | None]) -> Iterator[str]:
    """Yield a line for each architecture: on which devices it was measured, and when last."""
    known = known_devices.known()
    measured: dict[str, dict[str, str]] = {}
    for one in _measurements(data):
        arch = known.get(one["device"])
        if arch is None:
            raise ValueError(f"add {one['device']} to src/fastsgemm/known_devices.json")
        dates = measured.setdefault(arch, {})
        dates[one["device"]] = max(one["date"], dates.get(one["device"], ""))
    yield from ("| architecture | compiled, and simulated as | measured on |", "|---|---|---|")
    for arch in dict.fromkeys(known.values()):
        simulated = "; ".join(name for name, of in known.items() if of == arch)
        where = "; ".join(f"{device}, {date}" for device, date in sorted(measured.get(arch, {}).items()))
        yield line(f"{arch}, {_GENERATIONS[arch]}", simulated, where or "no device")


def _measurements(data: Mapping[str, Data | None]) -> Iterator[Data]:
    """Yield all that has a device and a date."""
    for name in OF_SEVERAL:
        yield from runs(data, name)
    yield from (data["order"] or {}).values()
    yield from (data["pytorch"] or {}).values()
