"""Why a problem gets the constants that it gets, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fastsgemm import arguments, device, known_devices, rungs
from fastsgemm.device import DeviceInfo, info_of
from fastsgemm.errors import DeviceError
from fastsgemm.geometry import variants
from fastsgemm.heuristics import choice, database, fp16x3
from fastsgemm.heuristics.alternatives import LEAST_GAIN
from fastsgemm.heuristics.choice import Choice
from fastsgemm.heuristics.cost_model import CLOSE
from fastsgemm.heuristics.database_entries import GENERIC, Record, tflops
from fastsgemm.problem import Problem, as_data, checked, dtypes_of, format_problem, of, ragged_of
from fastsgemm.request import Request, of_problem, resolve
from fastsgemm.rungs import SKINNY_IN_ORDER, Rung

_SHOWN = 4  # other ways
_SYMMETRIC = "symmetric  computes one triangle, stores each result twice"
_PREDICTED_TILE = "of the tiles that were measured, the one with the least predicted time"
_RULES = {
    choice.PREDICTED: "of the configs with a measured curve, the first within 2 % of the least predicted time",
    choice.NEAREST: "no times are known here; the record of the nearest problem",
}


@dataclass(frozen=True, repr=False)
class Explanation:
    """The answer of `explain`; as text it is a few lines.

    Attributes
    ----------
    device : DeviceInfo
    problem : Problem
    choice : Choice
        Its rung and config, the rule, what it rests on, and its time.
    precision : str
    ways : tuple of Choice
        The ways that were compared, the one that is taken first.
    evidence : str
        What the choice rests on, in words.
    """

    device: DeviceInfo
    problem: Problem
    choice: Choice
    precision: str = "ieee"
    alternatives: tuple[Choice, ...] = ()
    evidence: str = ""

    @property
    def rung(self) -> str:
        """The rung's name."""
        return self.choice.rung.name

    @property
    def command(self) -> str | None:
        """The command that could improve the choice, to be run on this device; None if no command would."""
        return self._improvement[0]

    @property
    def _improvement(self) -> tuple[str | None, str]:
        """The command, and what it is for, or why there is none."""
        chosen, rung = self.choice, self.choice.rung
        if not self.problem.dtypes.are_float32:
            return None, "tuning takes float32 operands; 16-bit operands use the same constants"
        if chosen.tensor_cores:
            if self._is_of_this_device:
                return None, "its times were measured on this device"
            return "fastsgemm tune --rung fp16x3", "measure its tiles and rates"
        if rung is SKINNY_IN_ORDER or chosen.config.constants.get("SEGMENT"):
            return None, "no command searches the constants of the one order of summation"
        if self.problem.ragged and chosen.rule == choice.PREDICTED and self._is_of_this_device:
            return None, "groups are predicted from times that were measured on this device"
        if not rung.searched:
            return None, f"no command searches the constants of rung {rung.name}"
        if chosen.rule == choice.NEAREST:
            which = "" if rung in rungs.DEFAULTS else f" --rung {rung.name}"
            return f"fastsgemm tune{which}", "measure times, from which every problem is predicted"
        if chosen.rule == choice.EXACT and self._is_of_this_device:
            return None, "this problem was tuned on this device"
        if chosen.rule == choice.PREDICTED and not self._is_of_this_device:
            return "fastsgemm tune --quick", "correct times of another device"
        why = "tune it" if chosen.rule == choice.EXACT else "measure what is predicted here"
        return f"fastsgemm tune --rung {rung.name} --size {format_problem(self.problem)}", why

    @property
    def _is_of_this_device(self) -> bool:
        """Whether what the choice rests on was measured on a device of this name."""
        evidence = self.choice.evidence
        return evidence is not None and evidence.device == self.device.name

    @property
    def _rule(self) -> str:
        """What the rule means, in words."""
        chosen = self.choice
        if chosen.tensor_cores:
            return _PREDICTED_TILE
        if chosen.rule != choice.EXACT:
            return _RULES[chosen.rule]
        where = "this device" if self._is_of_this_device else getattr(chosen.evidence, "device", None)
        return f"this problem was tuned on {where}" if where else "there is a record of this problem"

    @property
    def _origin_of_time(self) -> str:
        """Where the time of the choice is from: only a time of this very device is called measured."""
        chosen = self.choice
        if chosen.tensor_cores:
            return f"predicted, {'operands as they lie' if chosen.direct else 'with splitting'}"
        if chosen.rule != choice.EXACT or chosen.packed:
            return "predicted"
        device = getattr(chosen.evidence, "device", None)
        return "measured" if self._is_of_this_device else f"that of {device}, not measured on this device"

    def _why_not(self, alternative: Choice) -> str:
        """Why a way with a shorter time than that of the choice was not chosen; empty where its time is not shorter."""
        chosen = self.choice
        if alternative.ms is None or chosen.ms is None or alternative.ms >= chosen.ms:
            return ""
        if chosen.tensor_cores:
            return chosen.why
        if chosen.triangle and not alternative.triangle:
            return "does not compute one triangle alone"
        if chosen.rule == choice.EXACT and alternative.rule != choice.EXACT:
            return f"a tuned config is left only for one predicted to take {LEAST_GAIN:.0%} less"
        if alternative.ms * CLOSE >= chosen.ms:
            return f"predictions within {CLOSE - 1:.0%} count as equal"
        return "not compared"

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        chosen = self.choice
        data: dict[str, Any] = {
            "device": self.device.name,
            "arch": self.device.arch,
            "problem": as_data(self.problem),
            "precision": self.precision,
            "rung": self.rung,
            "command": self.command,
        }
        if self.precision != "ieee":
            data |= {"why": chosen.why, "fp16x3_ms": chosen.tensor_ms, "ieee_ms": chosen.ieee_ms}
        return data | {
            "constants": chosen.config.constants,
            "rule": chosen.rule,
            "evidence": self.evidence,
            "triangle": chosen.triangle,
            "packed": list(chosen.packed),
            "ms": chosen.ms,
            "ways": [
                {
                    "way": alternative.name,
                    "ms": alternative.ms,
                    "rung": alternative.rung.name,
                    "constants": alternative.config.constants,
                    "rule": alternative.rule,
                    "why_not": self._why_not(alternative),
                }
                for alternative in self.alternatives
            ],
        }

    def __repr__(self) -> str:
        chosen = self.choice
        answer = f"{chosen.config}, {chosen.why if chosen.tensor_cores else chosen.rule}"
        return (
            f"<Explanation, to be printed: {format_problem(self.problem)} on {self.device.name} "
            f"({self.device.arch}) gets {self.rung} {answer}>"
        )

    def __str__(self) -> str:
        command, why = self._improvement
        improve = f"nothing: {why}" if command is None else f"{why}, on one {self.device.name}: {command}"
        return "\n".join([*self._lines(), f"improve    {improve}"])

    def _lines(self) -> list[str]:
        p, chosen = self.problem, self.choice
        times = "" if p.batch == 1 or p.ragged else f"{p.batch} times "
        groups = f", {p.ragged.extent} in {p.batch} groups" if p.ragged else ""
        types = "" if p.dtypes.are_float32 else f", {p.dtypes.a.numpy_name} by {p.dtypes.b.numpy_name}"
        where = f"{self.device.name} ({self.device.arch})"
        lines = [f"problem    {times}{p.M} x {p.N} x {p.K}, {p.layout}{types}{groups}, on {where}"]
        if self.precision != "ieee":
            lines.append(f"precision  {self.precision}: {chosen.why}")
        lines += [
            f"rung       {self.rung}",
            f"constants  {_constants(chosen)}{', swap_ab' if chosen.trans_c else ''}",
            f"rule       {chosen.rule}: {self._rule}",
            f"evidence   {self.evidence}",
        ]
        if chosen.triangle:
            lines.append(_SYMMETRIC)
        if chosen.packed:
            lines.append(f"packed     {' and '.join(chosen.packed)} first")
        if chosen.ms is not None:
            rate = tflops(p, chosen.ms)
            lines.append(f"time       {chosen.ms:.4g} ms, {rate:.4g} TFLOP/s ({self._origin_of_time})")
        for number, alternative in enumerate(self.alternatives[1 : 1 + _SHOWN]):
            time = "" if alternative.ms is None else f"{alternative.ms:.4g} ms  "
            why = self._why_not(alternative)
            heading, kernel = "others" if number == 0 else "", f"{alternative.rung.name} {alternative.config}"
            lines.append(f"{heading:10} {time}{alternative.name}: {kernel}{f' ({why})' if why else ''}")
        return lines


