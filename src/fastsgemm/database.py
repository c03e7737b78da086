"""The tuning database: measured and published constants, one JSON file an architecture, and the choice among them."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fastsgemm import config as configs
from fastsgemm import resources, rungs
from fastsgemm.config import Config
from fastsgemm.errors import ConfigError, FastsgemmError
from fastsgemm.plan import Problem
from fastsgemm.rungs import Rung

SCHEMA = 1
GENERIC = "generic"  # the file whose records are legal on every architecture
DEFAULT_RUNG = "warptiled"


@dataclass(frozen=True)
class Record:
    """One known-good choice of constants.

    Attributes
    ----------
    arch : str
        The architecture of the file it is in, or ``generic``.
    device : str or None
        The card it was found on; None for one that is not measured.
    rung : str
    problem : Problem or None
        The problem it was found for; None for one that holds for all.
    config : Config
    origin : str
        ``measured``, ``published`` or ``hand-picked``.
    source : str
        Where a published one is from, or what a measured one was measured with.
    """

    arch: str
    device: str | None
    rung: str
    problem: Problem | None
    config: Config
    origin: str
    source: str


def default_rung() -> Rung:
    """Return the rung that `sgemm` uses when none is named."""
    return rungs.find(DEFAULT_RUNG)


@cache
def choose(device: str, arch: str, shared_limit: int, rung: Rung, problem: Problem) -> Record:
    """Return the record to use: exact device before architecture before generic, then the nearest problem.

    Raises
    ------
    ConfigError
        Not even a generic record is legal on this card.
    """
    legal = [
        record
        for record in (*load(arch), *load(GENERIC))
        if record.rung == rung.name and not configs.violations(rung, record.config, shared_limit)
    ]
    if not legal:
        raise ConfigError(f"no record of rung {rung.name} is legal with {shared_limit} bytes of shared memory")
    return min(legal, key=lambda record: _distance(record, device, problem))


def _distance(record: Record, device: str, problem: Problem) -> tuple[int, int, float]:
    place = 0 if record.device == device else 1 if record.arch != GENERIC else 2
    if record.problem is None:
        return place, 1, 0.0
    known = record.problem
    apart = abs(known.M * known.N * known.K - problem.M * problem.N * problem.K)
    return place, int(known.layout != problem.layout), float(apart)


@cache
def load(arch: str) -> tuple[Record, ...]:
    """Return the shipped records of one architecture. A bad record is a warning and is left out."""
    path = resources.folder("tuning_db") / f"{arch}.json"
    if not path.is_file():
        return ()
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))["records"]
    except (ValueError, KeyError, TypeError) as error:
        warnings.warn(f"tuning file {path} is left out: {error!r}", RuntimeWarning, stacklevel=2)
        return ()
    return tuple(record for line in lines if (record := _accept(line, arch, path)) is not None)


def _accept(line: Any, arch: str, path: Path) -> Record | None:
    try:
        return parse(line, arch)
    except (FastsgemmError, KeyError, TypeError, AttributeError) as error:
        warnings.warn(f"a record of {path} is left out: {error!r} in {line!r}", RuntimeWarning, stacklevel=3)
        return None


def parse(line: Any, arch: str) -> Record:
    """Make a `Record` of one line of a tuning file."""
    extents = line.get("problem")
    problem = None if extents is None else Problem(extents["M"], extents["N"], extents["K"], extents["layout"])
    return Record(
        arch,
        line["device"],
        rungs.find(line["rung"]).name,
        problem,
        configs.from_constants(line["constants"]),
        line["origin"],
        line["source"],
    )
