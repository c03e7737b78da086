"""Factorization of a nonnegative matrix by multiplicative updates: products with few columns on either side."""

from functools import partial

import torch

ITERATIONS = 10


def cases(small):
    rows, columns, rank = (30, 20, 4) if small else (5000, 2000, 32)
    what = f"nonnegative factorization, {rows:,} x {columns:,}, rank {rank}, {ITERATIONS} updates"
    return {what: partial(_build, rows, columns, rank)}


def _build(rows, columns, rank, device):
    with torch.device(device):
        matrix = torch.rand(rows, columns)
        first, second = torch.rand(rows, rank), torch.rand(rank, columns)

    def step():
        left, right = first, second
        for _ in range(ITERATIONS):
            right = right * (left.mT @ matrix) / (left.mT @ left @ right)
            left = left * (matrix @ right.mT) / (left @ (right @ right.mT))
        return left @ right

    return step
