"""What was measured of rung 11 on a device: its tiles, and the rates of its other kernels.

Shipped files are ``tuning_db/fp16x3/ARCH.json``, one per architecture, and ``DEVICE.json`` for further devices of it.
``generic.json`` says for architectures without a file from how many operations on rung 11 is taken nevertheless.
``fastsgemm tune --rung fp16x3`` measures a device and writes a file of the user's, which is read before these.
"""

from __future__ import annotations

import json
import sys
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, to_builtins
from msgspec.json import Decoder

from fastsgemm import private_files, resources, strict_json
from fastsgemm.config import Fp16x3Config, Fp16x3MmaConfig, HalfConfig
from fastsgemm.errors import ConfigError, RecordError
from fastsgemm.geometry.fp16x3 import TileConfig, fault_of_mixed
from fastsgemm.heuristics import database
from fastsgemm.heuristics.database import cached
from fastsgemm.heuristics.database_entries import GENERIC, Date, Extent, Multiprocessors, Text
from fastsgemm.problem import Dtypes
from fastsgemm.progress import warn

_FOLDER = "fp16x3"  # in the tuning database, and in the user's data folder
_HOPPER = "sm_90"  # the architecture with wgmma
_LYING = "direct", "mixed"  # the parts of a file for operands as they lie
_MOST_BYTES = 1 << 20  # of a file: a shipped one has 2 kB
Positive = Annotated[float, Meta(ge=1e-9, le=1e9)]  # so that a predicted time is a finite number


