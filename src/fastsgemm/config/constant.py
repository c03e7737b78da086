"""Limits of a block on every architecture, and declarations of constants that several families share."""

from typing import Annotated

from msgspec import Struct

WARP, WARPGROUP = 32, 128  # threads
LEAST_THREADS, MAX_THREADS = 64, 1024  # of a block: the fewest worth launching, and the most since sm_20
MAX_REGISTERS = 255  # of a thread, since sm_35
STATIC_SHARED = 48 * 1024  # bytes of shared memory that a block gets without opting in
BANKS = 32  # of shared memory, each a float wide
MAX_EXTENT = 2**16  # rows, columns or steps of a tile: shared memory and registers allow less on every rung
BOOKKEEPING_REGISTERS = 24  # for addresses, the loop counter and leading dimensions: the fewest seen on any rung
VECTOR = 4  # floats of a 128-bit load
PAD = 4  # floats at the end of a line of a tile that is transposed in shared memory
SEGMENT = 1024  # steps of k in a segment, version 1 of the order in docs/batch-invariance.md


class Violation(Struct, frozen=True):
    """A broken rule."""

    quantity: str  # what is limited: a constant, or what several constants give, with their names
    limit: str  # what the rule allows; it continues "must be"
    value: str  # what the config has
    reason: str = ""  # why; empty for the range of a constant

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.quantity} must be {self.limit}, got {self.value}{reason}"


class Constant(Struct, frozen=True):
    """The declaration of one constant: its meaning and its values. Kernels have 32-bit ints."""

    meaning: str
    values: tuple[int, ...] | range = range(1, MAX_EXTENT + 1)

    @property
    def limit(self) -> str:
        """The values in words."""
        if isinstance(self.values, range):
            return f"{self.values[0]} to {self.values[-1]}"
        return " or ".join(map(str, self.values))


def shown(value: int) -> str:
    """Return an int as text, or its size, because Python refuses to convert thousands of digits."""
    return str(value) if value.bit_length() <= 128 else f"an int of {value.bit_length()} bits"


BlockK = Annotated[int, Constant("steps of k in a tile")]
ThreadM = Annotated[int, Constant("rows of C that a thread computes in a thread tile")]
ThreadN = Annotated[int, Constant("columns of C that a thread computes in a thread tile")]
WarpM = Annotated[int, Constant("rows of C that a warp computes")]
WarpN = Annotated[int, Constant("columns of C that a warp computes")]
WarpSubtilesN = Annotated[int, Constant("sub-tiles of a warp tile along n")]
GroupM = Annotated[int, Constant("rows of tiles of C that blocks walk together, for L2")]
MinBlocks = Annotated[int, Constant("blocks that must fit on an SM together; bounds registers", range(1, 33))]
# More than 1024 parts cost more than they gain.
SplitK = Annotated[int, Constant("parts that K is divided into, each with its own blocks", range(1, 1025))]
