"""One sentence per rung of a simulated ladder: the count that its idea changes, here and in the rung before."""

from __future__ import annotations

from collections.abc import Callable

from fastsgemm.measure.chains import has_several_chains
from fastsgemm.measure.counts import CountedRow, Table, titled
from fastsgemm.rungs import find


def sentences(table: Table) -> list[str]:
    """Return lines about each rung, and about the results, of a table without wrong results."""
    rows = sorted(table.rows, key=lambda row: row.number)
    lines: list[str] = []
    for previous, row in zip([None, *rows], rows, strict=False):
        lines += titled(f"{row.number} {row.name}", _sentence(row, previous))
    if table.fp16x3 is not None:
        product = next(kernel for kernel in table.fp16x3.kernels if kernel.name == "fp16x3")
        lines += titled("11 fp16x3", f"{product.instructions:,} instructions in all: tensor cores do the product")
    chains = sum(not has_several_chains(row.constants) for row in rows)
    lines += ["", "Every access was checked, and every result was compared with float64."]
    if chains > 1:
        lines.append(f"The {chains} rungs that sum in one chain of FMAs returned the same bits.")
    return lines


def _sentence(row: CountedRow, previous: CountedRow | None) -> str:
    unit, count, reason = _COUNTS.get(row.name) or (_OTHER, _other_instructions, find(row.name).idea)
    comparison = "" if previous is None else f", {count(previous):.3g} before"
    return f"{count(row):.3g} {unit}{comparison}: {reason}"


def _sectors(row: CountedRow) -> float:
    return max(row.loads_a.sectors_per_request, row.loads_b.sectors_per_request)


def _words(row: CountedRow) -> float:
    return 1 / row.fmas_per_word if row.fmas_per_word else 0.0


def _other_instructions(row: CountedRow) -> float:
    return row.others_per_fma


_BUSIEST = "sectors of 32 bytes in the busiest load"
_WORD = "words of shared memory per FMA"
_OTHER = "other instructions per FMA"

# By name of the rung: the unit, the count, and the reason. The reason of other rungs is their idea.
_COUNTS: dict[str, tuple[str, Callable[[CountedRow], float], str]] = {
    "naive": (_BUSIEST, _sectors, "a warp reads a column of A, and 4 would hold its values"),
    "coalesced": (_BUSIEST, _sectors, "neighbouring threads read neighbouring columns of B"),
    "smem_tiled": (
        "bytes of global memory per FMA",
        lambda row: row.bytes_per_fma,
        "tiles are read once and used from shared memory",
    ),
    "blocktile_1d": (_WORD, _words, "one value of B serves TM sums of a thread"),
    "blocktile_2d": (_WORD, _words, "an outer product uses each value TM or TN times"),
    "vectorized": (_OTHER, _other_instructions, "loads and stores of 16 bytes"),
    "autotuned": (_OTHER, _other_instructions, "constants that were searched on the device"),
    "warptiled": (_WORD, _words, "what a thread has read serves several sub-tiles"),
    "pipelined": ("barriers per block", lambda row: row.barriers, "the next tile is copied during the FMAs"),
    "skinny": (
        "sectors per load of B",
        lambda row: row.loads_b.sectors_per_request,
        "B goes straight to registers",
    ),
}
