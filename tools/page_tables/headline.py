"""What README.md says first: the speeds of each device with their losses, and on what each architecture was tried."""

from __future__ import annotations

from collections.abc import Iterator

from fastsgemm import known_devices
from fastsgemm.measure import speeds
from page_tables.benchmarks import LARGE
from page_tables.markdown import NOT_MEASURED, table
from page_tables.pytorch import step_times
from page_tables.runs import OF_SEVERAL, Data, Stored, runs

_GENERATIONS = {
    "sm_75": "Turing", "sm_80": "Ampere", "sm_86": "Ampere", "sm_87": "Ampere", "sm_89": "Ada", "sm_90": "Hopper",
    "sm_100": "Blackwell", "sm_103": "Blackwell", "sm_110": "Blackwell", "sm_120": "Blackwell", "sm_121": "Blackwell",
}  # fmt: skip
_SIZES = {"launch-bound": "small", "memory-bound": "memory-bound", "compute-bound": "compute-bound"}  # of the table
_HEADS = ("problems", "number", "compared with", "mean speed", "slower on", "slowest", "device and date")


def texts(data: Stored) -> dict[str, str]:
    """Return the headline, its table and the table of architectures."""
    run, split = data.get("benchmarks"), data.get("fp16x3")
    lines = []
    for place, what, other, relative in _rows(data):
        if relative:
            found = speeds.summary(relative)
            numbers = (f"{found.mean:.2f}", found.lost, f"{found.slowest:.2f}")
            lines.append((what, found.number, other, *numbers, place))
    return {
        "headline": NOT_MEASURED if run is None or split is None else _sentence(run, split),
        "headline-table": table(_HEADS, lines) if lines else NOT_MEASURED,
        "supported": _supported(data),
    }


def _sentence(run: Data, split: Data) -> str:
    """Return the numbers of the first paragraph."""
    of_sizes = [_of_size(run, size) for size in _SIZES]
    large, tensor = speeds.of_rows(run["large"]), speeds.summary(_times_cublas(split))
    small, memory, compute, big = (f"**{speeds.summary(group).mean:.2f}**" for group in (*of_sizes, large))
    every = speeds.summary([speed for group in (*of_sizes, large) for speed in group])
    chosen = f"; the heuristics of cuBLAS {run['cublas']} chose its kernels" if "cublas" in run else ""
    return (
        f"On random problems that were never tuned, `sgemm` has {small} times the speed of cuBLAS FP32 if they are "
        f"small, {memory} times if they are memory-bound, {compute} times if they are compute-bound, and {big} times "
        f'from {LARGE}; cuBLAS is faster on {every.lost} of these {every.number}. With `precision="fp16x3"`, '
        f"which gets the accuracy of float32 from FP16 tensor cores, it has **{tensor.mean:.2f}** times that speed "
        f"from {LARGE}; cuBLAS is faster on {tensor.lost} of {tensor.number}. These are geometric means on one "
        f"{_same(run, split)}{chosen}."
    )


def _of_size(run: Data, size: str) -> list[float]:
    return speeds.of_rows([row for row in run["random"] if row["size"] == size])


def _times_cublas(split: Data) -> list[float]:
    return [float(row["times_cublas"]) for row in split["large"]]


def _same(run: Data, split: Data) -> str:
    """Return the devices and days of two runs."""
    if run["device"] == split["device"]:
        return f"{run['device']}, {' and '.join(sorted({run['date'], split['date']}))}"
    return f"{run['device']}, {run['date']}, and with fp16x3 on one {split['device']}, {split['date']}"


def _rows(data: Stored) -> Iterator[tuple[str, str, str, list[float]]]:
    """Yield device and date, problems, what they are compared with, and the speeds of each row of the table."""
    for run in runs(data, "benchmarks"):
        for size, name in _SIZES.items():
            yield _place(run), name, "cuBLAS FP32", _of_size(run, size)
        yield _place(run), f"large, {LARGE}", "cuBLAS FP32", speeds.of_rows(run["large"])
    for run in runs(data, "fp16x3"):
        yield _place(run), f"`fp16x3`, {LARGE}", "cuBLAS FP32", _times_cublas(run)
    for run in runs(data, "half"):
        us = [row["us"] for row in run["rows"]]
        relative = [one["cast, cuBLAS FP32"] / one["fp16x3"] for one in us]
        yield _place(run), "16-bit operands, `fp16x3`", "a cast and cuBLAS FP32", relative
    for run in runs(data, "symmetric"):
        ms = [row["ms"] for row in (*run["sizes"], *run["random"])]
        yield _place(run), "`sgemm(A, A.T)`", "cuBLAS FP32", [one["cuBLAS"] / one["ieee"] for one in ms]
    for (place, kind), steps in step_times(data.get("pytorch")).items():
        for precision in ("ieee", "fp16x3"):
            yield place, f"{kind}, `{precision}`", "PyTorch", [ms["PyTorch"] / ms[precision] for ms in steps]


def _place(run: Data) -> str:
    return f"{run['device']}, {run['date']}"


def _supported(data: Stored) -> str:
    """Return a line for each architecture: on which devices it was measured, and when last."""
    known = known_devices.known()
    measured: dict[str, dict[str, str]] = {}
    for one in _measurements(data):
        arch = known.get(one["device"])
        if arch is None:
            raise ValueError(f"add {one['device']} to src/fastsgemm/known_devices.json")
        dates = measured.setdefault(arch, {})
        dates[one["device"]] = max(one["date"], dates.get(one["device"], ""))
    lines = []
    for arch in dict.fromkeys(known.values()):
        simulated = "; ".join(name for name, of in known.items() if of == arch)
        where = "; ".join(f"{device}, {date}" for device, date in sorted(measured.get(arch, {}).items()))
        lines.append((f"{arch}, {_GENERATIONS[arch]}", simulated, where or "no device"))
    heads = ("architecture", "compiled, and simulated as", "measured on")
    return table(heads, lines, text=heads)


def _measurements(data: Stored) -> Iterator[Data]:
    """Yield all that has a device and a date."""
    for name in OF_SEVERAL:
        yield from runs(data, name)
    yield from (data.get("order") or {}).values()
    yield from (data.get("pytorch") or {}).values()
