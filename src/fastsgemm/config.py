"""`Config`, the tile constants of a kernel, and the one predicate that says which of them are legal."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastsgemm.errors import ConfigError
from fastsgemm.rungs import OPTIONAL

if TYPE_CHECKING:
    from fastsgemm.rungs import Rung

WARP = 32
WIDTHS = (1, 2, 4)  # floats that one load can have
MAX_THREADS = 1024  # a block, on every architecture since sm_20
MAX_REGISTERS = 255  # a thread, on every architecture since sm_35
FEWEST_STAGES = 2  # of shared memory, on rung 9
PAD = 4  # floats at the end of a line of a tile that is transposed, on rung 9
K_GROUP = 4  # steps of k that a thread takes at a time, on rung 10
MAX_ALTERNATED = 16  # results of a thread up to which each has two sums, on rung 10
MAX_SKINNY = 32  # rows of a block, on rung 10
STATIC_SHARED = 48 * 1024  # bytes that a block gets without asking, on every architecture
MAX_PASS = 8192  # floats of partial sums that rung 10 adds up at a time, at most
BOOKKEEPING_REGISTERS = 24  # addresses, loop counter, leading dimensions: the least seen on any rung


@dataclass(frozen=True, repr=False)
class Config:
    """Tile constants, spelled as in the kernels. What can be derived is not stored.

    Parameters
    ----------
    BM, BN : int
        Rows and columns of C that a block computes.
    BK : int, optional
        Steps of k in a shared-memory tile (rungs 3 and up).
    TM, TN : int, optional
        Rows and columns of C that a thread computes at a time (TM: rungs 4 and up, TN: 5 and up).
    WM, WN : int, optional
        Rows and columns of C that a warp computes (rungs 8 and up).
    WNITER : int, optional
        Sub-tiles of a warp tile along n (rungs 8 and up).
    PREFETCH : int, optional
        1: the next tile is read into registers before the arithmetic of the current one (rung 8).
    SERPENTINE : int, optional
        1: every second row of the outer product runs backwards (rung 8).
    GROUP_M : int, optional
        Tiles of C are walked in groups of this many rows (rungs 8 and up).
    MIN_BLOCKS : int, optional
        Blocks that must fit on an SM together; bounds the registers of a thread (rungs 8 and up).
    ORDER : int, optional
        How the outer product is walked, 0 to 5; see ``cuda_src/device/outer_product.cuh`` (rung 9).
    FRAGMENTS : int, optional
        2: fragments are read one step of k ahead; 1: they are not (rung 9).
    ASYNC : int, optional
        1: operands that need no transposing are copied past the registers; 2: the others too, a float at a time
        (rung 9).
    SPREAD : int, optional
        When a tile is copied: 0 at once, 1 and 2 little by little between the arithmetic (rung 9).
    STAGES : int, optional
        Tiles that shared memory holds; None: two (rung 9).
    SLICES : int, optional
        Groups of threads that share out the steps of each tile; None: one group has all (rung 9).
    CHAINS : int, optional
        Chains of FMAs that make up a sum, about, for less rounding error; None: one (rung 9).
    TK : int, optional
        Steps of a tile's BK that a thread computes, and has on their way (rung 10).
    SPLIT_K : int, optional
        Parts that K is divided into, each with blocks of its own; the kernel is the same for all (rungs 9 and 10).
        None: one.

    Raises
    ------
    ConfigError
        A constant is not an int.
    """

    BM: int
    BN: int
    BK: int | None = None
    TM: int | None = None
    TN: int | None = None
    WM: int | None = None
    WN: int | None = None
    WNITER: int | None = None
    PREFETCH: int | None = None
    SERPENTINE: int | None = None
    GROUP_M: int | None = None
    MIN_BLOCKS: int | None = None
    ORDER: int | None = None
    FRAGMENTS: int | None = None
    ASYNC: int | None = None
    SPREAD: int | None = None
    STAGES: int | None = None
    SLICES: int | None = None
    CHAINS: int | None = None
    TK: int | None = None
    SPLIT_K: int | None = None

    def __post_init__(self) -> None:
        for name in _CONSTANTS:
            value = getattr(self, name)
            if type(value) is not int and (value is not None or name in _REQUIRED):
                raise ConfigError(f"constant {name} must be an int, got {value!r}")

    @property
    def constants(self) -> dict[str, int]:
        """The constants that are set, by name, in the order of the fields."""
        return {name: value for name in _CONSTANTS if (value := getattr(self, name)) is not None}

    @cached_property
    def kernel(self) -> Config:
        """What of this config is compiled: all but SPLIT_K, which is a matter of the grid."""
        return self if self.SPLIT_K is None else dataclasses.replace(self, SPLIT_K=None)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        if self.TK:
            return self.BN // (self.TN or 1) * ((self.BK or 0) // self.TK)
        if self.WM and self.WN:
            return self.BM // self.WM * (self.BN // self.WN) * WARP * (self.SLICES or 1)
        return self.BM * self.BN // ((self.TM or 1) * (self.TN or 1))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes: a tile of A and one of B, on rung 9 two of each with padding.

        With CHAINS also the sums so far of every thread. What rung 10 has is static.
        """
        if self.TK:
            return 0
        if self.FRAGMENTS:
            kept = self.BM * self.BN * (self.SLICES or 1) if self.CHAINS else 0
            stages = self.STAGES or FEWEST_STAGES
            return 4 * (stages * (self.BK or 0) * (self.BM + PAD + self.BN + PAD) + kept)
        return 4 * (self.BK or 0) * (self.BM + self.BN)

    @property
    def wmiter(self) -> int:
        """Sub-tiles of a warp tile along m; 0 where the constants do not give a whole number."""
        if not (self.WM and self.WN and self.TM and self.TN and self.WNITER):
            return 0
        area = WARP * self.TM * self.TN * self.WNITER
        return self.WM * self.WN // area if self.WM * self.WN % area == 0 else 0

    def __str__(self) -> str:
        return " ".join(f"{name}={_shown(value)}" for name, value in self.constants.items())

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.constants.items())})"


