"""What the products of a program would take on a device, and what they take with cuBLAS: predicted from their sizes.

Our times are those that `sgemm` compares when it chooses. cuBLAS's follow from them by the measured ratios of the
problems that are nearest to each size.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from msgspec import Struct

from fastsgemm import known_devices, resources, strict_json
from fastsgemm.device import DeviceInfo
from fastsgemm.geometry import variants
from fastsgemm.heuristics.choice import Choice
from fastsgemm.heuristics.explanation import explained
from fastsgemm.measure import tables
from fastsgemm.problem import Problem, octaves, parse
from fastsgemm.request import of_problem, resolve
from fastsgemm.rungs import PRECISIONS

FILE = "ratios.json"  # in docs/data; tools/write_tables.py makes it of the stored runs
NEAREST = 15  # measured problems that speak for a size: held-out ratios erred no less with 11, 21 or 31
_LAYOUT_OCTAVES = 1.0  # what another layout adds to the distance of two problems
_FAR_OCTAVES = 4.0  # from the nearest measured problem
_MOST_SHOWN = 20  # sizes of a table


class Run(Struct, frozen=True):
    """The times of `sgemm` relative to cuBLAS's, on one device."""

    date: str
    ratios: dict[str, float]  # by problem, in the order of its launch


class Measured(Struct, frozen=True):
    """What was measured beside cuBLAS."""

    runs: dict[str, Run]  # by device
    host: str  # where the microseconds of the host were measured
    host_us: list[float]  # that a call of PyTorch's switch takes less than PyTorch's own, by kinds of products


class Spread(NamedTuple):
    """A median between two quartiles."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Size:
    """The products of one size.

    Attributes
    ----------
    size : str
        As ``fastsgemm explain`` takes it.
    calls : int
    ms : dict of str to (float or None)
        Our time of a call by precision; None if no times are known.
    whole_ms : float or None
        That of precision ieee for the whole of a symmetric result; for others as in `ms`.
    cublas_ms : Spread or None
        cuBLAS's time of a call; None where it has no such product, or was measured on no such device.
    octaves : float
        The distance of the nearest problem that was measured; 0 if none was.
    """

    size: str
    calls: int
    ms: dict[str, float | None]
    whole_ms: float | None
    cublas_ms: Spread | None
    octaves: float


@dataclass(frozen=True)
class Prediction:
    """The answer of `predict`; as text it is a table and some sentences.

    Attributes
    ----------
    device : DeviceInfo
    sizes : tuple of Size
    ours : str
        The devices on which our times were measured; empty if no times are known.
    cublas : str
        Where and when cuBLAS was measured; empty if it was on no such device.
    """

    device: DeviceInfo
    sizes: tuple[Size, ...]
    ours: str
    cublas: str

    @property
    def compared(self) -> tuple[Size, ...]:
        """The sizes with a time of cuBLAS's, and hence one of ours."""
        return tuple(size for size in self.sizes if size.cublas_ms is not None)

    @property
    def cublas_ms(self) -> Spread:
        """cuBLAS's time of all products that are compared. The quartiles add up as if all erred to the same side."""
        return Spread(*(sum(s.calls * s.cublas_ms[i] for s in self.sizes if s.cublas_ms) for i in range(3)))

    def ms(self, precision: str) -> float | None:
        """Return our time of all products that are compared; None if there are none, or one's is not known."""
        times = [s.calls * ms for s in self.compared if (ms := s.ms[precision]) is not None]
        return sum(times) if times and len(times) == len(self.compared) else None

    def ratio(self, precision: str) -> Spread | None:
        """Return our time of all products relative to cuBLAS's; None where `ms` is."""
        return _relative(self.ms(precision), self.cublas_ms)

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        ratios = {name: ratio._asdict() for name in PRECISIONS if (ratio := self.ratio(name))}
        sizes = [asdict(s) | {"cublas_ms": s.cublas_ms and s.cublas_ms._asdict()} for s in self.sizes]
        return {"device": self.device.name, "ours": self.ours, "cublas": self.cublas, "ratios": ratios, "sizes": sizes}

    def __str__(self) -> str:
        if not self.sizes:
            return f"nothing to predict for {self.device.name}: there were no products"
        heads = ["size", "calls", *(f"{name}, ms" for name in PRECISIONS)]
        heads += ["cuBLAS, ms", *(f"{name} / cuBLAS" for name in PRECISIONS)] if self.compared else []
        rows = [_cells(size)[: len(heads)] for size in self.sizes[:_MOST_SHOWN]]
        rest = len(self.sizes) - len(rows)
        lines = [f"  {line}" for line in tables.plain(heads, rows)] + [f"  and {rest} more sizes"] * (rest > 0)
        title = f"predicted for {self.device.name}, a call of each size:"
        return "\n".join([title, *lines, *self._of_times(), *self._of_symmetry(), *self._of_the_rest()])

    def _of_times(self) -> Iterator[str]:
        if self.ours not in ("", self.device.name):
            yield f"Our times are carried over from {self.ours}."
        if not self.compared:
            where = "on such products" if self.cublas else f"on {self.device.arch}"
            yield f"cuBLAS was not measured {where}, so nothing says what this program would gain."
        cublas, parts, times = self.cublas_ms, [], []
        for name in PRECISIONS:
            ms, ratio = self.ms(name), self.ratio(name)
            if ms is not None and ratio is not None:
                parts.append(f"{ratio.median:.2f} with {name} ({ratio.low:.2f} to {ratio.high:.2f})")
                times.append(f"{ms:.3g} ms")
        if parts:
            yield (
                f"These products would take {' and '.join(parts)} of cuBLAS's time: {' and '.join(times)} instead of "
                f"{cublas.median:.3g} ms. In brackets: where half of the {NEAREST} problems nearest to each size lay, "
                f"of {self.cublas}."
            )
        far = sum(s.calls * s.cublas_ms.median for s in self.sizes if s.cublas_ms and s.octaves > _FAR_OCTAVES)
        if far:
            yield f"No problem near {far / cublas.median:.0%} of them, by time, was measured, so that is less sure."

    def _of_symmetry(self) -> Iterator[str]:
        symmetric = [(s.calls, s.ms["ieee"], s.whole_ms) for s in self.compared if parse(s.size).symmetric]
        if symmetric:
            ms, whole_ms = (sum(calls * (times[i] or 0.0) for calls, *times in symmetric) for i in range(2))
            yield (
                f"Of A times its transpose one triangle is computed: in {ms:.3g} ms with ieee, where the whole would "
                f"take {whole_ms:.3g} ms."
            )

    def _of_the_rest(self) -> Iterator[str]:
        calls, compared = (sum(size.calls for size in sizes) for sizes in (self.sizes, self.compared))
        if 0 < compared < calls:
            yield f"{calls - compared} of {calls} calls are not compared: neither groups nor 16-bit operands are."
        low, _, high = _quartiles(measured().host_us)
        yield (
            f"If the host is the limit of a PyTorch program, {calls} calls would take {1e-3 * calls * low:.2g} to "
            f"{1e-3 * calls * high:.2g} ms less: {low:.0f} to {high:.0f} us each, as on {measured().host}. "
            "What else the program does takes as long as before, and sizes do not tell how long that is."
        )


