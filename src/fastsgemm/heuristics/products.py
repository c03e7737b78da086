"""The products whose times are predicted, as numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastsgemm.heuristics import partial_accumulators
from fastsgemm.heuristics.curve_arrays import KINDS, STORES
from fastsgemm.heuristics.curve_problems import TRANSACTION
from fastsgemm.problem import Problem, Ragged


class Product(NamedTuple):
    """A product whose times are predicted."""

    # As the caller passes it. Of a symmetric one, the tiles that meet one triangle are computed and stored twice.
    problem: Problem
    narrow: bool = False  # whether the rungs for few rows may compute it
    # Of groups whose mean the problem is, what is ragged: K is then in one part, and copies check all bounds.
    ragged: Ragged = Ragged.NOTHING


class Features(NamedTuple):
    """The numbers of products: of one, or an array of one for each option."""

    M: Any
    N: Any
    least: Any  # the lesser of M and N
    K: Any  # at least 1: no steps of k take as long as one
    batch: Any
    chains: Any  # those that a sum needs
    read_bytes: Any  # of A and B
    stored_bytes: Any  # of C
    swap: Any  # whether the rungs for few rows compute the transposed product
    table: Any  # the table of times, see `fastsgemm.heuristics.curve_arrays.BlockTimes`
    stores: Any  # how often each tile is stored: twice, where one triangle is computed


def numbers(p: Problem) -> Features:
    """Return the numbers of one product, as floats: NumPy takes longer to multiply arrays by integers."""
    M, N, K, batch = p.M, p.N, max(1, p.K), p.batch
    trans_a, trans_b, swap = p.layout[0] == "T", p.layout[1] == "T", N < M
    ragged = ((M if trans_a else p.K) % TRANSACTION > 0) + ((p.K if trans_b else N) % TRANSACTION > 0)
    odd = N % TRANSACTION > 0
    store = 2 * odd + (M % TRANSACTION > 0 if swap else odd)
    return Features(
        float(M),
        float(N),
        float(min(M, N)),
        float(K),
        float(batch),
        float(partial_accumulators.chains_needed(p.K)),
        4.0 * (M + N) * batch * K,
        4.0 * M * N * batch,
        float(swap),
        float((((2 * swap + trans_a) * 2 + trans_b) * KINDS + ragged) * STORES + store),
        2.0 if p.symmetric else 1.0,
    )