_CONSTANTS = tuple(field.name for field in dataclasses.fields(Config))
_REQUIRED = frozenset(field.name for field in dataclasses.fields(Config) if field.default is dataclasses.MISSING)


@dataclass(frozen=True)
class Violation:
    """One broken rule: what the rule is, what it allows and what was found."""

    rule: str
    limit: str
    value: str

    def __str__(self) -> str:
        return f"{self.rule}: needs {self.limit}, got {self.value}"


def violations(rung: Rung, config: Config, shared_limit: int) -> list[Violation]:
    """Return every rule that `config` breaks on `rung`, the empty list if it is legal.

    Parameters
    ----------
    rung : Rung
    config : Config
    shared_limit : int
        Shared memory that a block may opt in to on the device, in bytes.

    Returns
    -------
    list of Violation
        Each with the rule, its limit and the value found.
    """
    found = _knob_violations(rung, config)
    if found:
        return found  # the rules below compute with the knobs
    if rung.narrow:
        return _skinny_violations(config)
    if rung.warp_tiles:
        found = _warp_tile_violations(config)
    else:
        found = _thread_tile_violations(config)
    if found:
        return found  # threads and shared memory follow from tiles that divide
    return _block_violations(rung, config, shared_limit)


def check(rung: Rung, config: Config, shared_limit: int) -> None:
    """Raise `ConfigError` naming every rule that `config` breaks on `rung`."""
    found = violations(rung, config, shared_limit)
    if found:
        rules = "; ".join(map(str, found))
        raise ConfigError(f"illegal config for rung {rung.name} ({config}): {rules}")


def from_constants(constants: dict[str, Any]) -> Config:
    """Make a `Config` of named constants, or raise `ConfigError`: a name is unknown, a value no int or out of range."""
    unknown = sorted(set(constants) - set(_CONSTANTS))
    if unknown:
        raise ConfigError(f"unknown constants {unknown}; known are {sorted(_CONSTANTS)}")
    missing = sorted(_REQUIRED - set(constants))
    if missing:
        raise ConfigError(f"constants {missing} are missing")
    config = Config(**{name: _whole(name, value) for name, value in constants.items()})
    found = _range_violations(config.constants)
    if found:
        raise ConfigError("; ".join(map(str, found)))
    return config


def _whole(name: str, value: Any) -> int:
    if type(value) is not int:
        raise ConfigError(f"constant {name} must be an int, got {value!r}")
    return value


_CHOICES = {
    "PREFETCH": (0, 1),
    "SERPENTINE": (0, 1),
    "ORDER": (0, 1, 2, 3, 4, 5),
    "FRAGMENTS": (1, 2),
    "ASYNC": (0, 1, 2),
    "SPREAD": (0, 1, 2),
    "STAGES": (3, 4),
    "SLICES": (2, 4, 8),
    "CHAINS": (2, 4, 8, 16),
}
# The largest values of the others; the least is 1. They are 32-bit ints in the kernels, where 2^32 is 0.
_MOST_EXTENT = 2**16  # rows, columns or steps: shared memory and registers allow less than that on every rung
_MOST = {"MIN_BLOCKS": 32, "SPLIT_K": 1024}  # 32 blocks fit on an SM; more parts than 1024 cost more than they gain


