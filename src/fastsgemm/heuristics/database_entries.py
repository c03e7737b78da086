"""The entries of a tuning file as data classes: records, curves, fitted numbers and candidates.

``tuning_db/README.md`` describes the format of the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, field

from fastsgemm.config import Config
from fastsgemm.problem import LAYOUTS, Problem

SCHEMA = 5  # of the files
GENERIC = "generic"  # the file whose records are legal on every architecture

_MOST = 1e30  # of a stored number: the product of several is still a float64
Least0 = Annotated[float, Meta(ge=0.0, le=_MOST)]
Factor = Annotated[float, Meta(ge=1e-30, le=_MOST)]
AtLoads = tuple[Factor, Factor, Factor]
Factors = tuple[AtLoads, AtLoads]
Row = tuple[int, int, int, float]  # M, N, K and ms
Points = Mapping[str, Sequence[Row]]  # by layout
Needs = tuple[tuple[int, int], ...]  # steps of k, ascending, and how many chains a sum of so many needs


class Tools(Struct, frozen=True):
    """What a measurement was made with.

    Attributes
    ----------
    driver, nvrtc : str
        Versions.
    date : str
        Year-month-day.
    """

    driver: str
    nvrtc: str
    date: str

    def __str__(self) -> str:
        return f"driver {self.driver}, NVRTC {self.nvrtc}, {self.date}"


class Record(Struct, frozen=True):
    """One known-good choice of constants.

    Attributes
    ----------
    arch : str
        The architecture of the file it is in, or ``generic``.
    device : str or None
        The device it was found on; None for one that holds for all.
    rung : str
    problem : Problem or None
        The problem it was found for; None for one that holds for all.
    config : Config
    origin : str
        ``measured``, ``published`` or ``hand-picked``.
    source : str
        Where a published one is from, or what a measured one was measured with.
    ms : float or None
        Device time of a measured one.
    cublas_ratio : float or None
        Its speed over that of cuBLAS in the same run, where there was cuBLAS.
    tools : Tools or None
        Of a measured one.
    user : bool
        It comes from the user's own tuning.
    """

    arch: str
    device: str | None
    rung: str
    problem: Problem | None
    config: Config
    origin: str
    source: str
    ms: float | None = None
    cublas_ratio: float | None = None
    tools: Tools | None = None
    user: bool = False

    @property
    def place(self) -> tuple[str | None, str, int, Problem | None]:
        """What a file has one record for: device, rung, order of summation and problem."""
        return self.device, self.rung, self.config.segment, self.problem


def points_of(times: Iterable[tuple[Problem, float]]) -> Points:
    """Return measured times in ms as a curve has them."""
    points: dict[str, list[Row]] = {}
    for p, ms in times:
        points.setdefault(p.layout, []).append((p.M, p.N, p.K, ms))
    return points


class Line(NamedTuple):
    """Time at one load in ms: ``start + slope * K``, and ``extra * (K - bend)`` more where K is less than `bend`.

    Attributes
    ----------
    start, slope : float
    bend : float
        0 if the time is one straight line.
    extra : float
    """

    start: Least0
    slope: Least0
    bend: Least0 = 0.0
    extra: Annotated[float, Meta(ge=-_MOST, le=_MOST)] = 0.0

    def at(self, depth: float) -> float:
        """Return the time at this depth."""
        return self.start + self.slope * depth + self.extra * min(depth - self.bend, 0.0)


class CurveNumbers(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What `fastsgemm.heuristics.curve_fit` makes of the points of a curve, in the order in which a file has it.

    Attributes
    ----------
    tail : (float, float)
        What a ragged last tile costs, in steps of k: once, and for each of its steps.
    lines : tuple of tuple of Line
        Of aligned and of ragged operands, one for each of `fastsgemm.heuristics.curve_problems.loads`.
    layouts : three times ((float, float, float), (float, float, float))
        For each of `curve_problems.LAYOUTS` the time of the steps of K relative to NN, for aligned and for ragged
        operands: at each of `curve_problems.CurveProblems.layout_loads`.
    bandwidth : four times float
        Bytes of A and B that a ms reads, at most: where most of them are of a row-major A, of a column-major A, of a
        row-major B and of a column-major B.
    guard : float
        Slowdown of reading where C is smaller than a tile and the copies check bounds.
    shared : float
        Share of the time of reading that rows of tiles have in common, because they read the same part of B.
    """

    tail: tuple[Least0, Least0]
    lines: tuple[tuple[Line, ...], tuple[Line, ...]]
    layouts: tuple[Factors, Factors, Factors]
    bandwidth: tuple[Factor, Factor, Factor, Factor]
    guard: Annotated[float, Meta(ge=1.0, le=_MOST)]
    shared: Annotated[float, Meta(ge=0.0, le=1.0)]


