"""What the switch replaced when programs were lowered, and what it passed on and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """Products of one kind that had the same end.

    Attributes
    ----------
    problem : str
        Subscripts as of `numpy.einsum` and the shapes of both operands, or their dtypes where these decided.
    products : int
        How often such a product was lowered. A lowered program may run any number of times.
    flops : int
        Of all these together, each run once.
    reason : str
        Why JAX's own lowering was used; empty if fastsgemm's was.
    """

    problem: str
    products: int
    flops: int
    reason: str = ""


class Report:
    """What the switch has done since `enable`.

    Attributes
    ----------
    lines : tuple of Line
        Those with most FLOPs first.
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = tuple(sorted(lines, key=lambda line: (-line.flops, -line.products, line.problem)))

    @property
    def replaced(self) -> tuple[Line, ...]:
        """What fastsgemm computes."""
        return tuple(line for line in self.lines if not line.reason)

    @property
    def passed_on(self) -> tuple[Line, ...]:
        """What XLA computes as before."""
        return tuple(line for line in self.lines if line.reason)

    def __repr__(self) -> str:
        if not self.lines:
            return (
                "fastsgemm lowered no product: the program lowered none for CUDA while the switch was on; "
                "jax.devices() shows whether JAX has a GPU. Without one, lower a function for a device that you name, "
                "and see the report: with fastsgemm.jax.lowering_for('NVIDIA H200'): "
                "jax.jit(f).trace(x).lower(lowering_platforms=('cuda',))"
            )
        rows: dict[str, list[int]] = {}
        for line in self.lines:
            row = rows.setdefault(line.reason, [0, 0])
            row[0] += line.products
            row[1] += line.flops
        return "\n".join(_told(reason, *row) for reason, row in sorted(rows.items()))


def _told(reason: str, products: int, flops: int) -> str:
    plural = "" if products == 1 else "s"
    done = f"left to XLA: {reason}" if reason else "by fastsgemm"
    return f"{products} product{plural} of {flops / 1e9:.3g} GFLOP {done}"