def _knob_violations(rung: Rung, config: Config) -> list[Violation]:
    found = []
    given = config.constants
    for name in rung.knobs:
        if name not in given and name not in OPTIONAL:
            found.append(Violation(f"{name} is set", f"a value on rung {rung.name}", "none"))
    for name, value in given.items():
        if name not in rung.knobs:
            found.append(Violation(f"{name} is unused", f"none on rung {rung.name}", _shown(value)))
    return found + _range_violations({name: value for name, value in given.items() if name in rung.knobs})


def _range_violations(given: dict[str, int]) -> list[Violation]:
    found = []
    for name, value in given.items():
        if name in _CHOICES:
            if value not in _CHOICES[name]:
                limit = " or ".join(map(str, _CHOICES[name]))
                found.append(Violation(f"{name} is a switch", limit, _shown(value)))
        elif not 1 <= value <= _MOST.get(name, _MOST_EXTENT):
            most = _MOST.get(name, _MOST_EXTENT)
            found.append(Violation(f"{name} is in range", f"1 to {most}", _shown(value)))
    return found


def _shown(value: int) -> str:
    """Return an int as text; one that Python refuses to convert, which has thousands of digits, by its size."""
    return str(value) if value.bit_length() <= 128 else f"an int of {value.bit_length()} bits"


def _divides(small: str, by: int, large: str, value: int) -> list[Violation]:
    if value % by == 0:
        return []
    return [Violation(f"{small} divides {large}", f"a multiple of {small} = {by}", f"{large} = {value}")]


def _thread_tile_violations(config: Config) -> list[Violation]:
    return _divides("TM", config.TM or 1, "BM", config.BM) + _divides("TN", config.TN or 1, "BN", config.BN)


def _warp_tile_violations(config: Config) -> list[Violation]:
    assert config.WM and config.WN and config.TM and config.TN and config.WNITER  # knobs were checked
    found = _divides("WM", config.WM, "BM", config.BM) + _divides("WN", config.WN, "BN", config.BN)
    area = WARP * config.TM * config.TN * config.WNITER
    if not config.wmiter:
        rule = "WMITER = WM * WN / (32 * TM * TN * WNITER) is whole"
        return [*found, Violation(rule, f"a multiple of {area}", f"WM * WN = {config.WM * config.WN}")]
    found += _divides("WMITER", config.wmiter, "WM", config.WM)
    found += _divides("WNITER", config.WNITER, "WN", config.WN)
    if found:
        return found
    return _divides("TM", config.TM, "WM / WMITER", config.WM // config.wmiter) + _divides(
        "TN", config.TN, "WN / WNITER", config.WN // config.WNITER
    )


def _block_violations(rung: Rung, config: Config, shared_limit: int) -> list[Violation]:
    found = []
    threads = config.threads
    least = 2 * WARP
    if not least <= threads <= MAX_THREADS or threads % WARP:
        limit = f"{least} to {MAX_THREADS}, a multiple of {WARP}"
        found.append(Violation("threads of a block", limit, str(threads)))
    if config.BK and threads:
        found += _copy_violations(rung, config, threads)
    if config.FRAGMENTS and not found:
        found += _pipeline_violations(config, threads) + _slice_violations(config, threads)
        if config.STAGES and config.ASYNC != 2:
            found.append(Violation("STAGES are copied past the registers", "ASYNC = 2", f"ASYNC = {config.ASYNC}"))
    if config.shared_bytes > shared_limit:
        limit = f"at most {shared_limit} bytes on this device"
        found.append(Violation("shared memory of a block", limit, f"{config.shared_bytes} bytes"))
    return found + _register_violations(config, "accumulators and fragments in registers")


def _copy_violations(rung: Rung, config: Config, threads: int) -> list[Violation]:
    assert config.BK
    found = []
    width = 4 if rung.vectorized else 1  # floats a load
    for name, value in (("BM * BK", config.BM * config.BK), ("BK * BN", config.BK * config.BN)):
        if value % (width * threads):
            limit = f"a multiple of {width} * threads = {width * threads}"
            found.append(Violation(f"{name} shares out in {32 * width}-bit loads", limit, str(value)))
    if rung.vectorized:
        for name, extent in (
            ("BK", config.BK),
            ("BM", config.BM),
            ("BN", config.BN),
            ("TM", config.TM or 0),
            ("TN", config.TN or 0),
        ):
            if extent % 4:
                found.append(Violation(f"{name} is whole 128-bit vectors", "a multiple of 4", str(extent)))
    return found