def _relative(ms: float | None, cublas: Spread | None) -> Spread | None:
    return None if ms is None or cublas is None else Spread(ms / cublas.high, ms / cublas.median, ms / cublas.low)


def _cells(size: Size) -> tuple[str, ...]:
    """Return the cells of a row; those behind our times are left out where nothing is compared."""
    times = (*(size.ms[name] for name in PRECISIONS), size.cublas_ms and size.cublas_ms.median)
    ratios = [_relative(size.ms[name], size.cublas_ms) for name in PRECISIONS]
    return (
        size.size,
        str(size.calls),
        *("" if ms is None else f"{ms:.4f}" for ms in times),
        *("" if x is None else f"{x.median:.2f} ({x.low:.2f} to {x.high:.2f})" for x in ratios),
    )


def predict(device: DeviceInfo, sizes: Iterable[tuple[str, int]]) -> Prediction:
    """Predict what products would take on a device, ours and cuBLAS's.

    Parameters
    ----------
    device : DeviceInfo
        As `fastsgemm.heuristics.explanation.device_at` returns it.
    sizes : iterable of (str, int)
        Problems as the commands spell them, and how often a program calls each.

    Returns
    -------
    Prediction

    Raises
    ------
    ShapeError
        A size is not spelled so.
    """
    place, run = _run_for(device)
    found = [_size(device, run, size, calls) for size, calls in sizes]
    devices = {evidence: None for _, evidence in found if evidence}
    return Prediction(device, tuple(size for size, _ in found), " and ".join(devices), place)


def _size(device: DeviceInfo, run: Run | None, size: str, calls: int) -> tuple[Size, str]:
    """Return the prediction of a size, and the device on which our time was measured; empty if none is known."""
    problem = parse(size)
    whole = replace(problem, symmetric=False)
    choices = {name: _choice(device, problem, name) for name in PRECISIONS}
    ms, whole_ms = {name: chosen.ms for name, chosen in choices.items()}, _choice(device, whole, PRECISIONS[0]).ms
    evidence = getattr(choices[PRECISIONS[0]].evidence, "device", None) or ""
    was_measured = whole == Problem(whole.M, whole.N, whole.K, whole.layout, whole.batch)  # nothing but float32 was
    if run is None or whole_ms is None or not was_measured:
        return Size(size, calls, ms, whole_ms, None, 0.0), evidence
    spread, distance = nearest(variants.dense_call(whole).problem, run.ratios)
    cublas_ms = Spread(*(whole_ms / ratio for ratio in reversed(spread)))
    return Size(size, calls, ms, whole_ms, cublas_ms, distance), evidence


def _choice(device: DeviceInfo, problem: Problem, precision: str) -> Choice:
    return explained(device, problem, of_problem(resolve(precision=precision), problem)).choice


def nearest(problem: Problem, ratios: Mapping[str, float]) -> tuple[Spread, float]:
    """Return the quartiles of the ratios of the problems nearest to `problem`, and the distance of the nearest."""
    distances = []
    for text, ratio in ratios.items():
        other = _parsed(text)
        distances.append((octaves(problem, other) + _LAYOUT_OCTAVES * (problem.layout != other.layout), ratio))
    chosen = sorted(distances)[:NEAREST]
    return _quartiles(ratio for _, ratio in chosen), chosen[0][0]


def _quartiles(values: Iterable[float]) -> Spread:
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


_parsed = cache(parse)


@cache
def measured() -> Measured:
    """Return the measurements that this version ships."""
    data: Measured = strict_json.decode((resources.folder("docs/data") / FILE).read_bytes(), Measured)
    return data


def _run_for(device: DeviceInfo) -> tuple[str, Run | None]:
    """Return the run of this device, or of one of its architecture, and its place; without one, nothing."""
    runs = measured().runs
    of_arch = [name for name in runs if known_devices.find(name).arch == device.arch]
    name = device.name if device.name in runs else next(iter(of_arch), "")
    if not name:
        return "", None
    return f"{len(runs[name].ratios)} measured on one {name}, {runs[name].date}", runs[name]
