#!/usr/bin/env python3
"""Draw the figures of README.md and docs/ from the JSON files of docs/data and tuning_db.

    tools/draw_figures.py            draw the figures that are out of date
    tools/draw_figures.py --all      draw all of them
    tools/draw_figures.py --check    draw nothing; exit 1 if one is out of date (does not need matplotlib)

Each figure is drawn light and dark: docs/figures/NAME-light.svg and NAME-dark.svg. The first line of a file after the
XML header has a digest of its data and of this program, so `--check` does not depend on the version of matplotlib.
"""

from __future__ import annotations

import argparse
import cmath
import hashlib
import io
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figure_data import (
    LAYOUTS,
    select_curves,
    select_ladder,
    select_precision,
    select_random,
    select_rooflines,
    select_sizes,
)
from generated import ROOT
from page_tables.runs import Stored, read_data
from svg_canvas import THEMES, Theme

WIDTH = 4.4  # inches at 72 points. At 350 pixels, what a phone has, a text of 10 points is 11 pixels high.


@dataclass(frozen=True)
class Drawing:
    """One figure.

    Attributes
    ----------
    select : callable
        Returns the plain data that the figure shows, from the files by name, or None if they lack it.
    draw : callable
        Fills a matplotlib figure with these data.
    height : float
        In inches.
    """

    select: Callable[[Stored], Any]
    draw: Callable[[Any, Any, Theme], None]
    height: float


# The ladder


def draw_ladder(figure: Any, data: Any, theme: Theme) -> None:
    """Draw a bar for each rung."""
    axes = figure.add_subplot()
    names, rates = zip(*data["rungs"], strict=True)
    axes.barh(names, rates, color=theme.block, height=0.68)
    axes.invert_yaxis()
    for place, rate in enumerate(rates):
        inside = rate > max(rates) / 4
        offset, side, color = (-5, "right", theme.paper) if inside else (4, "left", theme.ink)
        shift = {"xytext": (offset, 0), "textcoords": "offset points"}
        axes.annotate(f"{rate:.1f}", (rate, place), va="center", ha=side, color=color, **shift)
    above = axes.get_xaxis_transform()
    places = (
        (data["cublas"], "--", "cuBLAS", 1.02, "center"),
        (data["peak"], "-", "peak of the FP32 pipe", 1.1, "right"),
    )
    for rate, style, name, height, side in places:
        if rate is not None:
            axes.axvline(rate, color=theme.muted, linestyle=style, linewidth=1.2, zorder=0)
            axes.text(rate, height, f"{name} {rate:.1f}", transform=above, ha=side, va="bottom", color=theme.muted)
    axes.set_xlim(0, max(data["peak"] or 0.0, 1.08 * max(rates)))
    figure.supxlabel(_split(f"TFLOP/s: {data['title']}"), fontsize=10)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


# TFLOP/s against size, four layouts


_SIZES = (256, 1024, 4096)


def draw_sizes(figure: Any, data: Any, theme: Theme) -> None:
    """Draw a panel for each layout; the peak of the pipe is the top of each."""
    panels = figure.subplots(2, 2, sharex=True, sharey=True).flat
    for axes, (layout, what) in zip(panels, LAYOUTS.items(), strict=True):
        if data["random"][layout]:
            sizes, ours, theirs = zip(*data["random"][layout], strict=True)
            axes.scatter(sizes, theirs, s=11, marker="x", linewidths=0.9, color=theme.muted, alpha=0.75)
            axes.scatter(sizes, ours, s=11, color=theme.block, alpha=0.75, linewidths=0)
        if data["squares"][layout]:
            sizes, ours, theirs = zip(*data["squares"][layout], strict=True)
            axes.plot(sizes, theirs, color=theme.muted, linestyle="--", linewidth=1.4)
            axes.plot(sizes, ours, color=theme.block, linewidth=1.6)
        axes.set_title(what, fontsize=10)
        axes.set_ylim(0, data["peak"])
        axes.set_xscale("log")
        axes.set_xticks(_SIZES, [str(size) for size in _SIZES])
        axes.minorticks_off()
        axes.grid(axis="y")
    squares = any(data["squares"].values())
    dots = [_key(theme.block, "o", "", "sgemm, random"), _key(theme.muted, "x", "", "cuBLAS, random")]
    lines = [_key(theme.block, "", "-", "sgemm, square"), _key(theme.muted, "", "--", "cuBLAS, square")]
    handles = (lines if squares else []) + dots
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, columnspacing=1.2)
    figure.supylabel(f"TFLOP/s; top: peak of the FP32 pipe, {data['peak']:.1f}", fontsize=10)
    figure.supxlabel(_split(f"size, the cube root of M N K: {data['title']}"), fontsize=10)