def _pipeline_violations(config: Config, threads: int) -> list[Violation]:
    """Rung 9: what its copies need of the tiles."""
    assert config.BK
    found = []
    for name, extent in (("BM", config.BM), ("BN", config.BN)):
        for lines, line, least in ((extent, config.BK, 8), (config.BK, extent, 32)):  # k contiguous, or mn
            for width in WIDTHS:
                vectors = line // width
                team = min(vectors, max(threads // lines, least // width))
                if vectors % team or threads % team or lines % (threads // team):
                    limit = f"whole teams of {team} threads for {lines} lines of {vectors} vectors"
                    found.append(Violation(f"{name} and BK share out among teams", limit, f"{threads} threads"))
    return found[:1]


def _slice_violations(config: Config, threads: int) -> list[Violation]:
    """Rung 9: slices with steps enough to hide a copy behind, and room for the sums of a row of every thread."""
    assert config.BK and config.TN and config.WNITER
    slices = config.SLICES or 1
    found = _divides("SLICES", slices, "BK", config.BK)
    if config.BK // slices < 4 or config.BK // slices % 2:
        found.append(Violation("BK / SLICES is pairs of steps", "an even number from 4", f"{config.BK} / {slices}"))
    sums = 4 * (threads - threads // slices) * config.TN * config.WNITER
    room = 4 * FEWEST_STAGES * config.BK * (config.BM + config.BN)
    if sums > room:
        found.append(Violation("sums of the slices", f"at most {room} bytes, as the two stages", f"{sums} bytes"))
    return found


def _skinny_violations(config: Config) -> list[Violation]:
    """Rung 10: threads that cover the tile, partial sums that share out evenly, and static shared memory."""
    assert config.BK and config.TN and config.TK  # knobs were checked
    found = _divides("TN", config.TN, "BN", config.BN) + _divides("TK", config.TK, "BK", config.BK)
    if config.BM > MAX_SKINNY or not _power_of_two(config.BM):
        found.append(Violation("BM of few rows", f"a power of two up to {MAX_SKINNY}", str(config.BM)))
    if config.TK % K_GROUP:
        found.append(Violation("TK is whole groups of k", f"a multiple of {K_GROUP}", str(config.TK)))
    if found:
        return found
    columns, slices = config.BN // config.TN, config.BK // config.TK
    for name, value in (("TN", config.TN), ("BN / TN", columns), ("BK / TK", slices)):
        if not _power_of_two(value):
            found.append(Violation(f"{name} shares out partial sums", "a power of two", str(value)))
    least = max(WARP, config.BM)
    if not least <= config.threads <= MAX_THREADS:
        found.append(Violation("threads of a block", f"{least} to {MAX_THREADS}", str(config.threads)))
    shared = skinny_shared_bytes(config)
    if shared > STATIC_SHARED:
        limit = f"at most {STATIC_SHARED} bytes without asking the device"
        found.append(Violation("shared memory of a block", limit, f"{shared} bytes"))
    return found + _register_violations(config, "accumulators and loads in registers")


def skinny_shared_bytes(config: Config) -> int:
    """Return the static shared memory of a block of rung 10, in bytes, with A, B and C transposed: the most of all.

    Two tiles of A, or the partial sums of as many rows as are added up at a time; see ``cuda_src/10_skinny.cu``.
    """
    assert config.BK and config.TN and config.TK
    slices, rows = config.BK // config.TK, config.BM
    while rows > 1 and (rows * config.TN > slices or rows * slices * config.BN > MAX_PASS):
        rows //= 2
    parts = max(1, config.threads // (rows * config.BN))
    sums = rows * config.BN * (slices + parts) + parts * (config.BN * (config.BM + 1) + PAD)
    tile = config.TK * config.BM * (slices + (config.BM > K_GROUP))
    return 4 * max(2 * tile, sums)


def _power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


def _register_violations(config: Config, rule: str) -> list[Violation]:
    registers = least_registers(config)
    if registers <= MAX_REGISTERS:
        return []
    return [Violation(rule, f"at most {MAX_REGISTERS}", f"at least {registers}")]


def least_registers(config: Config) -> int:
    """Return an estimate from below of the registers of a thread."""
    if config.TK:
        sums = config.BM * (config.TN or 1)
        if config.TK > K_GROUP and sums <= MAX_ALTERNATED:
            sums *= 2
        return sums + config.TK * (config.TN or 1) + K_GROUP + BOOKKEEPING_REGISTERS
    rows = (config.TM or 1) * (config.wmiter or 1)
    columns = (config.TN or 1) * (config.WNITER or 1)
    prefetched = 0
    if config.BK and (config.PREFETCH or config.ASYNC == 0):
        prefetched = config.BK * (config.BM + config.BN) // config.threads
    return rows * columns + rows + columns + prefetched + BOOKKEEPING_REGISTERS
