"""The ladder: one entry a rung, in the order in which each builds on the one before."""

from __future__ import annotations

from msgspec import Struct

from fastsgemm import arguments
from fastsgemm.config import (
    SEGMENT,
    BlockConfig,
    Config,
    Fp16x3Config,
    PipelinedConfig,
    SharedTileConfig,
    SkinnyConfig,
    SkinnyInOrderConfig,
    ThreadColumnConfig,
    ThreadTileConfig,
    VectorizedConfig,
    Violation,
    WarptiledConfig,
)
from fastsgemm.errors import ConfigError, PrecisionError, UnknownRungError

PRECISIONS = ("ieee", "fp16x3")  # of `sgemm`, the default first
NARROW = 32  # the most rows of C that rung 10 is for


def kernel_name(file: str) -> str:
    """Return the ``extern "C"`` name of the kernel in `file`: the name of the file without its number, and a prefix.

    >>> kernel_name("09_pipelined.cu")
    'fastsgemm_pipelined'
    """
    return "fastsgemm_" + file.lstrip("0123456789_").removesuffix(".cu")


class Rung(Struct, frozen=True, cache_hash=True):
    """One rung of the ladder.

    Attributes
    ----------
    number : int
        Its place, from 1.
    name : str
        Its name everywhere: in `sgemm`, in the tuning database, in tests and tables.
    file : str
        Its source below ``cuda_src``.
    config : type of Config
        The class of its constants.
    idea : str
        What it does that the rung before does not.
    vectorized : bool
        Whether it moves 16 bytes per load, and per store, where alignment allows.
    single_stores : bool
        Whether it stores one element at a time all the same.
    pairs : bool
        Whether it moves 8 where alignment allows no more; else that is 4.
    splits : bool
        Whether its blocks can split K as well as C.
    guarded : bool
        Whether a C smaller than a tile needs a variant of its own.
    narrow : bool
        Whether it is for a C of few rows or, with swap_ab, of few columns.
    searched : bool
        Whether `fastsgemm tune` searches its constants; the first rungs show one idea each, with fixed ones.
    reads_halves : bool
        Whether it reads 16-bit operands as they lie; for other IEEE rungs they are converted first.
    precision : str
        The `precision` of `sgemm` that it computes with: ``ieee`` or ``fp16x3``. Only kernels of ``ieee`` share one
        signature and are in the tuning database.
    """

    number: int
    name: str
    file: str
    config: type[Config]
    idea: str
    vectorized: bool = False
    single_stores: bool = False
    pairs: bool = False
    splits: bool = False
    guarded: bool = False
    narrow: bool = False
    searched: bool = False
    reads_halves: bool = False
    precision: str = "ieee"

    @property
    def reads_source(self) -> bool:
        """Whether its kernels, and those that add up its parts, can read a source; for others it is copied to C first.

        Rungs 1 to 8 show one idea each and have none of this; `sgemm` does not choose them by itself.
        """
        return self.splits

    @property
    def computes_triangles(self) -> bool:
        """Whether its kernels can compute one triangle of a symmetric result; the others compute it whole."""
        return self.guarded or self.precision != PRECISIONS[0]

    @property
    def kernel(self) -> str:
        """The ``extern "C"`` name in `file`; see `kernel_name`."""
        return kernel_name(self.file)

    def suits(self, M: int, N: int) -> bool:
        """Whether it is for a result of M rows and N columns."""
        return not self.narrow or min(M, N) <= NARROW

    def violations(self, config: Config, shared_limit: int) -> list[Violation]:
        """Return every rule that `config` breaks on this rung; the empty list if it is legal.

        Parameters
        ----------
        config : Config
        shared_limit : int
            Shared memory that a block may opt in to on the device, in bytes.
        """
        if type(config) is not self.config:
            return [Violation("class of the config", self.config.__name__, type(config).__name__)]
        return config.violations(shared_limit)

    def check(self, config: Config, shared_limit: int) -> None:
        """Raise `ConfigError` naming every rule that `config` breaks on this rung; see `violations`."""
        broken = self.violations(config, shared_limit)
        if broken:
            raise ConfigError(f"illegal config for rung {self.name} ({config}): {'; '.join(map(str, broken))}")

    def __str__(self) -> str:
        return f"{self.number} {self.name}"

    def __repr__(self) -> str:
        return f"<Rung {self}: {self.idea}>"


# fmt: off
RUNGS: tuple[Rung, ...] = (
    Rung(1, "naive", "01_naive.cu", BlockConfig, "one thread, one output; a warp reads A with a stride"),
    Rung(2, "coalesced", "02_coalesced.cu", BlockConfig, "a warp reads and writes neighbours"),
    Rung(3, "smem_tiled", "03_smem_tiled.cu", SharedTileConfig, "tiles of A and B in shared memory"),
    Rung(4, "blocktile_1d", "04_blocktile_1d.cu", ThreadColumnConfig, "TM results a thread"),
    Rung(5, "blocktile_2d", "05_blocktile_2d.cu", ThreadTileConfig, "TM x TN results, an outer product"),
    Rung(6, "vectorized", "06_vectorized.cu", VectorizedConfig, "A transposed, 128-bit loads and stores", True),
    Rung(7, "autotuned", "06_vectorized.cu", VectorizedConfig, "rung 6 with searched constants", True, searched=True),
    Rung(
        8, "warptiled", "08_warptiled.cu", WarptiledConfig, "a warp tile between block and thread", True, searched=True
    ),
    Rung(
        9, "pipelined", "09_pipelined.cu", PipelinedConfig, "two stages, copies under arithmetic, split-K",
        vectorized=True, pairs=True, splits=True, guarded=True, searched=True,
    ),
    Rung(
        10, "skinny", "10_skinny.cu", SkinnyConfig, "few rows: B straight to registers, sliced-K",
        vectorized=True, splits=True, narrow=True, reads_halves=True, searched=True,
    ),
    Rung(
        11, "fp16x3", "11_fp16x3.cu", Fp16x3Config, "FP32 accuracy from three FP16 products on tensor cores",
        searched=True, precision="fp16x3",
    ),
)
# fmt: on

