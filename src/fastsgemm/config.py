"""The constants of the kernels: one frozen dataclass per kernel family, and the rules for a legal config.

A class declares each constant once: its name as in the kernel, its meaning and the values it can take. What can be
derived is not stored. A constant with a default is a feature that the default leaves off or sets to its usual value.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints

from msgspec import Struct

from fastsgemm import arguments
from fastsgemm.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

WARP = 32
MAX_THREADS = 1024  # of a block, on every architecture since sm_20
MAX_REGISTERS = 255  # of a thread, on every architecture since sm_35
MAX_EXTENT = 2**16  # rows, columns or steps of a tile: shared memory and registers allow less on every rung
STATIC_SHARED = 48 * 1024  # bytes of shared memory that a block gets without opting in, on every architecture
BOOKKEEPING_REGISTERS = 24  # for addresses, the loop counter and leading dimensions: the fewest seen on any rung
WIDTHS = (1, 2, 4)  # floats of a load
VECTOR = 4  # floats of a 128-bit load
PAD = 4  # floats at the end of a line of a tile that rung 9 transposes
BANKS = 32  # of shared memory, each a float wide
K_GROUP = 4  # steps of k that a thread of rung 10 takes at a time
MAX_ALTERNATED = 16  # results of a thread of rung 10 up to which each has two accumulators
MAX_PASS = 8192  # floats of partial sums that rung 10 adds up at a time, at most
MAX_SKINNY = 32  # rows of a block of rung 10
WARPGROUP = 128  # threads
ROWS_PER_WARPGROUP = 64  # of C, that a warpgroup of rung 11 multiplies
SEGMENT = 1024  # steps of k in a segment, version 1 of docs/order-of-summation.md
MOST_CHAINS = 64  # that PARTIAL_ACCUMULATORS can ask for


class Violation(Struct, frozen=True):
    """A broken rule.

    Attributes
    ----------
    quantity : str
        What is limited: a constant, or what several constants give, with their names.
    limit : str
        What the rule allows; it continues "must be".
    value : str
        What the config has.
    """

    quantity: str
    limit: str
    value: str

    def __str__(self) -> str:
        return f"{self.quantity} must be {self.limit}, got {self.value}"


class Constant(Struct, frozen=True):
    """The declaration of one constant.

    Attributes
    ----------
    meaning : str
    values : tuple of int
        The values it can take. Empty: `least` to `most`.
    least, most : int
        Both inclusive. Constants are 32-bit ints in the kernels.
    """

    meaning: str
    values: tuple[int, ...] = ()
    least: int = 1
    most: int = MAX_EXTENT

    def violation(self, name: str, value: int) -> Violation | None:
        """Return the violation of a value outside the range, or None."""
        if self.values:
            limit = " or ".join(map(str, self.values))
            return None if value in self.values else Violation(name, limit, _shown(value))
        if self.least <= value <= self.most:
            return None
        return Violation(name, f"{self.least} to {self.most}", _shown(value))


SWITCH = (0, 1)
GroupM = Annotated[int, Constant("rows of tiles of C that blocks walk together, for L2")]
MinBlocks = Annotated[int, Constant("blocks that must fit on an SM together; bounds a thread's registers", most=32)]
Segment = Annotated[int, Constant("steps of k in each chain of FMAs; 0: other constants decide", (0, SEGMENT))]
# More than 1024 parts cost more than they gain.
SplitK = Annotated[int, Constant("parts that K is divided into, each with its own blocks", most=1024)]


@dataclass(frozen=True, repr=False)
class Config:
    """The constants of a kernel. This is the base class; `Rung.config` is the class that a rung takes.

    Parameters
    ----------
    BM, BN : int
        Rows and columns of C that a block computes.

    Raises
    ------
    ConfigError
        A constant is not an int, or the base class itself is called.
    """

    BM: Annotated[int, Constant("rows of C that a block computes")]
    BN: Annotated[int, Constant("columns of C that a block computes")]

    # For messages: what gives the threads of a block, and which constants set what else a block needs.
    THREADS: ClassVar[str]
    SHARED_SET_BY: ClassVar[str]
    REGISTERS_SET_BY: ClassVar[str]

    def __new__(cls, *_: Any, **__: Any) -> "Self":
        """Refuse the base class, which no kernel takes."""
        if cls is Config:
            raise ConfigError(
                "fastsgemm.Config is the base class of the configs; use the class of a rung, "
                "such as fastsgemm.PipelinedConfig or fastsgemm.RUNGS[8].config"
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int:
                number = arguments.integer(value)
                if number is None:
                    raise ConfigError(f"constant {name} must be an int, got {value!r}")
                object.__setattr__(self, name, number)

    @classmethod
    def declared(cls) -> Mapping[str, Constant]:
        """Return the declarations of the constants by name, in the order of the fields."""
        return _declared(cls)  # type: ignore[arg-type]  # mypy takes the __hash__ of the instances

    @classmethod
    def from_constants(cls, constants: Mapping[str, Any]) -> "Self":
        """Make a config of named constants.

        Raises
        ------
        ConfigError
            A constant is unknown, missing, not an int or out of its range.
        """
        known = cls.declared()
        if unknown := constants.keys() - known.keys():
            raise ConfigError(f"unknown constants {sorted(unknown)}; {cls.__name__} has {list(known)}")
        if missing := _required(cls) - constants.keys():  # type: ignore[arg-type]
            raise ConfigError(f"constants {sorted(missing)} of {cls.__name__} are missing")
        config = cls(**constants)
        found = config.out_of_range()
        if found:
            raise ConfigError("; ".join(map(str, found)))
        return config

    @property
    def constants(self) -> dict[str, int]:
        """All constants by name, in the order of the fields."""
        return {name: getattr(self, name) for name in self.declared()}

    @cached_property
    def kernel(self) -> "Self":
        """The config without split-K, which no kernel is compiled for: equal for all configs of one kernel."""
        return self if self.split_k == 1 else self.replace(SPLIT_K=1)

    def replace(self, **constants: int) -> "Self":
        """Return the config with other values of these constants."""
        return dataclasses.replace(self, **constants)

    @property
    def compiled(self) -> dict[str, int]:
        """The constants that the kernel is compiled for."""
        return {name: value for name, value in self.kernel.constants.items() if name != "SPLIT_K"}

    # What the grid and the cost model ask of every kernel.

    @property
    def tile_k(self) -> int:
        """Steps of k in a tile; 1 for a kernel without tiles of A and B."""
        found: int = vars(self).get("BK", 1)
        return found

    @property
    def split_k(self) -> int:
        """Parts of K with blocks of their own; 1 for a kernel that cannot split K."""
        found: int = vars(self).get("SPLIT_K", 1)
        return found

    @property
    def sliced_k(self) -> int:
        """Groups of threads of a block that share out k; 1 for a kernel that cannot slice."""
        return 1

    @property
    def segment(self) -> int:
        """Steps of k in each chain of FMAs, whatever K is; 0: K and other constants decide."""
        return 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        raise NotImplementedError

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes."""
        return 0

    @property
    def least_registers(self) -> int:
        """A lower bound of the registers of a thread."""
        raise NotImplementedError

    def out_of_range(self) -> list[Violation]:
        """Return a violation for each constant outside its range."""
        value = vars(self)
        outside = [
            name
            for name, least, most, values in _ranges(type(self))  # type: ignore[arg-type]  # mypy takes the __hash__ of the instances
            if not least <= value[name] <= most or (values and value[name] not in values)
        ]
        found = (self.declared()[name].violation(name, getattr(self, name)) for name in outside)
        return [violation for violation in found if violation is not None]

    def violations(self, shared_limit: int) -> list[Violation]:
        """Return every rule that the config breaks; the empty list if it is legal.

        Parameters
        ----------
        shared_limit : int
            Shared memory that a block may opt in to on the device, in bytes.
        """
        # Each group of rules computes with what the one before has checked.
        return self.out_of_range() or self._tile_violations() or self._block_violations(shared_limit)

    def _tile_violations(self) -> list[Violation]:
        """Return the rules that the tiles break among themselves."""
        return []

    def _block_violations(self, shared_limit: int) -> list[Violation]:
        """Return the rules of threads, copies, shared memory and registers."""
        found = self._thread_violations()
        if self.threads:
            found += self._copy_violations()
        return found + self._shared_violations(shared_limit) + self._register_violations()

    def _thread_violations(self) -> list[Violation]:
        least = 2 * WARP
        if least <= self.threads <= MAX_THREADS and self.threads % WARP == 0:
            return []
        return [self._threads_must_be(f"a multiple of {WARP} from {least} to {MAX_THREADS}")]

    def _threads_must_be(self, limit: str) -> Violation:
        return Violation(f"threads of a block, {self.THREADS},", limit, str(self.threads))

    def _copy_violations(self) -> list[Violation]:
        return []

    def _shared_violations(self, shared_limit: int) -> list[Violation]:
        if self.shared_bytes <= shared_limit:
            return []
        limit = f"at most {shared_limit} bytes on this device"
        return [self._shared_must_be(limit, self.shared_bytes)]

    def _shared_must_be(self, limit: str, found: int) -> Violation:
        return Violation(f"shared memory of a block, set by {self.SHARED_SET_BY},", limit, f"{found} bytes")

    def _register_violations(self, limit: int = MAX_REGISTERS) -> list[Violation]:
        if self.least_registers <= limit:
            return []
        quantity = f"registers of a thread, set by {self.REGISTERS_SET_BY},"
        return [Violation(quantity, f"at most {limit}", f"at least {self.least_registers}")]

    def __str__(self) -> str:
        """Return the constants, without those at their defaults."""
        return " ".join(f"{name}={_shown(value)}" for name, value in self._telling().items())

    def __repr__(self) -> str:
        constants = ", ".join(f"{name}={_shown(value)}" for name, value in self._telling().items())
        return f"{type(self).__name__}({constants})"

    def _telling(self) -> dict[str, int]:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: value for name, value in self.constants.items() if value != defaults[name]}


