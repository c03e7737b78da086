"""Measure rung 11 on a device: what its tiles and its other kernels take, from which `heuristics.fp16x3` predicts.

One number is measured after the other, the simplest first, and what is known by then is subtracted from the next time.
Each tile is timed on products whose tiles fill the device in one and in four waves, with a short and a long K. Its
times of 32 steps of k and of the rest of a tile are those with the least squares of the relative errors.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import asdict, replace

from fastsgemm.device import DeviceInfo
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry.fp16x3 import TileConfig, blocks_of, line_bytes
from fastsgemm.geometry.layout import ITEM
from fastsgemm.heuristics import database
from fastsgemm.heuristics import fp16x3 as heuristics
from fastsgemm.heuristics.fields import Tools
from fastsgemm.heuristics.fp16x3_rates import Direct, Rates, Tile, Times
from fastsgemm.problem import DTYPES, FLOAT32, Dtypes, Problem, Sym

if TYPE_CHECKING:
    from numpy.typing import NDArray


Split = tuple[bool, bool]  # whether A and B are split in the call that is timed, or were before
Time = Callable[[TileConfig, Problem, Split], float]  # returns the microseconds of a call's kernels on the device

_NEITHER, _BOTH = (False, False), (True, True)
_SMALL = Problem(64, 16, 256, "NT")  # takes what its kernels take; one splits both operands, on every device
_UNSPLIT = {"direct": DTYPES["bf16xbf16"], "mixed": DTYPES["f32xbf16"]}  # by the part of `Rates` that it is timed for
_LONG = 8192  # lines and steps of k of an operand that is split, and steps of one that is read
_READ = 32768  # lines of that: so many that its beginning and end hardly count
_NARROW = 128  # lines of the other operand
_ADDED = Problem(4096, 4096, 1024)  # whose partial sums are added
_PARTS = 4  # of its K
_SYMMETRIC = Problem(3840, 3840, 512, symmetric=True)
_SHORT_K, _LONG_K = 128, 2048  # of the products of a tile, if it serves them: with a longer one, its rest is a guess
_LEAST = 1e-3  # of a time or a rate; a smaller one is noise


def measure(device: DeviceInfo, tools: Tools, time: Time) -> Rates:
    """Return the rates of a device, for the tiles that the shipped database has for its architecture."""
    shipped = database.rates(device.arch)
    tiles = [tile for tile in shipped.tiles if tile.config.shared_bytes <= device.shared_limit]
    first = next(tile for tile in tiles if tile.serves(_SMALL.K, device.shared_limit))
    before, within = (time(first.config, _SMALL, split) for split in (_NEITHER, _BOTH))
    launch, fitted = _tiles(device, tiles, time)
    times = Times(launch, max(_LEAST, within - before), math.inf, math.inf, math.inf, math.inf, 0.0)
    rates = Rates(
        device=device.name,
        multiprocessors=device.multiprocessors,
        times=times,
        split_halves=shipped.split_halves,
        most_parts=shipped.most_parts,
        tiles=fitted,
        **asdict(tools),
    )
    tile = next(tile for tile in fitted if tile.serves(_ADDED.K, device.shared_limit))
    for name, dtypes in _UNSPLIT.items():
        if (part := getattr(shipped, name)) is not None:
            launch, fitted = _tiles(device, part.tiles, time, dtypes)
            rates = replace(rates, **{name: Direct(launch, math.inf, fitted)})
            rate = _read_rate(rates, fitted, time, dtypes)
            rates = replace(rates, **{name: Direct(launch, rate, fitted)})
    rates = _with(rates, reduce_tb_s=_reduction_rate(rates, tile, time))
    rates = _with(rates, mirrored=_mirrored(rates, tile, time))
    rates = _with(rates, split_rows_tb_s=_split_rate(rates, tile, "NN", time))
    rates = _with(rates, split_columns_tb_s=_split_rate(rates, tile, "TN", time))
    rates = _with(rates, read_tb_s=_read_rate(rates, rates.tiles, time))
    return _rounded(rates)


def correct(device: DeviceInfo, tools: Tools, time: Time) -> Rates:
    """Return the shipped rates for the architecture of a device, scaled by three times on it.

    They are those of a small product, of a large one whose operands were split before, and of splitting. What is
    computed is scaled like the second, what is read and written like the third.
    """
    shipped = database.rates(device.arch)
    tile = next(tile for tile in shipped.tiles if tile.serves(_LONG_K, device.shared_limit))
    *_, large = _problems_of(device, tile, FLOAT32)

    def ratio(problem: Problem) -> float:
        trans_c = heuristics.orientation(device, problem, tile.config)
        t = geometry.tiling(tile.config, problem.M, problem.N, problem.K, trans_c, device.multiprocessors)
        expected = heuristics.predicted_us(shipped, tile, t, problem, _NEITHER, device.multiprocessors)
        return time(tile.config, problem, _NEITHER) / expected

    once, steps = ratio(_SMALL), ratio(large)
    rate = _split_rate(shipped, tile, "NN", time) / shipped.times.split_rows_tb_s

    def scaled(part: Rates | Direct) -> tuple[Tile, ...]:
        return tuple(replace(t, step_us=steps * t.step_us, tile_us=steps * t.tile_us) for t in part.tiles)

    unsplit = {
        name: Direct(once * part.launch_us, rate * part.read_tb_s, scaled(part))
        for name in _UNSPLIT if (part := getattr(shipped, name)) is not None
    }  # fmt: skip
    factors = {name: rate if name.endswith("_tb_s") else once for name in Times.__struct_fields__} | {"mirrored": 1.0}
    times = Times(**{name: factors[name] * value for name, value in asdict(shipped.times).items()})
    corrected = replace(
        shipped, device=device.name, transferred_from=shipped.device, multiprocessors=device.multiprocessors,
        times=times, least_gflop=None, tiles=scaled(shipped), **unsplit, **asdict(tools),
    )  # fmt: skip
    return _rounded(corrected)


def _tiles(
    device: DeviceInfo, tiles: Sequence[Tile], time: Time, dtypes: Dtypes = FLOAT32
) -> tuple[float, tuple[Tile, ...]]:
    """Return the microseconds of a call without its tiles, and the tiles with their times.

    All are fitted together, because a call is short beside most of them. The first tile that serves it has one more
    time, of a product that takes hardly longer than a call.
    """
    first = next(number for number, tile in enumerate(tiles) if tile.serves(_SMALL.K, device.shared_limit))
    rows, took = [], []
    for number, tile in enumerate(tiles):
        small = [dataclasses.replace(_SMALL, dtypes=dtypes)] if number == first else []
        for problem in (*small, *_problems_of(device, tile, dtypes)):
            trans_c = heuristics.orientation(device, problem, tile.config)
            t = geometry.tiling(tile.config, problem.M, problem.N, problem.K, trans_c, device.multiprocessors)
            waves = -(-t.tiles // device.multiprocessors)
            row = [1.0, *(0.0,) * (2 * len(tiles))]
            row[2 * number + 1], row[2 * number + 2] = waves * t.computed_blocks, waves
            rows.append(row)
            took.append(time(tile.config, problem, _NEITHER))
    launch, *of_tiles = (max(_LEAST, us) for us in _least_squares(np.array(rows) / np.array(took)[:, None]))
    pairs = zip(tiles, of_tiles[::2], of_tiles[1::2], strict=True)
    return launch, tuple(replace(tile, step_us=step, tile_us=rest) for tile, step, rest in pairs)


def _with(rates: Rates, **times: float) -> Rates:
    return replace(rates, times=replace(rates.times, **times))


def _least_squares(matrix: NDArray[np.float64]) -> list[float]:
    """Return x >= 0 with matrix x as near to ones as possible."""
    solution, columns = [0.0] * matrix.shape[1], list(range(matrix.shape[1]))
    while columns:
        values = np.linalg.lstsq(matrix[:, columns], np.ones(len(matrix)), rcond=None)[0]
        if values.min() >= 0:
            for column, value in zip(columns, values, strict=True):
                solution[column] = float(value)
            break
        del columns[int(values.argmin())]
    return solution


def _problems_of(device: DeviceInfo, tile: Tile, dtypes: Dtypes) -> Iterator[Problem]:
    """Yield products of one wave and of four, nearly square, so that tiles share what they read in L2."""
    config = tile.config
    down = max(1, round(math.sqrt(device.multiprocessors * config.BN / config.BM)))
    across = max(1, device.multiprocessors // down)
    for times, K in itertools.product((1, 2), (max(_SHORT_K, tile.least_k), min(_LONG_K, tile.most_k or _LONG_K))):
        M, N = times * down * config.BM, times * across * config.BN
        yield Problem(M, N, K, "NN" if dtypes.are_float32 else "NT", dtypes=dtypes)


def _reduction_rate(rates: Rates, tile: Tile, time: Time) -> float:
    config = tile.config.replace(SPLIT_K=_PARTS)
    rest = _predicted_us(rates, tile, config, _ADDED)
    moved = ITEM * _ADDED.M * _ADDED.N * (_PARTS + 1)
    return _rate(moved, time(config, _ADDED, _NEITHER) - rest)


def _mirrored(rates: Rates, tile: Tile, time: Time) -> float:
    """Return the times of `tile_us` that the transposed store takes."""
    M, N, K = _SYMMETRIC.M, _SYMMETRIC.N, _SYMMETRIC.K
    t = geometry.tiling(tile.config, M, N, K, False, rates.multiprocessors, Sym.BOTH)
    rest = heuristics.predicted_us(rates, tile, t, _SYMMETRIC, _NEITHER, rates.multiprocessors)
    us = time(tile.config, _SYMMETRIC, _NEITHER) - rest
    return max(_LEAST, us / (-(-t.works // rates.multiprocessors) * tile.tile_us))


def _split_rate(rates: Rates, tile: Tile, layout: str, time: Time) -> float:
    problem = Problem(_LONG, _NARROW, _LONG, layout)
    before, within = (time(tile.config, problem, split) for split in (_NEITHER, (True, False)))
    return _rate(2 * ITEM * _LONG * _LONG, within - before - rates.times.kernel_us)


def _read_rate(rates: Rates, tiles: Sequence[Tile], time: Time, dtypes: Dtypes = FLOAT32) -> float:
    """Return the rate at which the narrowest tile reads on one column of tiles, where that takes longest."""
    tile = min(
        (candidate for candidate in tiles if candidate.serves(_LONG, sys.maxsize)),
        key=lambda candidate: candidate.config.BN,
    )
    config = tile.config.replace(SPLIT_K=2)
    problem = Problem(_READ, config.BN, _LONG, "NN" if dtypes.are_float32 else "NT", dtypes=dtypes)
    idle = replace(tile, step_us=0.0, tile_us=0.0)
    rest, computed = (_predicted_us(rates, timed, config, problem) for timed in (idle, tile))
    norm = heuristics.OVERLAP
    both, computing = max(_LEAST, time(config, problem, _NEITHER) - rest), computed - rest
    reading = max(_LEAST**norm, both**norm - computing**norm) ** (1 / norm)
    moved = blocks_of(problem.K) * (problem.M * line_bytes(dtypes.a) + problem.N * line_bytes(dtypes.b))
    return _rate(moved, reading)


def _predicted_us(rates: Rates, tile: Tile, config: TileConfig, problem: Problem) -> float:
    t = geometry.tiling(config, problem.M, problem.N, problem.K, False, rates.multiprocessors)
    return heuristics.predicted_us(rates, tile, t, problem, _NEITHER, rates.multiprocessors)


def _rate(moved: float, us: float) -> float:
    """Return bytes in microseconds as 10^12 bytes per second."""
    return 1e-6 * moved / max(_LEAST, us)


def _rounded(rates: Rates) -> Rates:
    """Return the same with the digits that mean something."""
    times = Times(**{name: _digits(value) for name, value in asdict(rates.times).items()})
    unsplit = {
        name: Direct(_digits(part.launch_us), _digits(part.read_tb_s), _with_digits(part.tiles))
        for name in _UNSPLIT if (part := getattr(rates, name)) is not None
    }  # fmt: skip
    return replace(rates, times=times, tiles=_with_digits(rates.tiles), **unsplit)


def _with_digits(tiles: Sequence[Tile]) -> tuple[Tile, ...]:
    return tuple(replace(tile, step_us=_digits(tile.step_us), tile_us=_digits(tile.tile_us)) for tile in tiles)


def _digits(value: float) -> float:
    return float(f"{max(_LEAST, value):.4g}")
