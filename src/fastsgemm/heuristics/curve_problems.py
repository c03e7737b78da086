"""The problems that a curve is measured on. ``docs/tuning.md`` explains what each of them shows.

They are at chosen *loads*, the blocks of a grid over the device's multiprocessors, and at chosen depths of K. Kernels
for square and for narrow results are measured on grids of another form and at other depths; each form is a class here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

from msgspec import Struct

from fastsgemm.config import Config, PipelinedConfig, SkinnyConfig
from fastsgemm.problem import Problem

TINY = 8  # a third K, at which nearly all time is what a block costs once
SPARSE = 8  # the lightest load is one block on every eighth multiprocessor
STEADY = 4  # the heaviest load is this many full waves
STACKED = 4  # rows of tiles in the point that shows how much rows share of B on rung 10
LAYOUTS = ("NT", "TN", "TT")  # measured at a few loads only, as factors of the time of NN
TRANSACTION = 4  # floats of a 16-byte load, which needs extents that are multiples of it


def loads(blocks_per_sm: int) -> list[float]:
    """Return the loads that a curve is measured at, for a config of which so many blocks fit on a multiprocessor."""
    powers = [float(2**i) for i in range(blocks_per_sm.bit_length()) if 2**i < blocks_per_sm]
    return [1 / SPARSE, *powers, float(blocks_per_sm), float(STEADY * blocks_per_sm)]


class CurveProblems(Struct, frozen=True):
    """The problems of the curve of one config, on nearly square grids: rungs 1 to 8."""

    config: Config
    blocks_per_sm: int  # blocks that fit on a multiprocessor at a time
    multiprocessors: int

    shallow: ClassVar[int] = 128  # the two K that every load is measured at
    deep: ClassVar[int] = 1024
    least_tiles: ClassVar[int] = 2  # of a part of K

    def problems(self) -> list[Problem]:
        """Return the problems that a curve is measured on."""
        chosen = [
            self.at(load, depth + ragged, ragged)
            for ragged in (0, 1)
            for load in loads(self.blocks_per_sm)
            for depth in (TINY, self.shallow, self.deep)
        ]
        chosen += [
            self.at(load, self.deep + ragged, ragged, layout)
            for ragged in (0, 1)
            for load in dict.fromkeys(self.layout_loads)
            for layout in LAYOUTS
        ]
        chosen += [*self.tails(), *self.streams()]
        chosen += [problem for problem in (self.guarded(), self.stacked()) if problem is not None]
        return list(dict.fromkeys(chosen))

    def at(self, load: float, K: int, ragged: int, layout: str = "NN") -> Problem:
        """Return a problem of about this load; a ragged one has odd extents."""
        M, N = self.extents(load)
        return Problem(max(1, M - ragged), max(1, N - ragged), K, layout)

    def extents(self, load: float) -> tuple[int, int]:
        """Return M and N of about this load, in whole tiles."""
        whole = max(1, round(load * self.multiprocessors))
        rows = _near_root(whole)
        return rows * self.config.BM, whole // rows * self.config.BN

    @property
    def layout_loads(self) -> tuple[float, float, float]:
        """The loads at which the other layouts are measured, some of them the same. The last is a full wave."""
        return 1.0, 1.0, float(self.blocks_per_sm)

    def tails(self) -> tuple[Problem, Problem, Problem]:
        """Return problems with an aligned K of four steps in a last tile, a ragged one of one step, and of all but one.

        They have the smaller depth, at which the cost of a last tile stands out from the noise.
        """
        return (
            self.at(1.0, self.shallow + 4, 0),
            self.at(1.0, self.shallow + 1, 1),
            self.at(1.0, self.shallow + self.config.tile_k - 1, 1),
        )

    def streams(self) -> tuple[Problem, ...]:
        """Return the problems that read memory most: no two blocks share a tile of the large operand.

        That is A, row-major and then column-major, and B, row-major and then column-major. Here one problem stands for
        all of them.
        """
        return (Problem(self.blocks_per_sm * self.multiprocessors * self.config.BM, self.config.BN, self.deep),) * 4

    def guarded(self) -> Problem | None:
        """Return the first stream with too few columns for a tile, so that the copies must check bounds."""
        stream = self.streams()[0]
        return replace(stream, N=stream.N - TRANSACTION)

    def stacked(self) -> Problem | None:
        """Return about as many tiles in several rows, which share what they read of B; None if nothing is shared."""
        return None

    @property
    def bend(self) -> float:
        """The K from which on the time is one straight line."""
        return float(self.shallow)


class PipelinedProblems(CurveProblems, frozen=True):
    """Rung 9: every tile costs the same once all stages are full and one more copy is in flight."""

    @property
    def layout_loads(self) -> tuple[float, float, float]:
        # The slower layout of two waits longer for its copies, which shows at a load of 1 and hardly at 2.
        full = float(self.blocks_per_sm)
        return 1.0, min(2.0, full), full

    def streams(self) -> tuple[Problem, ...]:
        """Return the problems that read memory most, one for each operand and order."""
        blocks, BM, BN = self.blocks_per_sm * self.multiprocessors, self.config.BM, self.config.BN
        tall = [Problem(blocks * BM, BN, self.deep, layout) for layout in ("NN", "TN")]
        return (*tall, *(Problem(BM, blocks * BN, self.deep, layout) for layout in ("NN", "NT")))

    @property
    def bend(self) -> float:
        assert isinstance(self.config, PipelinedConfig)
        return float(min(self.shallow, (self.config.STAGES + 1) * self.config.BK))


class NarrowProblems(CurveProblems, frozen=True):
    """Rung 10: one row of tiles, and deep ones."""

    shallow = 512
    deep = 2048
    least_tiles = 1

    def extents(self, load: float) -> tuple[int, int]:
        return self.config.BM, max(1, round(load * self.multiprocessors)) * self.config.BN

    def streams(self) -> tuple[Problem, ...]:
        """Return the problems that read memory most: a full wave, whose large operand is B."""
        of_b = [self.at(self.blocks_per_sm, self.deep, 0, layout) for layout in ("NN", "NT")]
        return (*of_b, *of_b)

    def guarded(self) -> Problem | None:
        """Return None, because rung 10 always checks bounds."""
        return None

    def stacked(self) -> Problem | None:
        M = STACKED * self.config.BM
        return Problem(M, max(M, self.streams()[0].N // STACKED), self.deep)


_FORMS: dict[type[Config], type[CurveProblems]] = {PipelinedConfig: PipelinedProblems, SkinnyConfig: NarrowProblems}


def form(config: Config) -> type[CurveProblems]:
    """Return the class of the problems of a config."""
    return _FORMS.get(type(config), CurveProblems)


def problems_of(config: Config, blocks_per_sm: int, multiprocessors: int) -> CurveProblems:
    """Return the problems on which the curve of a config is measured."""
    return form(config)(config, blocks_per_sm, multiprocessors)


@lru_cache(maxsize=1024)
def _near_root(count: int) -> int:
    """Return the largest divisor of `count` up to its root, or the root where that is far off."""
    root = math.isqrt(count)
    divisor = next(d for d in range(root, 0, -1) if count % d == 0)
    return divisor if 2 * divisor >= root else root
