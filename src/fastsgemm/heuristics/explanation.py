"""Why a problem gets the constants that it gets, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastsgemm import device, rungs
from fastsgemm.device import DeviceInfo, info_of
from fastsgemm.errors import ConfigError
from fastsgemm.geometry import variants
from fastsgemm.heuristics import choose, database
from fastsgemm.heuristics.choose import Choice
from fastsgemm.heuristics.database import GENERIC, Record, tflops
from fastsgemm.problem import Problem, checked, spell
from fastsgemm.rungs import Rung

_SHOWN = 4  # alternatives
_UNKNOWN_MULTIPROCESSORS = 108  # of a device that is not there; only curves look at it


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`; as text it is a few lines.

    Attributes
    ----------
    device : Device
    problem : Problem
    choice : Choice
        The rung, the config, the rule, what it rests on, its time, and what else was considered.
    """

    device: DeviceInfo
    problem: Problem
    choice: Choice

    @property
    def rung(self) -> str:
        """The rung's name."""
        return self.choice.rung.name

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        p, choice = self.problem, self.choice
        return {
            "device": self.device.name,
            "arch": self.device.arch,
            "problem": {"M": p.M, "N": p.N, "K": p.K, "layout": p.layout},
            "rung": self.rung,
            "constants": choice.config.constants,
            "rule": choice.rule,
            "evidence": _evidence(choice),
            "ms": choice.ms,
            "options": [{"constants": option.config.constants, "ms": option.ms} for option in choice.options],
        }

    def __str__(self) -> str:
        choice = self.choice
        p = self.problem
        lines = [
            f"problem    {p.M} x {p.N} x {p.K}, {p.layout}, on {self.device.name} ({self.device.arch})",
            f"rung       {self.rung}",
            f"constants  {choice.config}",
            f"rule       {choice.rule}: {_RULES[choice.rule]}",
            f"evidence   {_evidence(choice)}",
        ]
        if choice.ms is not None:
            verb = "measured" if choice.rule == choose.EXACT else "predicted"
            lines.append(f"time       {choice.ms:.4g} ms, {tflops(p, choice.ms):.4g} TFLOP/s ({verb})")
        others = [option for option in choice.options if option.config != choice.config][:_SHOWN]
        for number, option in enumerate(others):
            head = "others" if number == 0 else ""
            predicted = "" if option.ms is None else f"{option.ms:.4g} ms predicted  "
            lines.append(f"{head:10} {predicted}{option.config}")
        return "\n".join(lines)


_RULES = {
    choose.EXACT: "this problem was tuned",
    choose.PREDICTED: "of the configs with a measured curve, the one with the least predicted time",
    choose.NEAREST: "no times are known here; the record of the nearest problem",
}


def _evidence(choice: Choice) -> str:
    found = choice.evidence
    where = "yours" if found.user else "shipped"
    place = "every architecture" if found.arch == GENERIC else found.device or found.arch
    if isinstance(found, Record):
        at = "" if found.problem is None else f" at {spell(found.problem)}"
        return f"{found.origin} record for {place}{at} ({where}; {found.source})"
    return f"{len(found.points)} measured times on {place} ({where}; {found.tools})"


def explain(
    M: int, N: int, K: int, layout: str = "NN", rung: str | int | Rung | None = None, device: int | str = 0
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
        CUDA's number of the device, or an architecture such as ``"sm_90"``, for which no device is needed.

    Returns
    -------
    Explanation
        Text by ``str``.
    """
    problem = variants.dense_call(checked(Problem(M, N, K, layout))).problem
    device_info = device_at(device)
    return Explanation(
        device_info, problem, choose.choose(device_info, None if rung is None else rungs.find(rung), problem)
    )


def device_at(place: int | str) -> DeviceInfo:
    """Return the device with this number, or one of this architecture."""
    return _describe(place) if isinstance(place, str) else info_of(device.open_gpu(place))


def _describe(arch: str) -> DeviceInfo:
    """Return the device of an architecture that most is known about, without looking for one.

    Raises
    ------
    ConfigError
        The database does not know the architecture.
    """
    content = database.load(arch)
    if not content.shared_limit or arch == GENERIC:
        raise ConfigError(f"the database has no architecture {arch!r}; it is written like sm_90")
    for curve in content.curves:
        return DeviceInfo(curve.device, arch, content.shared_limit, curve.multiprocessors)
    name = next((record.device for record in content.records if record.device), f"any device of {arch}")
    return DeviceInfo(name, arch, content.shared_limit, _UNKNOWN_MULTIPROCESSORS)