class Curve(Struct, frozen=True):
    """Times of one config over many shapes, from which its time on others is predicted.

    Attributes
    ----------
    arch : str
    device : str
        The device they were measured on.
    multiprocessors : int
        Of that device.
    rung : str
    config : Config
    blocks_per_sm : int
        That fit on one of them at a time: the fewer of those with and without partial accumulators. Only without them
        in a quick run, where slices make four chains, and where shared memory has no room for them.
    points : mapping
        For each layout the measured times: M, N, K and ms.
    tools : Tools
    user : bool
        It comes from the user's own tuning.
    calibration : float
        How many times longer the steps of K take on other problems than the points say, as measured on some.
    accumulators_cost : tuple of float
        Time with partial accumulators over the time without, in layouts NN, NT, TN and TT; 0: not measured for this
        config, see `Fitted`.
    numbers : CurveNumbers or None
        What the points give, if it is stored.
    """

    arch: str
    device: str
    multiprocessors: int
    rung: str
    config: Config
    blocks_per_sm: int
    points: Points
    tools: Tools
    user: bool = False
    calibration: float = 1.0
    accumulators_cost: tuple[float, ...] = (0.0,) * len(LAYOUTS)
    numbers: CurveNumbers | None = None

    @property
    def origin(self) -> str:
        """What a time of it is."""
        return "predicted"

    @property
    def source(self) -> str:
        """What it was measured with."""
        return f"from {self.tools}"

    @property
    def times(self) -> dict[Problem, float]:
        """The measured time of each problem in ms."""
        return {Problem(M, N, K, layout): ms for layout, rows in self.points.items() for M, N, K, ms in rows}


class Fitted(Struct, frozen=True):
    """Numbers of the heuristics that were measured on a device of an architecture.

    The defaults hold where no file has any: nothing costs more, and no sum gets partial accumulators.

    Attributes
    ----------
    accumulators_cost : float
        Time with partial accumulators over the time without, for configs of which it was not measured. How many they
        are matters less than what they take from the main loop: registers, and shared memory for other blocks.
    long_sums : dict
        For each kind of problem (see `fastsgemm.heuristics.partial_accumulators.kind`) pairs of elements of C and of
        what sums need, by ascending elements. For a C of at most so many elements (None: any number) each pair of steps
        of k and of chains says how many chains a sum of at least so many steps needs.
    reduction_ms : float
        Least time of the second kernel of split-K.
    reduction_ms_per_part : float
        What each part of K adds to the time of that kernel, besides its bytes.
    reduction_bytes_per_ms : float
        Rate at which it reads and writes partial sums, which are mostly in L2.
    peeled_tiles : int
        Most tiles of K for which rung 9 computes the end of K first, where the end is less than a tile. With few tiles
        that saves a wait for a copy; with more, the main loop without it is faster, because the compiler makes better
        code of it.
    packing_ms : float
        Time of packing an operand of no elements, which is mostly the launch. A and B have one each.
    packing_bytes_per_ms : float
        Rate at which operands are packed, in bytes read and written. 0: not measured, and no operand is packed.
    odd_store_bytes_per_ms : float
        Rate of the time that is lost where C is stored float by float although packed operands are read 16 bytes at a
        time, in bytes of C. The curves know only problems where both or none are.
    """

    accumulators_cost: float = 1.0
    long_sums: dict[str, tuple[tuple[int | None, Needs], ...]] = field(default_factory=dict)
    reduction_ms: float = 0.0
    reduction_ms_per_part: float = 0.0
    reduction_bytes_per_ms: float = 1e12
    peeled_tiles: int = 0
    packing_ms: float = 0.0
    packing_bytes_per_ms: float = 0.0
    odd_store_bytes_per_ms: float = 1e12


