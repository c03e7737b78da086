"""The cost model as Python functions of one config and one problem, to check the arrays of the package against.

It reads like the rules of ``docs/tuning.md`` and takes a hundred times as long. It shares no code with
`fastsgemm.heuristics.cost_model` or `fastsgemm.heuristics.curve_fit`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from fastsgemm import rungs
from fastsgemm.config import Config, PipelinedConfig, SkinnyConfig
from fastsgemm.geometry.grid import blocks, split, tiles
from fastsgemm.geometry.variants import with_swap_ab
from fastsgemm.heuristics import database
from fastsgemm.heuristics.database_entries import Curve
from fastsgemm.heuristics.fitted import Fitted
from fastsgemm.problem import Problem

_DEPTHS = (128, 1024)  # the two K that every load is measured at
_SKINNY_DEPTHS = (512, 2048)  # the same for rung 10, whose BK is large
_TINY = 8  # a third K, at which nearly all time is what a block costs once
_SPARSE = 8  # the lightest load is one block on every eighth multiprocessor
_STEADY = 4  # the heaviest is this many full waves
# Limits of split-K: most parts, most waves of blocks, least tiles of a part.
_MOST_PARTS, _MOST_WAVES, _LEAST_TILES = 256, 8, 2
_LAYOUTS = ("NT", "TN", "TT")  # measured at a few loads only, as factors of the time of NN
_STACKED = 4  # rows of tiles in the point that shows how much they share of B on rung 10
_TRANSACTION = 4  # floats of a 16-byte load, which needs extents that are multiples of it


def accumulators_factor(config: Config, fitted: Fitted, own: float = 0.0) -> float:
    """Return how many times longer a config takes with its partial accumulators than with one accumulator.

    `own` is what was measured for this config.
    """
    several = isinstance(config, PipelinedConfig) and config.PARTIAL_ACCUMULATORS > 1
    return own or fitted.accumulators_cost if several else 1.0


def has_too_few_chains(config: Config, problem: Problem) -> bool:
    """Return whether sums have fewer chains than they need, with a config of rung 9 or 10.

    A chain of partial accumulators is whole tiles of at least 16 steps.
    """
    parts, chunk = split(config, problem.K)
    own = 2 if isinstance(config, SkinnyConfig) and config.TK > 4 and config.BM * config.TN <= 16 else 1
    if isinstance(config, PipelinedConfig) and config.PARTIAL_ACCUMULATORS > 1:
        tiles = -(-16 // config.BK)
        own = min(config.PARTIAL_ACCUMULATORS, min(problem.K, chunk) // (tiles * config.BK))
    return own * config.sliced_k * parts < min(16, -(-problem.K // 512))


def loads(blocks_per_sm: int) -> list[float]:
    """Return the loads that a curve is measured at, for a config of which so many blocks fit on a multiprocessor."""
    powers = [float(2**i) for i in range(blocks_per_sm.bit_length()) if 2**i < blocks_per_sm]
    return [1 / _SPARSE, *powers, float(blocks_per_sm), float(_STEADY * blocks_per_sm)]


def splits(config: Config, problem: Problem, multiprocessors: int) -> list[int]:
    """Return the numbers of parts of K to consider: 1, and 2^i and 3 * 2^i while there are few blocks.

    Parameters
    ----------
    config : Config
    problem : Problem
        As the rung computes it; see `fastsgemm.geometry.variants.with_swap_ab`.
    multiprocessors : int
    """
    count = tiles(config, problem)
    depth = config.tile_k * (1 if isinstance(config, SkinnyConfig) else _LEAST_TILES)
    found = [1]
    for parts in sorted(base << i for base in (2, 3) for i in range(_MOST_PARTS.bit_length())):
        if parts > _MOST_PARTS or found[-1] * count >= _MOST_WAVES * multiprocessors or parts * depth > problem.K:
            break
        found.append(parts)
    return found


def depths(config: Config) -> tuple[int, int]:
    """Return the two depths of K that a curve is measured at."""
    return _SKINNY_DEPTHS if isinstance(config, SkinnyConfig) else _DEPTHS


def _layout_loads(config: Config, blocks_per_sm: int) -> tuple[float, ...]:
    """Return the loads at which layouts other than NN are measured: 1, a full wave and on rung 9 also 2."""
    full = float(blocks_per_sm)
    return (1.0, min(2.0, full), full) if isinstance(config, PipelinedConfig) else (1.0, full)


def _probe(config: Config, count: float, K: int, ragged: int, layout: str = "NN") -> Problem:
    """Return a problem of about `count` tiles, nearly square or, on rung 10, in a row; a ragged one has odd extents."""
    whole = max(1, round(count))
    if isinstance(config, SkinnyConfig):
        return Problem(max(1, config.BM - ragged), whole * config.BN - ragged, K, layout)
    rows = _near_root(whole)
    return Problem(rows * config.BM - ragged, whole // rows * config.BN - ragged, K, layout)


def _tails(config: Config, multiprocessors: int) -> tuple[Problem, Problem, Problem]:
    """Return problems with an aligned K of four steps in a last tile, a ragged one of one step, and of all but one.

    They have the smaller depth, at which the cost of a last tile stands out from the noise.
    """
    shallow, step = depths(config)[0], config.tile_k
    return (
        _probe(config, multiprocessors, shallow + 4, 0),
        _probe(config, multiprocessors, shallow + 1, 1),
        _probe(config, multiprocessors, shallow + step - 1, 1),
    )


def _streams(config: Config, blocks_per_sm: int, multiprocessors: int) -> dict[tuple[bool, str], Problem]:
    """Return the problems that read memory most, by whether the large operand is B and by how it lies.

    No two blocks share a tile of it. On rung 10 it is always B, and on rungs 1 to 8 one problem stands for all.
    """
    blocks, deep = blocks_per_sm * multiprocessors, depths(config)[1]
    wide = {"N": Problem(config.BM, blocks * config.BN, deep), "T": Problem(config.BM, blocks * config.BN, deep, "NT")}
    tall = {"N": Problem(blocks * config.BM, config.BN, deep), "T": Problem(blocks * config.BM, config.BN, deep, "TN")}
    if isinstance(config, SkinnyConfig):
        tall = wide
    elif not isinstance(config, PipelinedConfig):  # one stands for all
        tall = wide = dict.fromkeys("NT", tall["N"])
    return {(False, how): one for how, one in tall.items()} | {(True, how): one for how, one in wide.items()}


def _guarded(stream: Problem) -> Problem:
    """Return the same with too few columns for a tile, so that the copies must check bounds."""
    return replace(stream, N=stream.N - _TRANSACTION)


def _stacked(config: Config, stream: Problem) -> Problem:
    """Return about as many tiles in several rows, which share what they read of B."""
    M = _STACKED * config.BM
    return replace(stream, M=M, N=max(M, stream.N // _STACKED))


def _near_root(count: int) -> int:
    """Return the largest divisor of `count` up to its root, or the root where that is far off."""
    root = math.isqrt(count)
    divisor = next(d for d in range(root, 0, -1) if count % d == 0)
    return divisor if 2 * divisor >= root else root


@dataclass(frozen=True)
class _Line:
    """Time at one load: ``start + slope * K`` ms, and below `bend` a second line to the time at a tiny K.

    Attributes
    ----------
    load, start, slope : float
    bend : float
    tiny : tuple of float
        A depth and the time there.
    """

    load: float
    start: float
    slope: float
    bend: float = 0.0
    tiny: tuple[float, float] = (0.0, 0.0)

    def at(self, depth: float) -> float:
        """Return the time at this depth."""
        if depth >= self.bend:
            return self.start + self.slope * depth
        low, below = self.tiny
        above = self.start + self.slope * self.bend
        return below + (above - below) * (depth - low) / (self.bend - low)


class CostModel:
    """Predicts one config from its curve.

    Parameters
    ----------
    curve : Curve

    Raises
    ------
    ValueError
        The curve lacks the points that every prediction needs.
    """

    def __init__(self, curve: Curve) -> None:
        self._rung, self._config = rungs.find(curve.rung), curve.config
        self._fitted = database.fitted("sm_90")
        self._shallow, self._deep = depths(curve.config)
        self._full = float(curve.blocks_per_sm)
        self._known = curve.times
        self._sms = curve.multiprocessors
        self._lines = (self._measured_lines(0), self._measured_lines(1))
        self._calibration = curve.calibration
        self.accumulators_costs = dict(zip(("NN", *_LAYOUTS), curve.costs, strict=True))
        self._tail = self._tail_steps()
        self._tiny = self._depth(_TINY)
        # The ragged times hold the first step of a last tile: take out what `_depth` adds for it.
        extra = self._depth(self._deep + 1) - (self._deep + 1)
        ragged_lines = tuple(replace(line, start=max(0.0, line.start - line.slope * extra)) for line in self._lines[1])
        self._lines = (
            tuple(self._with_one_bend(self._bent(line, 0)) for line in self._lines[0]),
            tuple(self._with_one_bend(self._bent(line, 1)) for line in ragged_lines),
        )
        self._factors = {layout: tuple(self._layout_factors(layout, r) for r in (0, 1)) for layout in _LAYOUTS}
        streams = _streams(self._config, int(self._full), self._sms)
        stream = streams[False, "N"]
        known = {which: one if one in self._known else stream for which, one in streams.items()}
        # Bytes a ms.
        self._bandwidth = {which: 4.0 * (p.M + p.N) * p.K / self._ms(p) for which, p in known.items()}
        # Slowdown by checking bounds, where C is smaller than a tile; rung 10 always checks.
        self._guard = max(1.0, self._known.get(_guarded(stream), 0.0) / self._ms(stream))
        self._shared = self._shared_part(stream)

    def predict_split(self, problem: Problem, config: Config, multiprocessors: int) -> float:
        """Return the predicted device time in ms with the SPLIT_K of `config`, the reduction included."""
        problem = with_swap_ab(self._rung, problem)
        count, chunk = split(config, problem.K)
        if count == 1:
            return self._part(problem, problem.K, multiprocessors)
        whole = self._part(problem, chunk, multiprocessors / count)
        outputs = 4.0 * problem.M * problem.N  # bytes
        fitted = self._fitted
        adding = fitted.reduction_ms + count * fitted.reduction_ms_per_part
        return whole + adding + outputs * (count + 2) / fitted.reduction_bytes_per_ms

    def _part(self, problem: Problem, K: int, multiprocessors: float) -> float:
        """Return the time of all tiles of C, each over K steps of those that the problem has."""
        load = blocks(self._config.kernel, problem) / multiprocessors
        depth = max(self._depth(K), self._tiny)  # a whole tile has fewer steps than a ragged one counts as
        config = self._config
        guard = self._guard if problem.M < config.BM or problem.N < config.BN else 1.0
        store = self._lines[int(problem.N % _TRANSACTION != 0)]

        def read(load: float) -> float:
            return guard * self._steps(load, depth, problem)

        def whole(load: float) -> float:
            return self._at(store, load, self._tiny) + read(load)

        ms = self._waves(load, whole)
        if self._rung.narrow:
            steps = self._waves(load, read)
            shared = self._shared * (1 - 1 / min(_STACKED, -(-problem.M // config.BM)))
            # Few blocks do not saturate the memory, so sharing reads saves them nothing.
            ms += min(steps, max(steps * (1 - shared), read(1 / _SPARSE))) - steps
        of_b = problem.N >= problem.M
        traffic = 4.0 * (problem.M + problem.N) * max(1, problem.K) / self._bandwidth[of_b, problem.layout[int(of_b)]]
        return max(ms, traffic)

    def _steps(self, load: float, depth: float, problem: Problem) -> float:
        """Return the time at this load less what blocks cost once."""
        ragged = _ragged(problem)
        return self._calibration * sum(
            share
            * self._layout_factor(problem.layout, load, kind)
            * (self._at(self._lines[kind], load, depth) - self._at(self._lines[kind], load, self._tiny))
            for kind, share in ((0, 1 - ragged), (1, ragged))
            if share
        )

    def _waves(self, load: float, at: Callable[[float], float]) -> float:
        """Return the time of all waves; the last one takes as long as its multiprocessor with most blocks."""
        first = at(self._full)
        if load <= self._full:
            return at(load if load <= 1 else math.ceil(load))
        wave = max(0.0, at(_STEADY * self._full) - first) / (_STEADY - 1)
        waves = int(load / self._full)
        rest = load - waves * self._full
        part = at(math.ceil(rest) if rest > 1 else rest) / first if rest > 1e-9 and first else 0.0
        return first + (waves - 1 + part) * wave

    def _at(self, lines: tuple[_Line, ...], load: float, depth: float) -> float:
        """Interpolate between the measured loads up to a full wave."""
        place = max(1, bisect_left(lines, load, key=lambda line: line.load))
        low, high = lines[place - 1], lines[place]
        below, above = low.at(depth), high.at(depth)
        return below + (above - below) * max(0.0, (load - low.load) / (high.load - low.load))

    def _depth(self, K: int) -> float:
        """Return K with the steps of a ragged last tile weighted by what they cost."""
        step = self._config.tile_k
        rest = K % step
        once, each = self._tail
        return K - rest + (once + each * rest if rest else 0.0)

    def _layout_factor(self, layout: str, load: float, ragged: int) -> float:
        """Return the factor of a layout, which changes with the logarithm of the load, rounded up."""
        if layout == "NN":
            return 1.0
        measured = self._factors[layout][ragged]
        load = min(max(1.0, math.ceil(load)), self._full)
        above = min(each for each in measured if each >= load)
        if above == load:
            return measured[load]
        below = max(each for each in measured if each < load)
        share = math.log(load / below) / math.log(above / below)
        return measured[below] + (measured[above] - measured[below]) * share

    # From the measured points

    def _ms(self, problem: Problem) -> float:
        try:
            return self._known[problem]
        except KeyError:
            raise ValueError(f"the curve has no time for {problem}") from None

    def _measured_lines(self, ragged: int) -> tuple[_Line, ...]:
        return tuple(self._line(load, ragged) for load in loads(int(self._full)))

    def _line(self, load: float, ragged: int) -> _Line:
        def probe(depth: int) -> Problem:
            return _probe(self._config, load * self._sms, depth + ragged, ragged)

        depth = self._shallow
        shallow, deep = self._ms(probe(depth)), self._ms(probe(self._deep))
        slope = max(0.0, deep - shallow) / (self._deep - depth)
        return _Line(load, max(0.0, shallow - slope * (depth + ragged)), slope)

    def _bent(self, line: _Line, ragged: int) -> _Line:
        """Return a line with the time at a tiny K, where the curve has it."""
        ms = self._known.get(_probe(self._config, line.load * self._sms, _TINY + ragged, ragged))
        low = self._depth(_TINY + ragged)
        if ms is None or low >= self._shallow or ms > line.at(self._shallow):  # disturbed, if more than of many steps
            return line
        # On rung 9 every tile costs the same once all stages are full and one more copy is in flight.
        bend = self._shallow
        if isinstance(self._config, PipelinedConfig):
            bend = min(bend, (self._config.STAGES + 1) * self._config.BK)
        if low >= bend or line.at(bend) < ms:  # the line would predict less than was measured
            bend = self._shallow
        return replace(line, bend=float(bend), tiny=(low, ms))

    def _with_one_bend(self, line: _Line) -> _Line:
        """Return a line that bends where all of the config do, and is the same at few steps and at many."""
        bend = self._shallow
        if isinstance(self._config, PipelinedConfig):
            bend = min(bend, (self._config.STAGES + 1) * self._config.BK)
        bend = bend if bend > self._tiny else self._shallow
        bent = line.bend > self._tiny
        return (
            replace(line, bend=float(bend), tiny=(self._tiny, line.at(self._tiny))) if bent else replace(line, bend=0.0)
        )

    def _layout_factors(self, layout: str, ragged: int) -> dict[float, float]:
        deep = self._deep
        found = {}
        for load in _layout_loads(self._config, int(self._full)):
            line = next(line for line in self._lines[ragged] if line.load == load)
            once = line.at(self._tiny)
            whole = self._ms(_probe(self._config, load * self._sms, deep + ragged, ragged)) - once
            steps = self._ms(_probe(self._config, load * self._sms, deep + ragged, ragged, layout)) - once
            found[load] = max(0.1, steps / whole) if whole > 0.0 else 1.0
        return found

    def _tail_steps(self) -> tuple[float, float]:
        """Return what a ragged last tile costs, in steps of k: once, and for each of its steps."""
        step = self._config.tile_k
        if step < 3:
            return 0.0, 1.0
        tails = _tails(self._config, self._sms)
        four, shortest, longest = map(self._ms, tails)
        aligned, ragged = (lines[1].slope or 1e-9 for lines in self._lines)
        each = max(0.0, longest - shortest) / (step - 2) / ragged
        whole = self._ms(_probe(self._config, self._sms, self._shallow, 0))
        return max(0.0, (four - whole) / aligned - 4 * each), each

    def _shared_part(self, stream: Problem) -> float:
        """Return the part of the time that rows of tiles share on rung 10, reading B once, where it was measured."""
        stacked = _stacked(self._config, stream)
        if not isinstance(self._config, SkinnyConfig) or stacked not in self._known:
            return 0.0
        once = self._at(self._lines[0], self._full, self._tiny)
        alone, together = ((self._ms(p) - once) / blocks(self._config.kernel, p) for p in (stream, stacked))
        return min(1.0, max(0.0, (1 - together / alone) / (1 - 1 / _STACKED))) if alone > 0.0 else 0.0


def _ragged(problem: Problem) -> float:
    """Return the share of A and B that cannot be read 16 bytes at a time, if they are dense."""
    lines = (
        problem.M if problem.layout[0] == "T" else problem.K,
        problem.K if problem.layout[1] == "T" else problem.N,
    )
    return sum(line % _TRANSACTION != 0 for line in lines) / len(lines)