@cache
def _declared(cls: Any) -> dict[str, Constant]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name].__metadata__[0] for field in dataclasses.fields(cls)}


@cache
def _required(cls: Any) -> frozenset[str]:
    """Return the names of the constants without a default."""
    return frozenset(field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING)


@cache
def _ranges(cls: Any) -> tuple[tuple[str, int, int, tuple[int, ...]], ...]:
    """Return name, least, most and values of each constant, to check thousands of configs quickly."""
    return tuple(
        (name, min(c.values, default=c.least), max(c.values, default=c.most), c.values)
        for name, c in _declared(cls).items()
    )


@dataclass(frozen=True, repr=False)
class BlockConfig(Config):
    """Rungs 1 and 2: a thread computes one element of C."""

    THREADS: ClassVar[str] = "BM * BN"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.BM * self.BN

    @property
    def least_registers(self) -> int:
        """A lower bound of the registers of a thread."""
        return 3 + BOOKKEEPING_REGISTERS  # a sum and an element of A and of B


@dataclass(frozen=True, repr=False)
class SharedTileConfig(BlockConfig):
    """Rung 3: tiles of A and B in shared memory."""

    BK: Annotated[int, Constant("steps of k in a tile")]

    SHARED_SET_BY: ClassVar[str] = "BM, BN and BK"
    LOAD_FLOATS: ClassVar[int] = 1  # of a load from global memory

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes: a tile of A and one of B."""
        return 4 * self.BK * (self.BM + self.BN)

    def _copy_violations(self) -> list[Violation]:
        found = []
        for name, value in (("BM * BK", self.BM * self.BK), ("BK * BN", self.BK * self.BN)):
            step = self.LOAD_FLOATS * self.threads
            if value % step:
                limit = f"a multiple of {step}, the floats that the {self.threads} threads load at a time"
                found.append(Violation(name, limit, str(value)))
        return found


@dataclass(frozen=True, repr=False)
class ThreadColumnConfig(SharedTileConfig):
    """Rung 4: a thread computes TM rows of one column."""

    TM: Annotated[int, Constant("rows of C that a thread computes in a thread tile")]

    THREADS: ClassVar[str] = "BM * BN / TM"
    REGISTERS_SET_BY: ClassVar[str] = "TM"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.BM * self.BN // self.TM

    @property
    def least_registers(self) -> int:
        """A lower bound of the registers of a thread."""
        return 2 * self.TM + 1 + BOOKKEEPING_REGISTERS

    def _tile_violations(self) -> list[Violation]:
        return _divides("TM", self.TM, "BM", self.BM)


@dataclass(frozen=True, repr=False)
class ThreadTileConfig(ThreadColumnConfig):
    """Rung 5: a thread computes a TM x TN thread tile."""

    TN: Annotated[int, Constant("columns of C that a thread computes in a thread tile")]

    THREADS: ClassVar[str] = "BM * BN / (TM * TN)"
    REGISTERS_SET_BY: ClassVar[str] = "TM and TN"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.BM * self.BN // (self.TM * self.TN)

    @property
    def least_registers(self) -> int:
        """A lower bound of the registers of a thread."""
        return _outer_product_registers(self.TM, self.TN)

    def _tile_violations(self) -> list[Violation]:
        return super()._tile_violations() + _divides("TN", self.TN, "BN", self.BN)


@dataclass(frozen=True, repr=False)
class VectorizedConfig(ThreadTileConfig):
    """Rungs 6 and 7: the constants of rung 5, and tiles of whole 128-bit vectors."""

    LOAD_FLOATS: ClassVar[int] = VECTOR

    def _copy_violations(self) -> list[Violation]:
        found = super()._copy_violations()
        for name in ("BK", "BM", "BN", "TM", "TN"):
            extent = getattr(self, name)
            if extent % VECTOR:
                found.append(Violation(name, f"a multiple of {VECTOR}, the floats of a 128-bit load", str(extent)))
        return found


@dataclass(frozen=True, repr=False)
class _WarpTileConfig(VectorizedConfig):
    """The constants that rungs 8 and 9 share: a level of warp tiles between block and thread."""

    WM: Annotated[int, Constant("rows of C that a warp computes")]
    WN: Annotated[int, Constant("columns of C that a warp computes")]
    WNITER: Annotated[int, Constant("sub-tiles of a warp tile along n")]

    THREADS: ClassVar[str] = "32 * (BM / WM) * (BN / WN)"
    REGISTERS_SET_BY: ClassVar[str] = "WM * WN and the copied tiles"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.BM // self.WM * (self.BN // self.WN) * WARP

    @property
    def thread_results(self) -> int:
        """Results of C that a thread computes."""
        return self.WM * self.WN // WARP

    @property
    def wmiter(self) -> int:
        """Sub-tiles of a warp tile along m; 0 where the constants do not give a whole number."""
        area = WARP * self.TM * self.TN * self.WNITER
        return self.WM * self.WN // area if self.WM * self.WN % area == 0 else 0

    @property
    def least_registers(self) -> int:
        """A lower bound of the registers of a thread."""
        prefetched = self.BK * (self.BM + self.BN) // self.threads if self._prefetches else 0
        return _outer_product_registers(self.TM * self.wmiter, self.TN * self.WNITER) + prefetched

    @property
    def _prefetches(self) -> bool:
        """Whether threads hold their shares of the next tile in registers."""
        raise NotImplementedError

    def _tile_violations(self) -> list[Violation]:
        found = _divides("WM", self.WM, "BM", self.BM) + _divides("WN", self.WN, "BN", self.BN)
        if not self.wmiter:
            area = WARP * self.TM * self.TN * self.WNITER
            limit = f"a multiple of 32 * TM * TN * WNITER = {area}"
            return [*found, Violation("WM * WN", limit, str(self.WM * self.WN))]
        found += _divides("WM * WN / (32 * TM * TN * WNITER)", self.wmiter, "WM", self.WM)
        found += _divides("WNITER", self.WNITER, "WN", self.WN)
        if found:
            return found
        rows, columns = self.WM // self.wmiter, self.WN // self.WNITER
        rows_name = "32 * TM * TN * WNITER / WN"
        return _divides("TM", self.TM, rows_name, rows) + _divides("TN", self.TN, "WN / WNITER", columns)


@dataclass(frozen=True, repr=False)
class WarptiledConfig(_WarpTileConfig):
    """Rung 8. The defaults are the version of the literature."""

    PREFETCH: Annotated[int, Constant("1: the next tile is read to registers before this one's arithmetic", SWITCH)] = 0
    SERPENTINE: Annotated[int, Constant("1: odd rows of the outer product run backwards", SWITCH)] = 0
    GROUP_M: GroupM = 1
    MIN_BLOCKS: MinBlocks = 1

    @property
    def _prefetches(self) -> bool:
        return bool(self.PREFETCH)


@dataclass(frozen=True, repr=False)
class PipelinedConfig(_WarpTileConfig):
    """Rung 9: copies run under arithmetic, and K can be sliced and split."""

    GROUP_M: GroupM = 8
    MIN_BLOCKS: MinBlocks = 1
    ORDER: Annotated[int, Constant("of the outer product; see device/outer_product.cuh", (0, 1, 2, 3, 4, 5))] = 1
    FRAGMENTS: Annotated[
        int, Constant("buffers for fragments; they are read one step of k less ahead", (1, 2, 4, 8))
    ] = 2
    CP_ASYNC: Annotated[
        int,
        Constant(
            "copies past the registers: 0 none, 1 the untransposed, 2 all, 3 all, and none is transposed", (0, 1, 2, 3)
        ),
    ] = 1
    SPREAD: Annotated[int, Constant("of a copy over the steps of a tile: 0 at once, 1, 2", (0, 1, 2))] = 0
    STAGES: Annotated[int, Constant("tiles of A and of B in shared memory", (2, 3, 4, 6, 8))] = 2
    SLICED_K: Annotated[int, Constant("groups of threads that share out the steps of a tile", (1, 2, 4, 8))] = 1
    PARTIAL_ACCUMULATORS: Annotated[int, Constant("chains of FMAs of a sum, about", most=MOST_CHAINS)] = 1
    SEGMENT: Segment = 0
    SPLIT_K: SplitK = 1

    THREADS: ClassVar[str] = _WarpTileConfig.THREADS + " * SLICED_K"
    SHARED_SET_BY: ClassVar[str] = (
        "BM, BN, BK, TM, TN, CP_ASYNC, STAGES, SLICED_K, PARTIAL_ACCUMULATORS, SEGMENT and SPLIT_K"
    )
    FEWEST_STAGES: ClassVar[int] = 2

    @cached_property
    def kernel(self) -> "Self":
        """The config without split-K. Of several chains, a kernel is told how long they are when it is launched."""
        return self.replace(SPLIT_K=1, SEGMENT=0, PARTIAL_ACCUMULATORS=2 if self.adds_chains else 1)

    @property
    def compiled(self) -> dict[str, int]:
        """The constants that the kernel is compiled for."""
        found = super().compiled | {"CHAINS": int(self.adds_chains)}
        return {name: value for name, value in found.items() if name not in ("SEGMENT", "PARTIAL_ACCUMULATORS")}

    @property
    def adds_chains(self) -> bool:
        """Whether a block adds up several chains of FMAs, in shared memory."""
        return self.PARTIAL_ACCUMULATORS > 1 or (self.SEGMENT > 0 and self.SPLIT_K == 1)

    @property
    def sliced_k(self) -> int:
        """Groups of threads of a block that share out k."""
        return self.SLICED_K

    @property
    def segment(self) -> int:
        """Steps of k in each chain of FMAs, whatever K is; 0: K and other constants decide.

        With SPLIT_K = 1 a block adds the sums of the segments up, in shared memory. Any other SPLIT_K makes a part of
        every segment.
        """
        return self.SEGMENT

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return super().threads * self.SLICED_K

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes: the stages, and the finished chains of every thread."""
        finished = self.BM * self.BN * self.SLICED_K if self.adds_chains else 0
        stage = self._tile_floats(self.BM, self.TM) + self._tile_floats(self.BN, self.TN)
        return 4 * (self.STAGES * stage + finished)

    def _tile_floats(self, extent: int, together: int) -> int:
        """Return the most shared memory of a tile of one operand, which with CP_ASYNC = 3 may stay in lines."""
        k_major = self.BK * (extent + PAD)
        if not self._keeps_lines:
            return k_major
        lines = extent // together * (self.BK if self.BK % 8 else self.BK + PAD)
        return max(k_major, lines + (together - 1) * (lines + (self.BK - lines) % BANKS))

    @property
    def _prefetches(self) -> bool:
        return self.CP_ASYNC == 0

    @property
    def _keeps_lines(self) -> bool:
        """Whether an operand whose k is contiguous stays so in shared memory."""
        return self.CP_ASYNC == 3

    def _block_violations(self, shared_limit: int) -> list[Violation]:
        found = self._thread_violations() + self._copy_violations()
        if not found:
            found = self._step_violations() + self.order_violations()
            if self.STAGES > self.FEWEST_STAGES and self.CP_ASYNC < 2:
                limit = f"2 or 3 where STAGES is above {self.FEWEST_STAGES}"
                found.append(Violation("CP_ASYNC", limit, f"CP_ASYNC={self.CP_ASYNC} STAGES={self.STAGES}"))
        return found + self._shared_violations(shared_limit) + self._register_violations()

    def _copy_violations(self) -> list[Violation]:
        """Return the rules of reads and stores. A tile need not share out evenly: threads left over copy nothing."""
        found = []
        for name in ("BK", "BM", "BN", "TM"):
            extent, or_small = getattr(self, name), ", or 1 or 2" if name in ("BM", "TM") else ""
            if extent % VECTOR and not (or_small and extent in WIDTHS):
                limit = f"a multiple of {VECTOR}, the floats of a 128-bit load{or_small}"
                found.append(Violation(name, limit, str(extent)))
        if WARP % self.TN:
            limit = f"a divisor of {WARP}, the lanes of a warp, which store whole thread tiles of a row of C"
            found.append(Violation("TN", limit, str(self.TN)))
        return found

    def _step_violations(self) -> list[Violation]:
        """Return the rules of a thread's steps of a tile, and of what the stages must have room for after the last."""
        found = _divides("SLICED_K", self.SLICED_K, "BK", self.BK)
        steps, ahead = self.BK // self.SLICED_K, max(2, self.FRAGMENTS)
        if steps < 2 * ahead or steps % ahead:
            value = f"{self.BK} / {self.SLICED_K}"
            found.append(Violation("BK / SLICED_K", f"a multiple of {ahead} and at least {2 * ahead}", value))
        elif self._keeps_lines and steps % VECTOR:
            limit = f"a multiple of {VECTOR}, the steps that are read together where CP_ASYNC is 3"
            found.append(Violation("BK / SLICED_K", limit, f"{self.BK} / {self.SLICED_K}"))
        if self._keeps_lines and self.FRAGMENTS > VECTOR:
            limit = f"at most {VECTOR}, the steps that are read together where CP_ASYNC is 3"
            found.append(Violation("FRAGMENTS", limit, str(self.FRAGMENTS)))
        of_slice = self.threads // self.SLICED_K
        sums = 4 * (self.SLICED_K - 1) * of_slice * self.TN * self.WNITER
        room = 4 * self.FEWEST_STAGES * self.BK * (self.BM + self.BN)
        limit = f"at most the {room} bytes of {self.FEWEST_STAGES} stages"
        if sums > room:
            quantity = "partial sums of the slices, set by SLICED_K, TN and WNITER,"
            found.append(Violation(quantity, limit, f"{sums} bytes"))
        row = 4 * of_slice * self.WNITER * (self.TN + 1)  # one float in TN is padding
        if row > room:
            quantity = "a row of C of every thread, set by WM, WN, TN and WNITER,"
            found.append(Violation(quantity, limit, f"{row} bytes"))
        return found

    def order_violations(self) -> list[Violation]:
        """Return the rules of SEGMENT: each segment is whole tiles, whose steps go to one chain one after the other."""
        if not self.SEGMENT:
            return []
        found = [
            Violation(name, "1 where SEGMENT gives each segment of K one chain of FMAs", str(value))
            for name, value in (("SLICED_K", self.SLICED_K), ("PARTIAL_ACCUMULATORS", self.PARTIAL_ACCUMULATORS))
            if value > 1
        ]
        return found + _divides("BK", self.BK, "SEGMENT", self.SEGMENT)


