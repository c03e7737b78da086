"""What was measured of rung 11 on a device: its tiles, and the rates of its other kernels.

``tuning_db/README.md`` describes how a tuning file has them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from fastsgemm.config import F16DirectConfig, Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.errors import ConfigError, RecordError
from fastsgemm.geometry.fp16x3 import TileConfig, fault_of_mixed
from fastsgemm.heuristics.fields import Date, Extent, Multiprocessors, Text, Tools
from fastsgemm.problem import Dtypes

_HOPPER = "sm_90"  # the architecture with wgmma
Positive = Annotated[float, Meta(ge=1e-9, le=1e9)]  # so that a predicted time is a finite number


class _Part(Struct, frozen=True, dict=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of the rates of a device."""


class Tile(_Part, frozen=True):
    """A config that was measured."""

    constants: dict[str, int]  # those that the kernel is compiled for
    least_k: Extent  # from this K on it errs no more than one chain of FMAs does
    step_us: Positive  # microseconds of a wave of tiles, one on each SM: for 32 steps of k
    tile_us: Positive  # and besides
    most_k: Extent | None = None  # up to this K the bound of `docs/fp16x3.md` holds; None: for all

    @cached_property
    def config(self) -> TileConfig:
        """The config of these constants: for mma.sync, for wgmma, or for 16-bit operands as they lie."""
        kinds: dict[str, type[TileConfig]] = {"WM": Fp16x3MmaConfig, "PROMOTE_STAGES": Fp16x3Config}
        kind = next((kind for name, kind in kinds.items() if name in self.constants), F16DirectConfig)
        return kind.from_constants(self.constants | {"SPLIT_K": 1})

    def serves(self, K: int, shared_limit: int) -> bool:
        """Return whether it may be used for this K on a device with this much shared memory for a block, in bytes."""
        enough = self.least_k <= K and (self.most_k is None or self.most_k >= K)
        return enough and self.config.shared_bytes <= shared_limit


Tiles = Annotated[tuple[Tile, ...], Meta(min_length=1)]


class Times(_Part, frozen=True):
    """What the kernels take besides the tiles."""

    launch_us: Positive  # microseconds on the device of a call whose operands were split before, without its tiles
    kernel_us: Positive  # of each further kernel, the one that splits and the one that adds the parts
    split_rows_tb_s: Positive  # 10^12 bytes per second, read and written by splitting
    split_columns_tb_s: Positive
    read_tb_s: Positive  # read of split operands
    reduce_tb_s: Positive  # read and written of partial sums
    mirrored: Positive = 1.0  # time to store the transpose of a tile's sums besides, relative to its `tile_us`


class Direct(_Part, frozen=True):
    """What the kernel takes that multiplies operands as they lie."""

    launch_us: Positive  # microseconds on the device of a call, without its tiles
    read_tb_s: Positive  # 10^12 bytes per second, read of operands as they lie
    tiles: Tiles


class Rates(_Part, frozen=True, kw_only=True):
    """What is known of rung 11 on a device."""

    rung: ClassVar[str] = "fp16x3"

    device: Text  # that was measured
    # The device of other rates, which three times on this device have scaled.
    transferred_from: Text | None = None
    multiprocessors: Multiprocessors
    times: Times
    split_halves: Positive  # time to split an operand of 16 bits, relative to one of float32
    most_parts: Extent  # of K of split operands: adding up more of them takes longer than they save
    # By architecture, from how many 10^9 operations on rung 11 is taken without times; None where times are known.
    least_gflop: dict[str, Positive] | None = None
    tiles: Tiles
    direct: Direct | None = None  # operands of one 16-bit type; None: the architecture has no kernel for it
    mixed: Direct | None = None  # bfloat16 and float32; None as well
    driver: Text  # with the next two what it was measured with; see `Tools`
    nvrtc: Text
    date: Date

    def __post_init__(self) -> None:
        for part in self._parts:
            for tile in part.tiles:
                _check(tile.config, direct=part is not self, mixed=part is self.mixed)
            _refuse_gaps(part.tiles)

    @property
    def source(self) -> str:
        """What it was measured with."""
        return str(Tools(self.driver, self.nvrtc, self.date))

    @property
    def _parts(self) -> Iterator[Rates | Direct]:
        yield from (part for part in (self, self.direct, self.mixed) if part is not None)

    @property
    def all_tiles(self) -> tuple[Tile, ...]:
        """Those of all kernels of products."""
        return tuple(tile for part in self._parts for tile in part.tiles)

    def unsplit(self, dtypes: Dtypes) -> Direct | None:
        """Return what is known of the kernel that multiplies operands of these types as they lie, if there is one."""
        return self.direct if dtypes.a is dtypes.b else self.mixed

    def runs_on(self, arch: str) -> bool:
        """Whether an architecture can run all its tiles."""
        return all(isinstance(tile.config, kinds_of(arch)) for tile in self.all_tiles)


def kinds_of(arch: str) -> tuple[type[TileConfig], ...]:
    """Return the classes of the configs of rung 11 that an architecture can run, the quickest first."""
    return (Fp16x3Config, Fp16x3MmaConfig, F16DirectConfig) if arch == _HOPPER else (Fp16x3MmaConfig,)


def _check(config: TileConfig, direct: bool, mixed: bool) -> None:
    """Raise `ConfigError` if a config cannot be that of operands as they lie, `direct`, or of split ones."""
    if isinstance(config, F16DirectConfig) is not direct:
        raise ConfigError(f"{config!r} is not for operands {'as they lie' if direct else 'that are split'}")
    broken = config.violations(sys.maxsize)
    if broken:
        raise ConfigError(f"{config!r}: {broken[0]}")
    if mixed and isinstance(config, F16DirectConfig) and (fault := fault_of_mixed(config)):
        raise ConfigError(f"{config!r} is not for bfloat16 and float32: {fault}")


def _refuse_gaps(tiles: tuple[Tile, ...]) -> None:
    """Raise `RecordError` where no tile serves some K, although one serves a smaller K."""
    served = min(tile.least_k for tile in tiles) - 1
    for tile in sorted(tiles, key=lambda tile: tile.least_k):
        if tile.least_k > served + 1:
            break
        if tile.most_k is None:
            return
        served = max(served, tile.most_k)
    raise RecordError(f"no tile serves K = {served + 1}")