def _key(color: str, marker: str, line: str, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, marker=marker, linestyle=line, label=label, markersize=4.5)


# Every random problem


def draw_random(figure: Any, data: Any, theme: Theme) -> None:
    """Draw a point for each problem, those on which cuBLAS is faster in another colour and shape."""
    axes = figure.add_subplot()
    points = data["points"]
    won, lost = ([one for one in points if (one[1] >= 1.0) == ahead] for ahead in (True, False))
    mean = statistics.geometric_mean(speed for _, speed in points)
    for rows, marker, color, label in (
        (won, "o", theme.block, f"sgemm is at least as fast: {len(won)}"),
        (lost, "v", theme.loss, f"cuBLAS is faster: {len(lost)}"),
    ):
        if rows:
            axes.scatter(
                *zip(*rows, strict=True), s=14, marker=marker, color=color, alpha=0.7, linewidths=0, label=label
            )
    axes.axhline(1.0, color=theme.ink, linewidth=1)
    middles, means = _means(points)
    axes.plot(middles, means, color=theme.ink, linewidth=1.6, label=f"geometric mean by decade; of all: {mean:.2f}")
    axes.set(xscale="log", yscale="log", ylabel="speed, cuBLAS FP32 = 1")
    axes.set_xlabel(_split(f"FLOP: {data['title']}"))
    least, *_, most = sorted(speed for _, speed in points)
    _ticks(axes.set_yticks, (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8), least / 1.3, most * 1.3)
    axes.minorticks_off()
    axes.grid(axis="y")
    figure.legend(loc="outside upper center", frameon=False)