@dataclass(frozen=True, repr=False)
class SkinnyConfig(Config):
    """Rung 10: for a C of few rows."""

    BK: Annotated[int, Constant("steps of k between two barriers")]
    TN: Annotated[int, Constant("columns of C that a thread computes")]
    TK: Annotated[int, Constant("steps of BK that a thread computes, and has on their way")]
    MIN_BLOCKS: MinBlocks = 1
    SPLIT_K: SplitK = 1

    THREADS: ClassVar[str] = "(BN / TN) * (BK / TK)"
    SHARED_SET_BY: ClassVar[str] = "BM, BN, BK, TN and TK"
    REGISTERS_SET_BY: ClassVar[str] = "BM, TN and TK"

    @property
    def sliced_k(self) -> int:
        """Groups of threads of a block that share out k."""
        return self.BK // self.TK

    @property
    def partial_accumulators(self) -> int:
        """The accumulators of each result."""
        return 2 if self.TK > K_GROUP and self.BM * self.TN <= MAX_ALTERNATED else 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.BN // self.TN * self.sliced_k

    @property
    def static_shared_bytes(self) -> int:
        """The most static shared memory that a variant needs, in bytes: A, B and C are transposed.

        It holds two tiles of A, or the partial sums of the rows that are added up in one pass; see
        ``cuda_src/10_skinny.cu``.
        """
        rows = self.BM
        while rows > 1 and (rows * self.TN > self.sliced_k or rows * self.sliced_k * self.BN > MAX_PASS):
            rows //= 2
        adders = max(1, self.threads // (rows * self.BN))
        sums = rows * self.BN * (self.sliced_k + adders) + adders * (self.BN * (self.BM + 1) + PAD)
        tile = self.TK * self.BM * (self.sliced_k + (self.BM > K_GROUP))
        return 4 * max(2 * tile, sums)

    @property
    def least_registers(self) -> int:
        """A lower bound of the registers of a thread."""
        sums = self.BM * self.TN * self.partial_accumulators
        return sums + self.TK * self.TN + K_GROUP + BOOKKEEPING_REGISTERS

    def _tile_violations(self) -> list[Violation]:
        found = _divides("TN", self.TN, "BN", self.BN) + _divides("TK", self.TK, "BK", self.BK)
        if self.BM > MAX_SKINNY or not _power_of_two(self.BM):
            found.append(Violation("BM", f"a power of two up to {MAX_SKINNY}", str(self.BM)))
        if self.TK % K_GROUP:
            found.append(Violation("TK", f"a multiple of {K_GROUP}", str(self.TK)))
        return found

    def _block_violations(self, shared_limit: int) -> list[Violation]:
        found = []
        for name, value in (("TN", self.TN), ("BN / TN", self.BN // self.TN), ("BK / TK", self.sliced_k)):
            if not _power_of_two(value):
                found.append(Violation(name, "a power of two", str(value)))
        least = max(WARP, self.BM)
        if not least <= self.threads <= MAX_THREADS:
            found.append(self._threads_must_be(f"{least} to {MAX_THREADS}"))
        if self.static_shared_bytes > STATIC_SHARED:
            limit = f"at most {STATIC_SHARED} bytes, the limit of static shared memory"
            found.append(self._shared_must_be(limit, self.static_shared_bytes))
        return found + self._register_violations()


@dataclass(frozen=True, repr=False)
class SkinnyInOrderConfig(Config):
    """Rung 10 in the order of docs/order-of-summation.md: for a C of one row or column.

    SPLIT_K is 1, or anything else: then each segment of K is a part with blocks of its own.
    """

    BM: Annotated[int, Constant("rows of C that a block computes", (1,))]
    BN: Annotated[int, Constant("columns of C that a block computes, one a lane", (1, 2, 4, 8, 16, 32))]
    BK: Annotated[int, Constant("steps of k in a tile", (8, 16, 32, 64, 128, 256, 512, 1024))]
    WARPS: Annotated[int, Constant("warps of a block, each with a segment of K", most=MAX_THREADS // WARP)]
    STAGES: Annotated[int, Constant("tiles of A and of B of each warp in shared memory", least=2, most=64)]
    SPLIT_K: SplitK = 1

    THREADS: ClassVar[str] = "32 * WARPS"
    SHARED_SET_BY: ClassVar[str] = "BN, BK, WARPS and STAGES"
    REGISTERS_SET_BY: ClassVar[str] = "BK"

    @property
    def segment(self) -> int:
        """Steps of k in each chain of FMAs."""
        return SEGMENT

    @property
    def compiled(self) -> dict[str, int]:
        """The constants that the kernel is compiled for."""
        return super().compiled | {"SEGMENT": SEGMENT}

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.WARPS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes: the stages of each warp, and the sums of their segments.

        A tile of B has padded lines if B is transposed.
        """
        stage = self.BN * (self.BK + PAD) + self.BK
        return 4 * self.WARPS * (self.STAGES * stage + self.BN)

    @property
    def least_registers(self) -> int:
        """A lower bound of the registers of a thread."""
        return 1 + BOOKKEEPING_REGISTERS

    def _tile_violations(self) -> list[Violation]:
        if self.SPLIT_K == 1 or self.WARPS == 1:
            return []
        return [Violation("WARPS", "1 where SPLIT_K gives each segment of K a block of its own", str(self.WARPS))]

    def _thread_violations(self) -> list[Violation]:
        return []  # a warp is enough: the copies are its own


@dataclass(frozen=True, repr=False)
class Fp16x3Config(Config):
    """Rung 11: tensor cores on Hopper, with FP32 accuracy from three FP16 products."""

    BM: Annotated[int, Constant("rows of C that a block computes, 64 a warpgroup", (64, 128))] = 128
    BN: Annotated[int, Constant("columns of C that a block computes", (16, 32, 64, 128))] = 128
    PROMOTE_STAGES: Annotated[int, Constant("stages of 32 steps of k between promotions of the sums", (1, 2))] = 2
    STAGES: Annotated[int, Constant("tiles of A and of B in shared memory", least=4, most=64)] = 7
    GROUP_M: GroupM = 8
    SPLIT_K: SplitK = 1

    THREADS: ClassVar[str] = "128 * (BM / 64 + 1)"
    SHARED_SET_BY: ClassVar[str] = "BM, BN and STAGES"
    REGISTERS_SET_BY: ClassVar[str] = "BN"
    LINE_BYTES: ClassVar[int] = 128  # of a row of A or a column of B in a stage: 32 steps of hi and of lo
    SWIZZLE_BYTES: ClassVar[int] = 1024  # tiles begin at multiples of it
    BARRIER_BYTES: ClassVar[int] = 16  # of the two barriers of a stage
    MULTIPLY_REGISTERS: ClassVar[int] = 232  # of a thread that multiplies; the copying warpgroup hands its own over

    @property
    def tile_k(self) -> int:
        """Steps of k in a stage."""
        return 32

    @property
    def threads(self) -> int:
        """Threads of a block: the warpgroups that multiply, and one that copies."""
        return WARPGROUP * (self.BM // ROWS_PER_WARPGROUP + 1)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes."""
        stage = (self.BM + self.BN) * self.LINE_BYTES + self.BARRIER_BYTES
        return self.SWIZZLE_BYTES + self.STAGES * stage

    @property
    def least_registers(self) -> int:
        """A lower bound of the registers of a thread that multiplies."""
        return 3 * self.BN // 2 + 32

    def _register_violations(self, limit: int = MULTIPLY_REGISTERS) -> list[Violation]:
        return super()._register_violations(limit)


@dataclass(frozen=True, repr=False)
class Fp16x3MmaConfig(Config):
    """Rung 11 on devices without wgmma: the same arithmetic by mma.sync."""

    BM: Annotated[int, Constant("rows of C that a block computes", (64, 128))] = 128
    BN: Annotated[int, Constant("columns of C that a block computes", (64, 128))] = 128
    WM: Annotated[int, Constant("rows of C that a warp computes", (32, 64))] = 64
    WN: Annotated[int, Constant("columns of C that a warp computes", (32, 64))] = 32
    STAGES: Annotated[int, Constant("tiles of A and of B in shared memory", least=2, most=8)] = 3
    GROUP_M: GroupM = 8
    SPLIT_K: SplitK = 1

    THREADS: ClassVar[str] = _WarpTileConfig.THREADS
    SHARED_SET_BY: ClassVar[str] = "BM, BN and STAGES"
    REGISTERS_SET_BY: ClassVar[str] = "WM and WN"
    LINE_BYTES: ClassVar[int] = 128  # of a row of A or a column of B in a stage: 32 steps of hi and of lo

    @property
    def tile_k(self) -> int:
        """Steps of k in a stage."""
        return 32

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.BM // self.WM * (self.BN // self.WN) * WARP

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes."""
        return self.STAGES * (self.BM + self.BN) * self.LINE_BYTES

    @property
    def least_registers(self) -> int:
        """A lower bound of the registers of a thread: three sums of every element."""
        return 3 * self.WM * self.WN // WARP + BOOKKEEPING_REGISTERS


def _outer_product_registers(rows: int, columns: int) -> int:
    """Return the registers of the accumulators and fragments of an outer product, and of what every kernel needs."""
    return rows * columns + rows + columns + BOOKKEEPING_REGISTERS


def _shown(value: int) -> str:
    """Return an int as text. Python refuses to convert one of thousands of digits; it is shown by its size."""
    return str(value) if value.bit_length() <= 128 else f"an int of {value.bit_length()} bits"


def _divides(small: str, by: int, large: str, value: int) -> list[Violation]:
    if value % by == 0:
        return []
    return [Violation(large, f"a multiple of {small} = {by}", str(value))]


def _power_of_two(value: int) -> bool:
    return value & (value - 1) == 0