class SearchLimits(Struct, frozen=True):
    """Which legal configs of a search space are worth their compilation, as found on an H200.

    *Results* are the elements of C that a block computes. The defaults are those of an empty database, which limits
    nothing that the hardware allows.

    Attributes
    ----------
    most_threads : int
        Threads of a block. Beyond this, every barrier waits for too many warps.
    large_results, least_thread_results : int
        From so many results on, a thread must compute at least so many.
    most_stage_floats : int
        Shared memory of a stage of rung 9, in floats. A smaller stage hides the copies too and leaves room for other
        blocks.
    most_sliced_results : int
        Results of a block with sliced-K. A larger tile has warps enough.
    most_three_stage_results, most_four_stage_results : int
        Results of a block with three or four stages, which has little time for each.
    least_scattered_results : int
        Results of a block with two stages and CP_ASYNC of 2. It saves registers, and a smaller tile has enough.
    most_async_results : int
        Results of a block with CP_ASYNC of 1. A larger tile has no registers left for copies.
    most_unsliced_k : int
        BK without sliced-K.
    slice_k : (int, int)
        Least and most steps of a tile that a slice gets with sliced-K.
    """

    most_threads: int = 1024
    large_results: int = 2**31
    least_thread_results: int = 1
    most_stage_floats: int = 2**31
    most_sliced_results: int = 2**31
    most_three_stage_results: int = 2**31
    most_four_stage_results: int = 2**31
    least_scattered_results: int = 0
    most_async_results: int = 2**31
    most_unsliced_k: int = 2**31
    slice_k: tuple[int, int] = (1, 2**31)


class Candidate(Struct, frozen=True):
    """A config that tuning tries by name, not as one of a grid.

    Attributes
    ----------
    space : str
        The search space.
    rung : str
    use : str
        ``quick``: in a quick run. ``picked``: beside the grid of the space.
    config : Config
    """

    space: str
    rung: str
    use: str
    config: Config


class Unread(Struct, frozen=True):
    """A part of a file that this version cannot use, of a later one for example. It stays in the file.

    Attributes
    ----------
    key : str
        ``records`` or ``curves`` for a line of them, or a key of the header.
    text : str
        JSON.
    """

    key: str
    text: str


class Content(Struct, frozen=True):
    """What one file holds.

    Attributes
    ----------
    arch : str
    shared_limit : int
        Shared memory that a block may opt in to on this architecture, in bytes.
    records : tuple of Record
    curves : tuple of Curve
    unread : tuple of Unread
    fitted : Fitted or None
    search_limits : SearchLimits or None
    candidates : tuple of Candidate
        Only shipped files have these three; the last two are in the generic file.
    """

    arch: str
    shared_limit: int
    records: tuple[Record, ...] = ()
    curves: tuple[Curve, ...] = ()
    unread: tuple[Unread, ...] = ()
    fitted: Fitted | None = None
    search_limits: SearchLimits | None = None
    candidates: tuple[Candidate, ...] = ()


def tflops(problem: Problem, ms: float) -> float:
    """Return the rate of a product that took `ms`, in TFLOP/s."""
    return problem.flops / ms / 1e9
