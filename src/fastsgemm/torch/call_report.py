"""What the switch replaced, and what it passed on and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastsgemm.switches import base_report
from fastsgemm.switches.base_report import Totals, number


@dataclass(frozen=True)
class Line:
    """Calls of one operator on one problem with the same outcome.

    Attributes
    ----------
    operator : str
        PyTorch's name, such as ``addmm`` or ``mm.out``.
    problem : str
        The shapes of A and B, or their dtypes if those were the reason.
    calls : int
    flops : int
        Of all calls together: 2 M N K for each product, whatever computed it.
    reason : str
        Why the calls were passed on to PyTorch's own kernel; empty if fastsgemm computed them.
    note : str
        Which setting of the program could not be honoured in calls that fastsgemm computed; usually empty.
    size : str
        The problem as ``fastsgemm explain`` and other commands take it; empty if it is none that fastsgemm computes.
    """

    operator: str
    problem: str
    calls: int
    flops: int
    reason: str = ""
    note: str = ""
    size: str = ""

    @property
    def count(self) -> int:
        """The calls."""
        return self.calls


class Report(base_report.Report[Line]):
    """What the switch has done since `enable`.

    Attributes
    ----------
    lines : tuple of Line
        By operator, problem and reason, most FLOPs first.
    slower : str
        Why calls went through Python, which takes some microseconds more; empty if they did not.
    unseen : str
        Which products the switch could not see, as far as that is known; usually empty.
    """

    def __init__(self, lines: Iterable[Line], slower: str = "", unseen: str = "") -> None:
        super().__init__(sorted(lines, key=lambda line: (-line.flops, -line.calls, line.operator, line.reason)))
        self.slower, self.unseen = slower, unseen

    @property
    def calls(self) -> int:
        """The calls that fastsgemm computed."""
        return sum(line.calls for line in self.replaced)

    @property
    def flops(self) -> int:
        """The FLOPs of these calls."""
        return sum(line.flops for line in self.replaced)

    @property
    def share(self) -> float:
        """`flops` as a share of all FLOPs of float32 products that reached the switch, from 0 to 1."""
        total = self.flops + sum(line.flops for line in self.passed_on)
        return self.flops / total if total else 0.0

    def __repr__(self) -> str:
        rows: Totals[tuple[str, str, str]] = Totals()
        for line in self.lines:
            rows.add((line.operator, line.reason, line.note), line.calls, line.flops)
        if not rows:
            return "fastsgemm computed no product: the program called none on this device while the switch was on"
        share = f"{self.share:.1%} of float32 FLOPs"
        header = f"fastsgemm computed {number(self.calls, 'product')}, {_flop(self.flops)}, {share}"
        width = max(len(operator) for operator, *_ in rows)
        ordered = sorted(rows.items(), key=lambda row: (bool(row[0][1]), -row[1][1], row[0]))
        body = []
        for (operator, reason, note), (calls, flops) in ordered:
            explanation = f"passed on: {reason}" if reason else note
            body.append(f"  {operator:{width}}  {number(calls, 'call'):>15}  {_flop(flops):>12}  {explanation}")
        footer = [f"each call took some microseconds more in Python: {self.slower}"] if self.slower else []
        footer += [self.unseen] if self.unseen else []
        return "\n".join([header, *(line.rstrip() for line in body), *footer])


def _flop(flops: float) -> str:
    units = ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]
    while flops >= 1000 and len(units) > 1:
        flops, units = flops / 1000, units[1:]
    return f"{flops:.3g} {units[0]}"