class _Part(Struct, frozen=True, dict=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a file, as a file has it; ``tuning_db/README.md`` describes the format."""


class Tile(_Part, frozen=True):
    """A config that was measured."""

    constants: dict[str, int]  # those that the kernel is compiled for
    least_k: Extent  # from this K on it errs no more than one chain of FMAs does
    step_us: Positive  # microseconds of a wave of tiles, one on each SM: for 32 steps of k
    tile_us: Positive  # and besides
    most_k: Extent | None = None  # up to this K the bound of `docs/precision.md` holds; None: for all

    @cached_property
    def config(self) -> TileConfig:
        """The config of these constants: for mma.sync, for wgmma, or for 16-bit operands as they lie."""
        kinds: dict[str, type[TileConfig]] = {"WM": Fp16x3MmaConfig, "PROMOTE_STAGES": Fp16x3Config}
        kind = next((kind for name, kind in kinds.items() if name in self.constants), HalfConfig)
        return kind.from_constants(self.constants | {"SPLIT_K": 1})

    def serves(self, K: int, shared_limit: int) -> bool:
        """Return whether it may be used for this K on a device with this much shared memory for a block, in bytes."""
        enough = self.least_k <= K and (self.most_k is None or self.most_k >= K)
        return enough and self.config.shared_bytes <= shared_limit


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
    tiles: Annotated[tuple[Tile, ...], Meta(min_length=1)]


class Rates(_Part, frozen=True, kw_only=True):
    """What is known of rung 11 on a device."""

    schema: Literal[1]
    arch: Text  # of the device that was measured
    device: Text
    multiprocessors: Multiprocessors
    times: Times
    split_halves: Positive  # time to split an operand of 16 bits, relative to one of float32
    most_parts: Extent  # of K of split operands: adding up more of them takes longer than they save
    # By architecture, from how many 10^9 operations on rung 11 is taken without times; None where times are known.
    least_gflop: dict[str, Positive] | None = None
    origin: Literal["measured"]
    driver: Text  # with the next two what it was measured with
    nvrtc: Text
    date: Date
    tiles: Annotated[tuple[Tile, ...], Meta(min_length=1)]
    direct: Direct | None = None  # operands of one 16-bit type; None: the architecture has no kernel for it
    mixed: Direct | None = None  # bfloat16 and float32; None as well

    @property
    def all_tiles(self) -> tuple[Tile, ...]:
        """Those of all kernels of products."""
        return sum((part.tiles for name in _LYING if (part := getattr(self, name)) is not None), self.tiles)

    def lying(self, dtypes: Dtypes) -> Direct | None:
        """Return what is known of the kernel that multiplies operands of these types as they lie, if there is one."""
        return self.direct if dtypes.a is dtypes.b else self.mixed


_DECODER = Decoder(Rates)


@cached
def load(arch: str, device: str | None = None) -> Rates:
    """Return what is known for a device: measured by its user, else shipped for it, its architecture or all.

    Without the name of a device, it is only what was shipped for the architecture.

    Raises
    ------
    RecordError
        The shipped file is damaged. A damaged file of the user's is one warning and is left out.
    """
    own = None if device is None else _own(arch, device)
    if own is not None:
        return own
    folder = resources.folder("tuning_db") / _FOLDER
    if device is not None and (path := folder / _name(device)).is_file():
        rates = parse(path, path.read_bytes())
        if (rates.arch, rates.device) == (arch, device):  # other names can give the same name of a file
            return rates
    path = next(path for name in (arch, GENERIC) if (path := folder / f"{name}.json").is_file())
    return parse(path, path.read_bytes())


def kinds_of(arch: str) -> tuple[type[TileConfig], ...]:
    """Return the classes of the configs of rung 11 that an architecture can run, the quickest first."""
    return (Fp16x3Config, Fp16x3MmaConfig, HalfConfig) if arch == _HOPPER else (Fp16x3MmaConfig,)


def save(rates: Rates) -> Path:
    """Write the user's file of a device and return its path.

    Raises
    ------
    RecordError
        The user's data folder cannot be written.
    """
    path = database.folder_to_write(_FOLDER) / _name(rates.device)
    try:
        private_files.replace(path, dumps(rates).encode())
    except OSError as error:
        raise RecordError(f"the rates of rung fp16x3 could not be stored in {path} ({error})") from error
    database.forget()
    return path


def dumps(rates: Rates) -> str:
    """Return the text of a file: a header, then one line per tile."""
    lying = (f',\n"{name}": {_dumped(part)}' for name in _LYING if (part := getattr(rates, name)) is not None)
    return f"{_dumped(rates, ''.join(lying))}\n"


def _dumped(part: Rates | Direct, rest: str = "") -> str:
    """Return the text of what has tiles: its other fields, the tiles, and `rest`."""
    header = {name: value for name, value in to_builtins(part).items() if name not in ("tiles", *_LYING)}
    tiles = ",\n".join(json.dumps(to_builtins(one) | {"constants": one.config.compiled}) for one in part.tiles)
    return f'{json.dumps(header)[:-1]},\n"tiles": [\n{tiles}\n]{rest}}}'


def _own(arch: str, device: str) -> Rates | None:
    folder = database.folder_to_read(_FOLDER)
    if folder is None:
        return None
    path = folder / _name(device)
    try:
        rates = parse(path, private_files.read(path, _MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, RecordError) as error:
        remedy = "; fastsgemm tune --rung fp16x3 replaces them" if isinstance(error, RecordError) else ""
        warn(f"the rates of rung fp16x3 in {path} are left out: {error}{remedy}")
        return None
    return rates if (rates.arch, rates.device) == (arch, device) else None


def _name(device: str) -> str:
    return f"{database.file_name(device)}.json"


def parse(path: Path, text: bytes) -> Rates:
    """Return what a file says.

    Raises
    ------
    RecordError
        Something is wrong with it; the message begins with `path`.
    """
    try:
        rates: Rates = strict_json.decode_with(_DECODER, text)
        for part in (rates, rates.direct, rates.mixed):
            if part is None:
                continue
            for tile in part.tiles:
                _check(tile.config, rates.arch, part is not rates, part is rates.mixed)
            _refuse_gaps(part.tiles)
    except (ConfigError, RecordError) as error:
        raise RecordError(f"{path}: {error}") from error
    return rates


def _check(config: TileConfig, arch: str, direct: bool, mixed: bool) -> None:
    if type(config) not in kinds_of(arch) or isinstance(config, HalfConfig) is not direct:
        raise ConfigError(f"{arch} cannot run {config!r}")
    broken = config.violations(sys.maxsize)
    if broken:
        raise ConfigError(f"{config!r}: {broken[0]}")
    if mixed and isinstance(config, HalfConfig) and (fault := fault_of_mixed(config)):
        raise ConfigError(f"{config!r} is not for bfloat16 and float32: {fault}")


def _refuse_gaps(tiles: tuple[Tile, ...]) -> None:
    """Raise `RecordError` where no tile serves some K, although one serves a smaller K."""
    served = min(tile.least_k for tile in tiles) - 1
    for tile in sorted(tiles, key=lambda one: one.least_k):
        if tile.least_k > served + 1:
            break
        if tile.most_k is None:
            return
        served = max(served, tile.most_k)
    raise RecordError(f"no tile serves K = {served + 1}")
