"""The plan of a tuning run: its device, problems and search spaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastsgemm import arguments, rungs
from fastsgemm.errors import ArgumentError, ConfigError, ShapeError
from fastsgemm.geometry.variants import dense_call
from fastsgemm.heuristics import database
from fastsgemm.heuristics.fp16x3 import require_tensor_cores, supported
from fastsgemm.problem import Problem, checked, format_problem, parse, require_plain
from fastsgemm.rungs import Rung
from fastsgemm.tuning.candidates import of_space
from fastsgemm.tuning.spaces import SPACES, Space

if TYPE_CHECKING:
    from fastsgemm.device import DeviceInfo

FP16X3 = "fp16x3"  # rung 11, which has no search space


@dataclass(frozen=True)
class RunPlan:
    """The plan of a tuning run."""

    device: DeviceInfo
    # The problems that the caller named. If empty, the standard set of each space is tuned and curves are measured; a
    # quick run corrects curves.
    problems: tuple[Problem, ...]
    spaces: tuple[Space, ...]  # of the rungs that are tuned
    quick: bool  # whether only the quick candidates of each space are tried
    rates: bool = False  # whether the rates of rung 11 are measured or corrected, which all problems share

    def of(self, space: Space) -> tuple[Problem, ...]:
        """Return the problems that are tuned for the rung of a space.

        If several rungs are tuned, each gets only the problems that suit it, and those that `sgemm` does not use by
        default get no batches.
        """
        if not self.problems:
            return () if self.corrects(space) else space.problems
        rung = rungs.find(space.rung)
        suited = tuple(
            problem
            for problem in self.problems
            if rung.suits(problem.M, problem.N) and (problem.batch == 1 or rung in rungs.DEFAULTS)
        )
        return suited if len(self.spaces) > 1 else self.problems

    def corrects(self, space: Space) -> bool:
        """Whether curves of the rung of a space are corrected, and no problem is tuned."""
        return self.quick and not self.problems and rungs.find(space.rung) in rungs.DEFAULTS

    @property
    def everything(self) -> list[str]:
        """The spelling of every problem of all spaces."""
        return list(dict.fromkeys(format_problem(problem) for space in self.spaces for problem in self.of(space)))

    def json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "device": self.device.name,
            "arch": self.device.arch,
            "shared_limit": self.device.shared_limit,
            "problems": self.everything,
            "candidates": {
                space.rung: len(of_space(space, self.device.shared_limit, self.quick)) for space in self.spaces
            },
            "fp16x3": self.rates,
        }

    def __str__(self) -> str:
        lines = [f"{self.device.name}, {self.device.arch}, {self.device.shared_limit} bytes of shared memory per block"]
        many = len(self.everything)
        if many:
            lines.append(f"{many} problem{'s' * (many != 1)}: " + "  ".join(self.everything))
        for space in self.spaces:
            count = len(of_space(space, self.device.shared_limit, self.quick))
            what = "configs, four times of each" if self.corrects(space) else "candidates"
            lines.append(f"rung {space.rung}: {count} {what}{' of a quick run' if self.quick else ''}")
        if self.rates and self.quick:
            lines.append(f"rung {FP16X3}: three times, from which those of all tiles follow")
        elif self.rates:
            tiles = database.rates(self.device.arch).all_tiles
            lines.append(f"rung {FP16X3}: the times of {len(tiles)} tiles, and the rates of its other kernels")
        return "\n".join(lines)


def tunable() -> tuple[str, ...]:
    """Return the names of the rungs that can be tuned."""
    return (*SPACES, FP16X3)


def plan_run(
    device_info: DeviceInfo,
    shapes: Iterable[str | Sequence[int] | Problem] | None = None,
    rung: str | int | Rung | None = None,
    quick: bool = False,
) -> RunPlan:
    """Return what `fastsgemm.tuning.tuner.tune` with these arguments tries on a device.

    Raises
    ------
    ConfigError
        The rung has no search space; problems are given for rung 11.
    DeviceError
        Rung 11 does not run on the device.
    UnknownRungError, ShapeError
    """
    chosen = () if shapes is None else tuple(dict.fromkeys(map(_problem, _each(shapes))))
    if rung is not None and rungs.find(rung).name == FP16X3:
        if chosen:
            raise ConfigError(f"rung {FP16X3} is tuned for all problems at once; leave the problems out")
        require_tensor_cores(device_info)
        return RunPlan(device_info, (), (), quick, rates=True)
    rates = not chosen and rung is None and supported(device_info.arch)
    plan = RunPlan(device_info, chosen, _spaces(rung, quick), quick, rates)
    return replace(plan, spaces=tuple(space for space in plan.spaces if plan.of(space) or plan.corrects(space)))


def _problem(shape: str | Sequence[int] | Problem) -> Problem:
    if isinstance(shape, Problem):
        problem = checked(shape)
    else:
        problem = parse(shape if isinstance(shape, str) else ",".join(map(str, _each(shape))))
    require_plain(problem, "tuning")  # rung 10 has the same constants for 16-bit operands
    return dense_call(problem).problem


def _each(values: Any) -> Iterator[Any]:
    """Return the items of a list of problems, or of the extents of one."""
    try:
        return arguments.several("shapes", values, "a list of problems")
    except ArgumentError as error:
        message = f"tune takes a list of problems, such as ['4096,4096,4096,TN'] or [(64, 64, 64)], got {values!r}"
        raise ShapeError(message) from error


def _spaces(rung: str | int | Rung | None, quick: bool) -> tuple[Space, ...]:
    if rung is None:
        return tuple(SPACES[default.name] for default in rungs.DEFAULTS) if quick else tuple(SPACES.values())
    name = rungs.find(rung).name
    if name not in SPACES:
        raise ConfigError(f"rung {name} has no search space; the rungs that can be tuned are {', '.join(tunable())}")
    return (SPACES[name],)