# What `sgemm` chooses from where no rung is named.
DEFAULTS: tuple[Rung, ...] = RUNGS[8:10]

# Rung 10 with the order of summation of docs/batch-invariance.md, which rung 9 has by its constants. It is no step of
# the ladder, but it has a kernel, records and curves of its own; see `batch_invariant`.
SKINNY_IN_ORDER = Rung(
    10,
    "skinny_in_order",
    "10_skinny_in_order.cu",
    SkinnyInOrderConfig,
    "rung 10, the same order of summation for every problem",
    vectorized=True,
    single_stores=True,
    splits=True,
    narrow=True,
)

# Those with IEEE arithmetic only: one signature, and simulated, tuned and compared with each other.
IEEE: tuple[Rung, ...] = tuple(rung for rung in RUNGS if rung.precision == "ieee")

_BY_KEY: dict[object, Rung] = {rung.name: rung for rung in (*RUNGS, SKINNY_IN_ORDER)} | {
    rung.number: rung for rung in RUNGS
}


def of_config(config: Config) -> Rung:
    """Return the rung of `config` where the caller names none: the default rung that takes its class.

    Raises
    ------
    ConfigError
        No default rung takes it; the message lists the rungs that do.
    """
    matching = next((rung for rung in DEFAULTS if rung.config is type(config)), None)
    if matching is None:
        taking = ", ".join(rung.name for rung in (*RUNGS, SKINNY_IN_ORDER) if rung.config is type(config)) or "none"
        raise ConfigError(f"a {type(config).__name__} needs a rung; the rungs that take it: {taking}")
    return matching


def batch_invariant(rung: Rung | None, config: Config | None, precision: str) -> tuple[Rung | None, Config | None]:
    """Return the rung and the config of a call with ``batch_invariant=True``: without a config, the rung as it is.

    With precision fp16x3, any config of rung 11 has that order.

    Raises
    ------
    ConfigError
        The rung or the config sums in another order.
    """
    if precision != PRECISIONS[0]:
        return rung, config
    ordered = [each for each in (RUNGS[8], SKINNY_IN_ORDER) if rung is None or rung is each]
    if not ordered:
        needed = f"{RUNGS[8]} or {SKINNY_IN_ORDER.name}"
        raise ConfigError(f"batch_invariant=True needs rung {needed}, got {rung}, which adds in another order")
    if config is None:
        return rung, None
    for each in ordered:
        if isinstance(config, each.config):
            return each, config.replace(SEGMENT=SEGMENT) if each is RUNGS[8] else config
    classes = " or a ".join(each.config.__name__ for each in ordered)
    with_rung = "" if rung is None else f" with rung {rung.name}"
    raise ConfigError(f"batch_invariant=True{with_rung} needs a {classes}, got a {type(config).__name__}")


def in_order(config: Config, K: int) -> Config:
    """Return the config that a batch-invariant product of K steps is launched with.

    On rung 9, one segment needs no shared memory for the sums of several, as where each segment is a part.
    """
    if isinstance(config, SkinnyInOrderConfig):
        return config
    return config.replace(SEGMENT=SEGMENT, SPLIT_K=2 if K <= SEGMENT else config.split_k)


def precision_of(rung: Rung | None, precision: str) -> str:
    """Return the precision of a call. The rung that was asked for decides; the default does not contradict it.

    Raises
    ------
    PrecisionError
        There is no such precision, or the rung has another one.
    """
    if not arguments.is_one_of(precision, PRECISIONS):
        hint = arguments.hint(precision, PRECISIONS)
        if isinstance(precision, str) and precision.lower() == "tf32":
            hint = "; TF32 is never used: 'fp16x3' has the accuracy of float32 on tensor cores"
        raise PrecisionError(f"precision must be {' or '.join(map(repr, PRECISIONS))}, got {precision!r}{hint}")
    if rung is None:
        return precision
    if precision not in (PRECISIONS[0], rung.precision):
        raise PrecisionError(
            f"rung {rung.name} computes with precision {rung.precision!r}, got {precision!r}; leave one of them out"
        )
    return rung.precision


def find(key: str | int | Rung) -> Rung:
    """Return the rung of this name or number.

    Raises
    ------
    UnknownRungError
        There is none; the message lists those there are.
    """
    if isinstance(key, Rung):
        return key
    rung = _BY_KEY.get(key if isinstance(key, str) else arguments.integer(key))
    if rung is None:
        hint = arguments.hint(key, [name for name in _BY_KEY if isinstance(name, str)])
        raise UnknownRungError(f"unknown rung {key!r}; the ladder has {', '.join(map(str, RUNGS))}{hint}")
    return rung