def _constants(choice: Choice) -> str:
    """Return the constants in words: on rung 11, where every one has a default, also those that have it."""
    if not choice.tensor_cores:
        return str(choice.config)
    return " ".join(f"{name}={value}" for name, value in choice.config.constants.items())


def _evidence(choice: Choice, device: DeviceInfo) -> str:
    evidence = choice.evidence
    assert evidence is not None
    arch, user = database.origin_of(evidence, device.arch)
    where = "yours" if user else "shipped"
    place = "every architecture" if arch == GENERIC and isinstance(evidence, Record) else evidence.device or arch
    if isinstance(evidence, Record):
        at = "" if evidence.problem is None else f" at {format_problem(evidence.problem)}"
        return f"{evidence.origin} record for {place}{at} ({where}; {evidence.source})"
    if evidence.transferred_from is not None:
        return f"times on {evidence.transferred_from}, corrected on {place} ({where}; {evidence.source})"
    of = "" if evidence.device == device.name else ", carried over"
    return f"measured times on {place}{of} ({where}; {evidence.source})"


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
    symmetric: bool = False,
    dtypes: str = "f32xf32",
    ragged: str = "",
) -> Explanation:
    """Say which constants `sgemm` or `grouped_mm` uses for a problem, and why.

    Parameters
    ----------
    M, N, K : int
        C is (M, N), A is (M, K), B is (K, N).
    layout : str
        ``NN``, ``NT``, ``TN`` or ``TT``: whether A and B are row-major (N) or column-major (T). ``SYM``: NT, and B is A
        transposed.
    rung : str or int, optional
        Default: the rung that `sgemm` uses.
    device : int or str
        CUDA's number of a device in this machine, or ``cuda:1``. The name or architecture of a device, such as
        ``"NVIDIA H200"`` or ``"sm_90"``, needs no device.
    precision : str
        ``ieee`` or ``fp16x3``, as in `sgemm`.
    batch_invariant : bool
        As in `sgemm`.
    batch : int
        How many such products one call computes.
    symmetric : bool
        The result is symmetric. With layouts NT and TN, B is A transposed, in the same memory; with NN and TT, `sgemm`
        is called with ``symmetric=True``.
    dtypes : str
        The types of A and B, such as ``bf16xf32``; each is ``f32``, ``bf16`` or ``f16``.
    ragged : str
        ``M``, ``N`` or ``K``: the extent that `grouped_mm` divides into `batch` groups. Default: none.

    Returns
    -------
    Explanation
        `print` shows it as text.

    Raises
    ------
    ShapeError, UnknownRungError
        An extent, the layout, `dtypes` or `ragged` are not valid, the batch is too large for rung 11, or the result is
        symmetric but not square; there is no such rung.
    DeviceError
        This machine does not have the device: the message says how to ask about another machine's. Or nothing is known
        of a device of this name, or it cannot run rung 11, which was asked for.
    ConfigError
        The rung cannot be batch-invariant.
    PrecisionError
        `precision` is unknown, or contradicts the rung.
    ArgumentError
        `device` is neither a number nor a name, or `batch_invariant` or `symmetric` neither true nor false.
    """
    request = resolve(rung, None, precision, batch_invariant)
    problem = of(M, N, K, layout, batch, dtypes_of(dtypes), ragged_of(ragged))
    if arguments.switch("symmetric", symmetric):
        problem = replace(problem, symmetric=True)
    problem = checked(problem)
    if problem.ragged:
        choice.check_grouped(request)
        return explained(device_at(device), problem, request)
    problem = variants.dense_call(problem).problem
    request = of_problem(request, problem)
    device_info = device_at(device)
    if request.tensor_cores and request.rung is not None:  # what `sgemm` refuses where rung 11 is asked for
        fp16x3.require_tensor_cores(device_info)
        fp16x3.require_batch(problem.batch)
    return explained(device_info, problem, request)


def explained(device: DeviceInfo, problem: Problem, request: Request) -> Explanation:
    """Do what `explain` does for a device that is described, not looked up, and a request that is resolved."""
    if problem.ragged:
        alternatives = choice.grouped_alternatives(device, request, problem)
        chosen = alternatives[0]
    else:
        query = device, request, *variants.dense_operands(problem), variants.extents_of(problem)
        chosen, alternatives = choice.choose(*query), choice.alternatives(*query)
    return Explanation(device, problem, chosen, request.precision, alternatives, _evidence(chosen, device))


def device_at(place: int | str) -> DeviceInfo:
    """Return the device that `place` names, as `explain` reads it."""
    place = arguments.place(place)
    if isinstance(place, str) and place.lower() == "sim":
        return info_of(known_devices.simulated())
    if isinstance(place, str) and not device.is_present(place.lower()):
        return info_of(known_devices.find(place))
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
