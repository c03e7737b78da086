"""Why a problem gets the constants that it gets, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from fastsgemm import arguments, device, known_devices, rungs
from fastsgemm.device import DeviceInfo, info_of
from fastsgemm.errors import ConfigError, DeviceError
from fastsgemm.geometry import variants
from fastsgemm.heuristics import batch_invariant as invariant
from fastsgemm.heuristics import choose, database, fp16x3, selection
from fastsgemm.heuristics.choose import Choice
from fastsgemm.heuristics.cutting import Cut
from fastsgemm.heuristics.database_entries import GENERIC, Content, Record, tflops
from fastsgemm.heuristics.fp16x3 import Fp16x3Choice
from fastsgemm.problem import Problem, checked, spell
from fastsgemm.rungs import Rung

_SHOWN = 4  # alternatives
_UNKNOWN_MULTIPROCESSORS = 108  # of a device that no data describes; only curves look at it


@dataclass(frozen=True, repr=False)
class Explanation:
    """The answer of `explain`; as text it is a few lines.

    Attributes
    ----------
    device : DeviceInfo
    problem : Problem
    choice : Choice
        The rung, the config, the rule, what it rests on, its time, and what else was considered. With precision
        "fp16x3" this is what the IEEE kernels do, or would do.
    fp16x3 : Fp16x3Choice or None
        With that precision: rung 11's config, or why an IEEE kernel is taken.
    packed : tuple of str
        Which of A and B are packed before the product.
    packing_ms : float
        Time that packing takes. The times of `choice` leave it out; the text and `json` include it.
    cut : Cut or None
        How C is cut, if it is. Then `choice` is what the whole product would get, and the time is that of both shares.
    """

    device: DeviceInfo
    problem: Problem
    choice: Choice
    fp16x3: Fp16x3Choice | None = None
    packed: tuple[str, ...] = ()
    packing_ms: float = 0.0
    cut: Cut | None = None

    @property
    def rung(self) -> str:
        """The rung's name."""
        return "fp16x3" if self.fp16x3 is not None and self.fp16x3.config is not None else self.choice.rung.name

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        choice, found = self.choice, self.fp16x3
        asked: dict[str, Any] = {
            "device": self.device.name,
            "arch": self.device.arch,
            "problem": asdict(self.problem),
            "precision": "ieee" if found is None else "fp16x3",
            "rung": self.rung,
        }
        if found is not None:
            asked |= {"why": found.why, "fp16x3_ms": found.ms}
            if found.config is not None:
                return asked | {"constants": found.config.constants, "ms": found.ms, "ieee_ms": found.ieee_ms}
        return asked | {
            "constants": choice.config.constants,
            "rule": choice.rule,
            "evidence": _evidence(choice),
            "packed": list(self.packed),
            "cut": None if self.cut is None else _shares(self.cut, self.problem),
            "ms": self._ms,
            "options": [
                {"constants": option.config.constants, "ms": None if option.ms is None else option.ms + self.packing_ms}
                for option in choice.options
            ],
        }

    @property
    def _ms(self) -> float | None:
        """Measured or predicted time of the product as it is computed."""
        ms = self.choice.ms if self.cut is None else self.cut.ms
        return None if ms is None else ms + self.packing_ms

    def __repr__(self) -> str:
        found = self.fp16x3
        if found is not None and found.config is not None:
            answer = f"{found.config}, {found.why}"
        else:
            answer = f"{self.choice.config}, {self.choice.rule}"
        return (
            f"<Explanation, to be printed: {spell(self.problem)} on {self.device.name} "
            f"({self.device.arch}) gets {self.rung} {answer}>"
        )

    def __str__(self) -> str:
        choice = self.choice
        p = self.problem
        times = "" if p.batch == 1 else f"{p.batch} times "
        head = f"problem    {times}{p.M} x {p.N} x {p.K}, {p.layout}, on {self.device.name} ({self.device.arch})"
        asked = []
        if self.fp16x3 is not None:
            asked = [f"precision  fp16x3: {self.fp16x3.why}"]
            if self.fp16x3.config is not None:
                return "\n".join([head, *asked, "rung       fp16x3", *_of_rung_11(p, self.fp16x3)])
        lines = [
            head,
            *asked,
            f"rung       {self.rung}",
            f"constants  {choice.config}",
            f"rule       {choice.rule}: {_RULES[choice.rule]}",
            f"evidence   {_evidence(choice)}",
        ]
        if self.packed:
            lines.append(f"packed     {' and '.join(self.packed)} first, {self.packing_ms:.4g} ms of the time")
        if self.cut is not None:
            whole = (choice.ms or 0.0) + self.packing_ms
            lines.append(f"cut        C is cut before {self.cut}, because the whole would take {whole:.4g} ms")
            for number, share in enumerate(self.cut.choices, start=1):
                lines.append(f"share {number}    {share.ms:.4g} ms, {share.rule}: {share.rung.name} {share.config}")
        ms = self._ms
        if ms is not None:
            measured = choice.rule == choose.EXACT and not self.packed and self.cut is None
            verb = "measured" if measured else "predicted"
            lines.append(f"time       {ms:.4g} ms, {tflops(p, ms):.4g} TFLOP/s ({verb})")
        others = [option for option in choice.options if option.config != choice.config][:_SHOWN]
        for number, option in enumerate(others):
            head = "others" if number == 0 else ""
            predicted = "" if option.ms is None else f"{option.ms + self.packing_ms:.4g} ms predicted  "
            lines.append(f"{head:10} {predicted}{option.config}")
        return "\n".join(lines)