def _means(points: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the middle of each decade of FLOPs with at least five problems, and their geometric mean."""
    decades: dict[int, list[float]] = {}
    for flops, speed in points:
        decades.setdefault(math.floor(math.log10(flops)), []).append(speed)
    kept = {decade: speeds for decade, speeds in sorted(decades.items()) if len(speeds) >= 5}
    return [10 ** (decade + 0.5) for decade in kept], [statistics.geometric_mean(speeds) for speeds in kept.values()]


# Rooflines


def draw_rooflines(figure: Any, data: Any, theme: Theme) -> None:
    """Draw the rungs under the roofs of device memory and of shared memory."""
    panels = figure.subplots(2, 1)
    slowest = min(rate for *_, rate in data["rungs"])
    roofs = ((1, "global memory", data["global"]), (2, "shared memory", data["shared"]))
    for axes, (column, name, bandwidth) in zip(panels, roofs, strict=True):
        rungs = [(row[column], row[3], row[0]) for row in data["rungs"] if row[column]]
        places, rates, _ = zip(*rungs, strict=True)
        bend = data["peak"] / bandwidth
        least, most = min(places) / 2, max(*places, bend) * 2.2
        axes.plot([least, bend, most], [least * bandwidth, data["peak"], data["peak"]], color=theme.muted, zorder=1)
        axes.plot(places, rates, color=theme.block, linewidth=0.8, marker="o", markersize=5)
        axes.set(xscale="log", yscale="log", xlabel=f"FLOP per byte of {name}", xlim=(least, most))
        axes.set_ylim(slowest / 2, data["peak"] * 1.6)
        _ticks(axes.set_xticks, (0.1, 0.3, 1, 3, 10, 30), least, most)
        _ticks(axes.set_yticks, (0.5, 1, 2, 5, 10, 20, 50), slowest / 2, data["peak"])
        axes.minorticks_off()
        _number(axes, rungs, theme)
        axes.set_title(f"{name}: {bandwidth:.3g} TB/s", fontsize=10)
        axes.set_ylabel("TFLOP/s")
        axes.grid()
    figure.supxlabel(_split(f"numbers: rungs; {data['title']}", "rates: "), fontsize=9)


def _number(axes: Any, rungs: Sequence[tuple[float, float, int]], theme: Theme) -> None:
    """Write the number of each rung beside its point, on the side that is farthest from other points and numbers."""
    unit = 72 / axes.figure.dpi  # points per pixel
    points = [complex(*axes.transData.transform(row[:2])) * unit for row in rungs]
    around = [cmath.rect(10.0, math.pi / 4 * direction) for direction in range(8)]
    taken = list(points)
    style = {"ha": "center", "va": "center", "color": theme.block, "bbox": {"color": theme.paper, "pad": 0}}
    for point, (place, rate, number) in zip(points, rungs, strict=True):
        others = [other for other in taken if other != point]
        shift = max(around, key=lambda step: min(abs(point + step - other) for other in others))
        taken.append(point + shift)
        axes.annotate(number, (place, rate), (shift.real, shift.imag), textcoords="offset points", **style)


def _split(title: str, after: str = ": ") -> str:
    """Return a title of two parts on two lines."""
    return title.replace(after, f"{after.rstrip()}\n", 1)


def _ticks(place: Callable[..., object], candidates: Sequence[float], least: float, most: float) -> None:
    ticks = [tick for tick in candidates if least <= tick <= most]
    place(ticks, [f"{tick:g}" for tick in ticks])


# What a tuning run saw


def draw_curves(figure: Any, data: Any, theme: Theme) -> None:
    """Draw a line for each config, and emphasise those that are the fastest somewhere."""
    axes = figure.add_subplot()
    lines = [list(zip(*points, strict=True)) for _, points in data["lines"]]
    winners = set()
    for step in range(200):  # sizes from 10^4 to 10^8 elements
        heights = {number: _between(10 ** (4 + 0.02 * step), *line) for number, line in enumerate(lines)}
        if any(heights.values()):
            winners.add(max(heights, key=heights.__getitem__))
    for number, (places, rates) in enumerate(lines):
        style = {"color": theme.block} if number in winners else {"color": theme.muted, "linewidth": 0.6, "alpha": 0.6}
        axes.plot(places, rates, marker=".", markersize=3, **style)
    axes.set(xscale="log", ylabel="TFLOP/s")
    axes.set_xlabel(_split(f"elements of C in whole tiles, K = 1024: {data['title']}"))
    axes.set_ylim(0)
    axes.grid()
    handles = [
        _key(theme.block, ".", "-", f"{len(winners)} configs, each the fastest for some size of C"),
        _key(theme.muted, ".", "-", f"{len(lines) - len(winners)} others"),
    ]
    figure.legend(handles=handles, loc="outside upper center", frameon=False)


def _between(at: float, places: Sequence[float], rates: Sequence[float]) -> float:
    """Return the rate at a place between the measured ones, on a line in log(place), or 0 outside of them."""
    for left, right, low, high in zip(places, places[1:], rates, rates[1:], strict=False):
        if left <= at <= right and left < right:
            return low + (high - low) * math.log(at / left) / math.log(right / left)
    return 0.0


# Speed against error


def draw_precision(figure: Any, data: Any, theme: Theme) -> None:
    """Draw a point for each precision or library, named beside it."""
    axes = figure.add_subplot()
    ours = [name for name, *_ in data["points"] if name.startswith("fastsgemm")]
    for name, rate, error in data["points"]:
        own = name in ours
        color = theme.block if own else theme.muted
        axes.plot(rate, error, "o", color=color, markersize=8 if own else 5)
        # Of two other libraries with about the same error, the name of the slower one stands above.
        behind = any(
            rate < faster and 0.5 < error / near < 2 for other, faster, near in data["points"] if other not in ours
        )
        shift = {"xytext": (6, 5 if own or behind else -20), "textcoords": "offset points"}
        axes.annotate(name, (rate, error), color=color, fontweight="bold" if own else "normal", **shift)
    axes.set(xscale="log", yscale="log", ylabel="relative error (lower is better)")
    figure.supxlabel(_split(f"TFLOP/s: {data['title']}"), fontsize=10)
    rates = [rate for _, rate, _ in data["points"]]
    axes.set_xlim(min(rates) / 1.5, max(rates) * 5)  # room for names on the right
    _ticks(axes.set_xticks, (10, 20, 50, 100, 200, 500, 1000), *axes.get_xlim())
    axes.margins(y=0.15)
    axes.minorticks_off()
    axes.grid()


FIGURES = {
    "ladder": Drawing(select_ladder, draw_ladder, 3.6),
    "random": Drawing(select_random, draw_random, 3.9),
    "sizes": Drawing(select_sizes, draw_sizes, 4.6),
    "rooflines": Drawing(select_rooflines, draw_rooflines, 6.0),
    "curves": Drawing(select_curves, draw_curves, 3.6),
    "precision": Drawing(select_precision, draw_precision, 3.8),
}


def digest(data: Any, theme: Theme) -> str:
    """Return the digest of a figure's data, its colours and this program."""
    plain = json.dumps(data, sort_keys=True) + repr(theme)
    return hashlib.sha256(plain.encode() + Path(__file__).read_bytes()).hexdigest()[:32]


def svg(name: str, data: Any, theme: Theme) -> str:
    """Draw a figure and return its SVG, which is the same for the same data and matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",  # text stays text: it can be searched and is half the size
        "svg.hashsalt": name,
        "font.size": 10,
        "text.color": theme.ink,
        "axes.edgecolor": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.facecolor": theme.paper,
        "axes.titlecolor": theme.ink,
        "axes.linewidth": 0.8,
        "figure.facecolor": theme.paper,
        "grid.color": theme.faint,
        "grid.linewidth": 0.6,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDTH, FIGURES[name].height), layout="constrained")
        FIGURES[name].draw(figure, data, theme)
        out = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Title": name}
        figure.savefig(out, format="svg", metadata=metadata)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("<svg"))
    return "\n".join(['<?xml version="1.0" encoding="utf-8"?>', f"<!-- {digest(data, theme)} -->", *lines[start:], ""])


def stale(path: Path, data: Any, theme: Theme) -> bool:
    """Return whether a file does not show these data."""
    return not path.exists() or f"<!-- {digest(data, theme)} -->" not in path.read_text(encoding="utf-8")[:200]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--all", action="store_true", help="draw the figures that are up to date, too")
    parser.add_argument("--check", action="store_true", help="draw nothing; exit 1 if a figure is out of date")
    options = parser.parse_args(arguments)
    data, folder = read_data(root), root / "docs" / "figures"
    selected = {name: one.select(data) for name, one in FIGURES.items()}
    wanted = {
        folder / f"{name}-{variant}.svg": (name, shown, theme)
        for name, shown in selected.items()
        if shown is not None
        for variant, theme in THEMES.items()
    }
    old = [path for path, (_, *of_figure) in wanted.items() if options.all or stale(path, *of_figure)]
    if options.check:
        if old:
            print(f"out of date: {', '.join(path.name for path in old)}; run tools/draw_figures.py", file=sys.stderr)
        return int(bool(old))
    folder.mkdir(parents=True, exist_ok=True)
    for path in old:
        path.write_text(svg(*wanted[path]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
