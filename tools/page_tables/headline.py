"""What the first pages say, the speeds of other products than those of `benchmarks`, and where each was measured."""

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
_HEADS = ("product", "problems", "mean speed", "slowest to fastest", "device and date")
_OTHER_HEADS = ("problems", "number", "compared with", "mean speed", "slower on", "slowest", "device and date")


def texts(data: Stored) -> dict[str, str]:
    """Return the headline and its table, the speeds of other products and the table of architectures."""
    run, symmetric = data.get("benchmarks"), data.get("symmetric")
    lines = []
    for place, what, other, relative in _rows(data):
        if relative:
            found = speeds.summary(relative)
            numbers = (f"{found.mean:.2f}", found.lost, f"{found.slowest:.2f}")
            lines.append((what, found.number, other, *numbers, place))
    return {
        "headline": NOT_MEASURED if run is None or symmetric is None else _sentence(run, symmetric),
        "headline-table": table(_HEADS, _first_rows(data), text=_HEADS) if "fp16x3" in data else NOT_MEASURED,
        "other-speeds": table(_OTHER_HEADS, lines, text=_OTHER_HEADS[2::4]) if lines else NOT_MEASURED,
        "supported": _supported(data),
    }


def _first_rows(data: Stored) -> Iterator[tuple[object, ...]]:
    """Yield what is gained most by, of the devices of the pages: a row for each kind of product."""
    split, symmetric, half, order = (data.get(name) for name in ("fp16x3", "symmetric", "half", "tensor_order"))
    found: list[tuple[Data | None, str, str, str, list[float]]] = [
        (split, "A B: `sgemm(A, B)`", f"random, {LARGE}", "cuBLAS FP32", _times_cublas(split)),
        (symmetric, "A Aᵀ: `sgemm(A, A.T)`", "squares and random", "cuBLAS FP32", _of_symmetric(symmetric, "fp16x3")),
        (half, "BF16 or FP16 operands, float32 result", "layers", "a cast and cuBLAS FP32", _of_half(half)),
        (order, "BF16, the same bits in every batch", "layers, 1 to 4096 rows", "cuBLAS BF16", _of_order(order)),
    ]
    for run, what, problems, other, relative in found:
        if run is not None:
            mean, least, most = speeds.summary(relative).mean, min(relative), max(relative)
            of = f"**{mean:.2f}** times {other}"
            yield what, f"{len(relative)} {problems}", of, f"{least:.2f} to {most:.2f}", _place(run)


def _sentence(run: Data, symmetric: Data) -> str:
    """Return the speeds of the default precision, with their losses."""
    every = speeds.summary(speeds.of_rows([*run["random"], *run["large"]]))
    gram = speeds.summary(_of_symmetric(symmetric, "ieee"))
    return (
        f"The default, IEEE float32, has {every.mean:.2f} times the speed of cuBLAS FP32 on {every.number} random "
        f"problems that were never tuned, and {gram.mean:.2f} times on `sgemm(A, A.T)` ({_same(run, symmetric)}). "
        f"**cuBLAS is faster on {every.lost} of the {every.number}**; on the worst of them the speed is "
        f"{every.slowest:.2f}."
    )


def _times_cublas(split: Data | None) -> list[float]:
    return [float(row["times_cublas"]) for row in split["large"]] if split else []


def _of_half(half: Data | None) -> list[float]:
    return [row["us"]["cast, cuBLAS FP32"] / row["us"]["fp16x3"] for row in half["rows"]] if half else []


def _of_symmetric(symmetric: Data | None, precision: str) -> list[float]:
    rows = (*symmetric["sizes"], *symmetric["random"]) if symmetric else ()
    return [row["ms"]["cuBLAS"] / row["ms"][precision] for row in rows]


def _of_order(order: Data | None) -> list[float]:
    rows = [row["ms"] for row in order["rows"] if row["dtype"] == "bfloat16"] if order else []
    return [ms["cublas"] / ms["order"] for ms in rows]


def _same(run: Data, other: Data) -> str:
    """Return the devices and days of two runs."""
    if run["device"] == other["device"]:
        return f"one {run['device']}, {' and '.join(sorted({run['date'], other['date']}))}"
    return f"one {run['device']}, {run['date']}, and one {other['device']}, {other['date']}"


def _rows(data: Stored) -> Iterator[tuple[str, str, str, list[float]]]:
    """Yield device and date, problems, what they are compared with, and the speeds of each row of the table."""
    for run in runs(data, "fp16x3"):
        yield _place(run), f"`fp16x3`, {LARGE}", "cuBLAS FP32", _times_cublas(run)
    for run in runs(data, "half"):
        yield _place(run), "16-bit operands, `fp16x3`", "a cast and cuBLAS FP32", _of_half(run)
    for run in runs(data, "symmetric"):
        for precision in ("ieee", "fp16x3"):
            yield _place(run), f"`sgemm(A, A.T)`, `{precision}`", "cuBLAS FP32", _of_symmetric(run, precision)
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
