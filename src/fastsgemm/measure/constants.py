"""The constants of a rung in a ladder: those of the tuning database, with overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastsgemm.config import Config
from fastsgemm.device import DeviceTraits
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry.variants import dense_operands, extents_of
from fastsgemm.heuristics import fp16x3
from fastsgemm.heuristics.choice import choose, choose_config
from fastsgemm.jit import source
from fastsgemm.problem import Problem
from fastsgemm.request import resolve
from fastsgemm.rungs import Rung


@dataclass(frozen=True)
class Constants:
    """The config of a rung."""

    rung: Rung
    config: Config
    # A note on constants whose value in the tuning database differs from the default in the rung's file.
    overridden: str | None = None


def constants_of(device: DeviceTraits, rung: Rung | None, problem: Problem, overrides: Mapping[str, int]) -> Constants:
    """Return the constants that `sgemm` uses for a problem with dense operands, with overrides by name.

    Without a rung, it is the one that `sgemm` picks by default.

    Raises
    ------
    ConfigError
        The rung has no such constant, or the config is not legal on the device.
    DeviceError
        The rung cannot run on the device.
    """
    if rung is not None and rung.precision == "fp16x3":
        fp16x3.require_tensor_cores(device)
        config = choose(device, resolve(rung), *dense_operands(problem), extents_of(problem)).config
        assert isinstance(config, geometry.TileConfig)  # because it was forced
        file = geometry.file_of(config)
    else:
        choice = choose_config(device, rung, problem)
        rung, config = choice.rung, choice.config
        file = rung.file
    if not overrides:
        return Constants(rung, config, _overridden(file, config.constants))
    config = type(config).from_constants({**config.constants, **overrides})
    if isinstance(config, geometry.TileConfig):
        fp16x3.check_config(device, config)
    else:
        rung.check(config, device.shared_limit)
    return Constants(rung, config)


def _overridden(file: str, used: Mapping[str, int]) -> str | None:
    defaults = source.defaults(file)
    differing = [name for name in used if defaults.get(name, used[name]) != used[name]]
    if not differing:
        return None
    record_text, file_text = (" ".join(f"{name}={values[name]}" for name in differing) for values in (used, defaults))
    return f"{record_text} from a record, not {file_text} as in {file}; --config tries others"