def _shares(cut: Cut, problem: Problem) -> list[dict[str, Any]]:
    return [
        {
            "rows": list(rows),
            "columns": list(columns),
            "rung": choice.rung.name,
            "constants": choice.config.constants,
            "ms": choice.ms,
        }
        for choice, (rows, columns) in zip(cut.choices, cut.spans((problem.M, problem.N)), strict=True)
    ]


def _of_rung_11(problem: Problem, found: Fp16x3Choice) -> list[str]:
    assert found.config is not None
    constants = " ".join(f"{name}={value}" for name, value in found.config.constants.items())
    lines = [f"constants  {constants}{', swap_ab' if found.trans_c else ''}"]
    if found.ms is not None:
        lines.append(
            f"time       {found.ms:.4g} ms, {tflops(problem, found.ms):.4g} TFLOP/s (predicted, with splitting)"
        )
    return lines


_RULES = {
    choose.EXACT: "this problem was tuned",
    choose.PREDICTED: "of the configs with a measured curve, the first within 2 % of the least predicted time",
    choose.NEAREST: "no times are known here; the record of the nearest problem",
}


def _evidence(choice: Choice) -> str:
    found = choice.evidence
    where = "yours" if found.user else "shipped"
    place = "every architecture" if found.arch == GENERIC else found.device or found.arch
    if isinstance(found, Record):
        at = "" if found.problem is None else f" at {spell(found.problem)}"
        return f"{found.origin} record for {place}{at} ({where}; {found.source})"
    return f"measured times on {place} ({where}; {found.tools})"


