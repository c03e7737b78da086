"""Rungs that sum in one chain of FMAs, whose results must be bit-identical."""

from __future__ import annotations

from collections.abc import Mapping


def has_several_chains(constants: Mapping[str, int]) -> bool:
    """Return whether these constants sum in several chains of FMAs, with other bits than one chain."""
    sliced = "TK" in constants and constants["TK"] < constants["BK"]
    return sliced or any(constants.get(name, 1) > 1 for name in ("SLICED_K", "PARTIAL_ACCUMULATORS", "SPLIT_K"))


def verdict(rungs: int, identical: bool) -> list[str]:
    """Return a line on whether so many rungs, which sum in one chain, agree; none for a single rung."""
    if rungs < 2:
        return []
    outcome = "are the same bits" if identical else "are NOT the same bits: look for an indexing bug"
    return [f"the results of the {rungs} rungs {outcome}"]
