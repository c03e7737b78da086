"""Checks a rung at ragged sizes, no multiples of the tile, where a missing bounds check shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fastsgemm.config import VECTOR, Config
from fastsgemm.measure.operands import host_operands
from fastsgemm.measure.reference import Reference
from fastsgemm.problem import Problem, format_problem
from fastsgemm.rungs import Rung
from fastsgemm.sim.errors import SimError
from fastsgemm.sim.gemm import sgemm
from fastsgemm.sim.machine import Machine


def mismatch(rung: Rung, config: Config, layout: str, machine: Machine) -> str | None:
    """Run a rung on ragged problems with beta = 1, and return a description of the first error, or None."""
    for problem in _problems(rung, config, layout):
        a, b, c = host_operands(problem)
        c[...] = np.random.default_rng(2).standard_normal(c.shape)
        reference = Reference(a, b, c)
        A, B, C = (_padded(x) for x in (a, b, c))
        with errors_naming(rung, problem):
            sgemm(rung, config, A, B, 1.0, 1.0, C, machine)
        message = reference.mismatch(C)
        if message is not None:
            return f"at {format_problem(problem)} with beta = 1: {message}"
    return None


def _problems(rung: Rung, config: Config, layout: str) -> Iterator[Problem]:
    """Yield a ragged problem for each variant of bounds checks that a rung has.

    Vector loads need lines of whole vectors. A guarded rung has other kernels for extents smaller than a tile.
    """
    tile = (config.BM, config.BN, config.tile_k)
    for remainder in (3, VECTOR) if rung.vectorized else (3,):
        yield Problem(tile[0] + remainder, tile[1] + remainder, 2 * tile[2] + remainder, layout)
        if rung.guarded:
            M, N, K = (max(extent - remainder, 1) for extent in tile)
            yield Problem(M, N, K, layout)


def _padded(x: np.ndarray) -> np.ndarray:
    """Return a copy in the same order with padding between its lines, which a kernel must not read."""
    if not x.flags.c_contiguous:
        return _padded(x.T).T
    padded = np.full((x.shape[0], x.shape[1] + VECTOR), np.nan, x.dtype)
    padded[:, : x.shape[1]] = x
    return padded[:, : x.shape[1]]


@contextmanager
def errors_naming(rung: Rung, problem: Problem) -> Iterator[None]:
    """Add the rung and the problem to errors of the simulated device, because rungs may share a file."""
    try:
        yield
    except SimError as error:
        raise type(error)(f"rung {rung} at {format_problem(problem)}: {error}") from error
