"""A rung at a ragged size, of which no extent is a multiple of a tile: there a missing bounds check shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fastsgemm.config import VECTOR, Config
from fastsgemm.measure.operands import host_operands
from fastsgemm.measure.reference import Reference
from fastsgemm.problem import Problem, spell
from fastsgemm.rungs import Rung
from fastsgemm.sim.errors import SimError
from fastsgemm.sim.gemm import sgemm
from fastsgemm.sim.machine import Machine


def mismatch(rung: Rung, config: Config, layout: str, machine: Machine) -> str | None:
    """Run the kernels of a rung on ragged problems with beta = 1, and return what is wrong, or None."""
    for problem in _problems(rung, config, layout):
        a, b, c = host_operands(problem)
        c[...] = np.random.default_rng(2).standard_normal(c.shape)
        reference = Reference(a, b, c)
        A, B, C = (_padded(x) for x in (a, b, c))
        with said_of(rung, problem):
            sgemm(rung, config, A, B, 1.0, 1.0, C, machine)
        wrong = reference.mismatch(C)
        if wrong is not None:
            return f"at {spell(problem)} with beta = 1: {wrong}"
    return None


def _problems(rung: Rung, config: Config, layout: str) -> Iterator[Problem]:
    """Return a ragged problem for each kernel that a rung has because of bounds checks.

    Vectors need lines of whole vectors. A rung that is guarded has other kernels for extents smaller than a tile.
    """
    tile = (config.BM, config.BN, config.tile_k)
    for part in (3, VECTOR) if rung.vectorized else (3,):
        yield Problem(tile[0] + part, tile[1] + part, 2 * tile[2] + part, layout)
        if rung.guarded:
            M, N, K = (max(extent - part, 1) for extent in tile)
            yield Problem(M, N, K, layout)


def _padded(x: np.ndarray) -> np.ndarray:
    """Return a copy stored in the same order, with room between its lines: a kernel that reads it makes a fault."""
    if not x.flags.c_contiguous:
        return _padded(x.T).T
    room = np.full((x.shape[0], x.shape[1] + VECTOR), np.nan, x.dtype)
    room[:, : x.shape[1]] = x
    return room[:, : x.shape[1]]


@contextmanager
def said_of(rung: Rung, problem: Problem) -> Iterator[None]:
    """Let errors of the simulated device name the rung and the problem, because two rungs may share a file."""
    try:
        yield
    except SimError as error:
        raise type(error)(f"rung {rung} at {spell(problem)}: {error}") from error
