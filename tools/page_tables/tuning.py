"""Numbers of the tuner and of the shipped tuning database, for docs/tuning.md, docs/fp16x3.md and docs/ladder.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from fastsgemm.heuristics import database, fp16x3_rates
from fastsgemm.heuristics.database_entries import GENERIC, Fitted
from fastsgemm.heuristics.fp16x3_rates import Tile
from fastsgemm.heuristics.partial_accumulators import DOTS, chains_at
from fastsgemm.problem import LAYOUTS as OPERAND_LAYOUTS
from fastsgemm.tuning import tuner
from page_tables.markdown import header, line

ARCH = "sm_90"  # the only architecture with measurements
SHOWN_K = (256, 1024, 4096, 16384)
LAYOUTS = {layout: layout for layout in OPERAND_LAYOUTS}
ROWS = {"row": "one row or column", "rows": f"2 to {DOTS} rows"}
_CURVES_OF = "pipelined"


def texts() -> dict[str, str]:
    """Return the tables by name."""
    return {
        "tuning-limits": _limits(),
        "tuning-fitted": "\n".join(_fitted()),
        "tuning-chains": "\n".join([*_chains(LAYOUTS), "", *_chains(ROWS)]),
        "tuning-curves": _curves(),
        "fp16x3-tiles": "\n".join(_tiles()),
    }


def _limits() -> str:
    return (
        f"A quick run takes at most {tuner.QUICK_SECONDS:g} seconds and the standard set {tuner.STANDARD_SECONDS:g}, "
        "divided among rungs and problems."
    )


def _fitted() -> list[str]:
    """Return a line for each fitted number: here, and on architectures without numbers of their own."""
    here, others = database.fitted(ARCH), database.fitted(GENERIC)
    rows: list[tuple[str, Callable[[Fitted], str]]] = [
        ("packing an operand of no elements, µs", lambda one: _if_packed(one, 1e3 * one.packing_ms)),
        ("rate of packing, TB/s read and written", lambda one: _if_packed(one, 1e-9 * one.packing_bytes_per_ms)),
        (
            "rate of the time lost by storing C float by float beside packed operands, TB/s of C",
            lambda one: _if_packed(one, 1e-9 * one.odd_store_bytes_per_ms),
        ),
        ("least time of the second kernel of split-K, µs", lambda one: f"{1e3 * one.reduction_ms:g}"),
        ("what each part of K adds to that, µs", lambda one: f"{1e3 * one.reduction_ms_per_part:g}"),
        ("rate of that kernel, TB/s read and written", lambda one: f"{1e-9 * one.reduction_bytes_per_ms:g}"),
        ("time with partial accumulators, relative to one chain", lambda one: f"{one.accumulators_cost:g}"),
        ("most tiles of K for which the ragged end of K comes first", lambda one: str(one.peeled_tiles)),
    ]
    return [
        *header("fitted number", _device(), "architectures without measurements"),
        *(line(what, shown(here), shown(others)) for what, shown in rows),
    ]


def _if_packed(fitted: Fitted, value: float) -> str:
    """Return a number of packing, which is left out where its rate was not measured."""
    return f"{value:g}" if fitted.packing_bytes_per_ms else "nothing is packed"


def _chains(kinds: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each size of C: how many chains sums of some K need, for each kind of problem."""
    sums = database.fitted(ARCH).long_sums
    yield from header("elements of C", *kinds.values())
    for rows in zip(*(sums[kind] for kind in kinds), strict=True):  # all have the same sizes
        elements, _ = rows[0]
        cells = (" / ".join(str(chains_at(needs, K)) for K in SHOWN_K) for _, needs in rows)
        yield line("more" if elements is None else f"at most {elements:,}", *cells)


def _device() -> str:
    return database.shipped(ARCH).curves[0].device


def _curves() -> str:
    """Return in words how far the curves' own factors spread."""
    curves = [one for one in database.shipped(ARCH).curves if one.rung == _CURVES_OF and not one.config.segment]
    costs = [cost for one in curves for cost in one.accumulators_cost if cost]
    return (
        f"Of the {len(curves)} configs of rung 9 with a curve on an {_device()}, the calibration is "
        f"{_spread(one.calibration for one in curves)}. With partial accumulators they take {_spread(costs)} times as "
        "long as with one chain, over configs and layouts."
    )


def _spread(values: Iterable[float]) -> str:
    least, *_, most = sorted(values)
    return f"{least:.2f} to {most:.2f}"


def _tiles() -> list[str]:
    """Return a line for each tile of rung 11 with wgmma."""
    rates = fp16x3_rates.load(ARCH)
    constants = ("PROMOTE_STAGES", "STAGES", "GROUP_M")
    return [
        f"On an {rates.device}; times are those of a wave of tiles, one on each SM.",
        "",
        *header("BM x BN", *constants, "K", "32 steps of k, µs", "besides, µs"),
        *(
            line(
                f"{one.config.BM} x {one.config.BN}",
                *(getattr(one.config, name) for name in constants),
                _served(one),
                f"{one.step_us:g}",
                f"{one.tile_us:g}",
            )
            for one in rates.tiles
        ),
    ]


def _served(tile: Tile) -> str:
    return f"from {tile.least_k}" if tile.most_k is None else f"{tile.least_k} to {tile.most_k}"