def explain(
    M: int,
    N: int,
    K: int,
    layout: str = "NN",
    rung: str | int | Rung | None = None,
    device: int | str = 0,
    precision: str = "ieee",
    batch_invariant: bool = False,
    batch: int = 1,
) -> Explanation:
    """Say which constants `sgemm` uses for a problem, and why.

    Parameters
    ----------
    M, N, K : int
        C is (M, N), A is (M, K), B is (K, N).
    layout : str
        ``NN``, ``NT``, ``TN`` or ``TT``: whether A and B are row-major (N) or column-major (T).
    rung : str or int, optional
        Default: the rung that `sgemm` uses.
    device : int or str
        CUDA's number of a device in this machine, or ``cuda:1``. The name or architecture of a device, such as
        ``"NVIDIA H200"`` or ``"sm_90"``, needs no device.
    precision : str
        ``ieee`` or ``fp16x3``, as in `sgemm`.
    batch_invariant : bool
        As in `sgemm`. It is the same as the rung ``batch_invariant``.
    batch : int
        How many such products one call computes.

    Returns
    -------
    Explanation
        `print` shows it as text.

    Raises
    ------
    ShapeError, UnknownRungError
        An extent or the layout is not valid, or the batch is too large for rung 11; there is no such rung.
    DeviceError
        This machine does not have the device: the message says how to ask about another machine's. Or the device cannot
        run rung 11, which was asked for.
    ConfigError
        Nothing is known of a device of this name or architecture; or the rung cannot be batch-invariant.
    PrecisionError
        `precision` is unknown, or contradicts the rung.
    ArgumentError
        `device` is neither a number nor a name, or `batch_invariant` neither true nor false.
    """
    asked = None if rung is None else rungs.find(rung)
    precision = rungs.precision_of(asked, precision)
    problem = variants.dense_call(checked(Problem(M, N, K, layout, batch))).problem
    device_info = device_at(device)
    if arguments.switch("batch_invariant", batch_invariant) or asked in rungs.IN_ORDER:
        ordered, _ = rungs.batch_invariant(asked, None, precision)
        return Explanation(device_info, problem, invariant.choose(device_info, problem, ordered))
    found = None if precision == "ieee" else _of_tensor_cores(device_info, problem, forced=asked is not None)
    if found is not None:
        asked = None  # an IEEE kernel is one that the heuristics choose
    if asked is None:
        extents = variants.extents_of(problem)
        selected = selection.select(device_info, *variants.dense_operands(problem), extents=extents)
        packed = tuple(name for name, wanted in zip("AB", selected.packed, strict=True) if wanted)
        return Explanation(device_info, problem, selected.choice, found, packed, selected.ms, selected.cut)
    return Explanation(device_info, problem, choose.choose(device_info, asked, problem), found)


def _of_tensor_cores(device_info: DeviceInfo, problem: Problem, forced: bool) -> Fp16x3Choice:
    """Return what a problem gets with precision fp16x3, or raise what `sgemm` raises where rung 11 is asked for."""
    if forced:
        fp16x3.require_tensor_cores(device_info)
        fp16x3.require_batch(problem.batch)
    return fp16x3.choose(device_info, problem, forced=forced)


def device_at(place: int | str) -> DeviceInfo:
    """Return the device that `place` names, as `explain` reads it."""
    place = arguments.place(place)
    if isinstance(place, str) and place.lower() == "sim":
        place = known_devices.wanted()
    if isinstance(place, str) and not device.is_present(place.lower()):
        return _described(place)
    with naming_others():
        return info_of(device.open_gpu(device.ordinal(place)))


@contextmanager
def naming_others() -> Iterator[None]:
    """Add to a `DeviceError` how to name a device that is not in this machine."""
    try:
        yield
    except DeviceError as error:
        raise type(error)(
            f'{error}. To ask about a device that is not in this machine, name it: device="NVIDIA H200" or '
            'device="sm_90" in Python, --device sm_90 on the command line'
        ) from error


def _described(place: str) -> DeviceInfo:
    """Return the device of this name or architecture, from data, without looking for one.

    Raises
    ------
    ConfigError
        Nothing is known of it.
    """
    known = {name: arch for arch in database.architectures() for name in _names(database.load(arch))}
    known |= {name: arch for name, arch in known_devices.known().items() if name not in known}
    arch = known.get(place, place)
    if arch not in database.architectures():
        raise ConfigError(
            f"the database has no device {place!r}; it has {', '.join(known)}, and the architectures "
            f"{', '.join(database.architectures())}; a device in this machine is cuda or cuda:1"
        )
    content = database.load(arch)
    name = place if place in known else next(iter(_names(content)), f"any device of {arch}")
    return DeviceInfo(name, arch, content.shared_limit, _multiprocessors(name, content))


def _names(content: Content) -> list[str]:
    """Return the devices that were measured, those with curves first."""
    devices = [*(curve.device for curve in content.curves), *(record.device for record in content.records)]
    return [name for name in dict.fromkeys(devices) if name]


def _multiprocessors(name: str, content: Content) -> int:
    for curve in content.curves:
        if curve.device == name:
            return curve.multiprocessors
    return known_devices.find(name).multiprocessors if name in known_devices.known() else _UNKNOWN_MULTIPROCESSORS
