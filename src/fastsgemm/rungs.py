"""The ladder: one entry a rung, in the order in which each builds on the one before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastsgemm.errors import UnknownRungError

_THREAD_TILE = ("BM", "BN", "BK", "TM", "TN")
_WARP_TILE = (*_THREAD_TILE, "WM", "WN", "WNITER", "PREFETCH", "SERPENTINE", "GROUP_M", "MIN_BLOCKS")
_PIPELINE = (
    *_THREAD_TILE,
    "WM",
    "WN",
    "WNITER",
    "GROUP_M",
    "MIN_BLOCKS",
    "ORDER",
    "FRAGMENTS",
    "ASYNC",
    "SPREAD",
    "STAGES",
    "SLICES",
    "CHAINS",
    "SPLIT_K",
)
# knobs that may be left out: there are two stages then, and a sum is one chain of FMAs
OPTIONAL = ("STAGES", "SLICES", "CHAINS", "SPLIT_K")
_SKINNY = ("BM", "BN", "BK", "TN", "TK", "MIN_BLOCKS", "SPLIT_K")
_FP16X3 = ("BM", "BN", "SETS", "PROMOTE_STAGES", "STAGES", "GROUP_M", "SPLIT_K")

NARROW = 32  # the most rows of C that rung 10 is thought of for


def kernel_name(file: str) -> str:
    """Return the ``extern "C"`` name of the kernel in `file`: the name of the file without its number, and a prefix.

    >>> kernel_name("09_pipelined.cu")
    'fastsgemm_pipelined'
    """
    return "fastsgemm_" + file.lstrip("0123456789_").removesuffix(".cu")


@dataclass(frozen=True, repr=False)
class Rung:
    """One rung of the ladder.

    Attributes
    ----------
    number : int
        Its place, from 1.
    name : str
        Its name everywhere: in `sgemm`, in the tuning database, in tests and tables.
    file : str
        Its source below ``cuda_src``.
    knobs : tuple of str
        The constants that its `Config` sets.
    idea : str
        What it does that the rung before does not.
    vectorized : bool
        Whether it moves 16 bytes a load where alignment allows.
    pairs : bool
        Whether it moves 8 where alignment allows no more; else that is 4.
    splits : bool
        Whether its blocks can share out K as well as C.
    narrow : bool
        Whether it is for a C of few rows or, as the transposed product, of few columns.
    precision : str
        The `precision` of `sgemm` that it computes with: ``ieee`` or ``fp16x3``. Only kernels of ``ieee`` share one
        signature and are in the tuning database.
    """

    number: int
    name: str
    file: str
    knobs: tuple[str, ...]
    idea: str
    vectorized: bool = False
    pairs: bool = False
    splits: bool = False
    narrow: bool = False
    precision: str = "ieee"

    @property
    def kernel(self) -> str:
        """The ``extern "C"`` name in `file`; see `kernel_name`."""
        return kernel_name(self.file)

    @property
    def warp_tiles(self) -> bool:
        """Whether there is a level of warp tiles between block and thread."""
        return "WM" in self.knobs

    @property
    def guarded(self) -> bool:
        """Whether it is compiled apart for a C smaller than a tile of it."""
        return self.splits and not self.narrow

    def suits(self, M: int, N: int) -> bool:
        """Whether an (M, N) result is what it is for."""
        return not self.narrow or min(M, N) <= NARROW

    def __str__(self) -> str:
        return f"{self.number} {self.name}"

    def __repr__(self) -> str:
        return f"<Rung {self}: {self.idea}>"


# fmt: off
RUNGS: tuple[Rung, ...] = (
    Rung(1, "naive", "01_naive.cu", ("BM", "BN"), "one thread, one output; a warp reads A with a stride"),
    Rung(2, "coalesced", "02_coalesced.cu", ("BM", "BN"), "a warp reads and writes neighbours"),
    Rung(3, "smem_tiled", "03_smem_tiled.cu", ("BM", "BN", "BK"), "tiles of A and B in shared memory"),
    Rung(4, "blocktile_1d", "04_blocktile_1d.cu", ("BM", "BN", "BK", "TM"), "TM results a thread"),
    Rung(5, "blocktile_2d", "05_blocktile_2d.cu", _THREAD_TILE, "TM x TN results, an outer product"),
    Rung(6, "vectorized", "06_vectorized.cu", _THREAD_TILE, "A transposed, 128-bit loads and stores", True),
    Rung(7, "autotuned", "06_vectorized.cu", _THREAD_TILE, "rung 6 with searched constants", True),
    Rung(8, "warptiled", "08_warptiled.cu", _WARP_TILE, "a warp tile between block and thread", True),
    Rung(
        9, "pipelined", "09_pipelined.cu", _PIPELINE, "two stages, copies under arithmetic, split-K",
        vectorized=True, pairs=True, splits=True,
    ),
    Rung(
        10, "skinny", "10_skinny.cu", _SKINNY, "few rows: B straight to registers, K shared out",
        vectorized=True, splits=True, narrow=True,
    ),
    Rung(
        11, "fp16x3", "11_fp16x3.cu", _FP16X3, "FP32 accuracy from three FP16 products on tensor cores",
        precision="fp16x3",
    ),
)
# fmt: on

# What `sgemm` chooses from where no rung is named.
DEFAULTS: tuple[Rung, ...] = RUNGS[8:10]

# Those with IEEE arithmetic only: one signature, and simulated, tuned and compared with each other.
IEEE: tuple[Rung, ...] = tuple(rung for rung in RUNGS if rung.precision == "ieee")

_BY_KEY: dict[object, Rung] = {rung.name: rung for rung in RUNGS} | {rung.number: rung for rung in RUNGS}


def ladder(M: int, N: int) -> tuple[Rung, ...]:
    """Return the rungs with IEEE arithmetic that suit an (M, N) result, in order."""
    return tuple(rung for rung in IEEE if rung.suits(M, N))


def having(knobs: Iterable[str]) -> Rung:
    """Return which of the default rungs has these knobs; the first where none has."""
    wanted = {*knobs} - {*OPTIONAL}
    return next((rung for rung in DEFAULTS if {*rung.knobs} - {*OPTIONAL} == wanted), DEFAULTS[0])


def find(key: str | int | Rung) -> Rung:
    """Return the rung of this name or number.

    Raises
    ------
    UnknownRungError
        There is none; the message lists those there are.
    """
    if isinstance(key, Rung):
        return key
    found = None if isinstance(key, bool) or not isinstance(key, str | int) else _BY_KEY.get(key)
    if found is None:
        raise UnknownRungError(f"unknown rung {key!r}; the ladder has {', '.join(map(str, RUNGS))}")
    return found
