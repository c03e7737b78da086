"""Which rungs sum in one chain of FMAs, whose results must be the same bits."""

from __future__ import annotations

from collections.abc import Mapping


def has_several_chains(constants: Mapping[str, int]) -> bool:
    """Whether a sum is several chains of FMAs with these constants. Its bits differ from those of one chain."""
    sliced = "TK" in constants and constants["TK"] < constants["BK"]
    return sliced or any(constants.get(name, 1) > 1 for name in ("SLICED_K", "PARTIAL_ACCUMULATORS", "SPLIT_K"))


def verdict(rungs: int, identical: bool) -> list[str]:
    """Return the line that says whether so many rungs, which sum in one chain, agree; none for a single one."""
    if rungs < 2:
        return []
    what = "are the same bits" if identical else "are NOT the same bits: look for an indexing bug"
    return [f"the results of the {rungs} rungs {what}"]
