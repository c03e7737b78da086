"""What the switch replaced when programs were lowered, and what it passed on and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastsgemm.switches import base_report
from fastsgemm.switches.base_report import Totals, number


@dataclass(frozen=True)
class Line:
    """Products of one problem with the same outcome.

    Attributes
    ----------
    problem : str
        Subscripts as in `numpy.einsum` and the shapes of both operands, or their dtypes if those were the reason.
    products : int
        How often such a product was lowered. A lowered program may run any number of times.
    flops : int
        Of all these products, each run once.
    reason : str
        Why JAX's own lowering was used; empty if fastsgemm's was.
    size : str
        The problem as ``fastsgemm explain`` and other commands take it; empty if it is none that fastsgemm computes.
    """

    problem: str
    products: int
    flops: int
    reason: str = ""
    size: str = ""

    @property
    def count(self) -> int:
        """The products."""
        return self.products


class Report(base_report.Report[Line]):
    """What the switch has done since `enable`.

    Attributes
    ----------
    lines : tuple of Line
        Most FLOPs first.
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        super().__init__(sorted(lines, key=lambda line: (-line.flops, -line.products, line.problem)))

    def __repr__(self) -> str:
        if not self.lines:
            return (
                "fastsgemm lowered no product: the program lowered none for CUDA while the switch was on; "
                "jax.devices() shows whether JAX has a GPU. Without one, lower a function for a device that you name, "
                "and see the report: with fastsgemm.jax.lowering_for('NVIDIA H200'): "
                "jax.jit(f).trace(x).lower(lowering_platforms=('cuda',))"
            )
        rows: Totals[str] = Totals()
        for line in self.lines:
            rows.add(line.reason, line.products, line.flops)
        return "\n".join(
            f"{number(products, 'product')} of {flops / 1e9:.3g} GFLOP "
            + (f"left to XLA: {reason}" if reason else "by fastsgemm")
            for reason, (products, flops) in sorted(rows.items())
        )
