#!/usr/bin/env python3
"""Draw the rooms of the package and the way of a call through them, and write the tables of docs/architecture.md.

    tools/draw_rooms.py            write docs/rooms.svg and the tables
    tools/draw_rooms.py --check    change nothing; fail where the picture or a table is not what the code gives; a
                               count of lines may be off by a tenth, so that not every edit needs a new picture

Rooms, lines and imports are read from the source. The steps of a call are named here; each names the function that
takes it, and the program fails where that function does not exist. Colours are mid-tones, to be read on light and dark.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imports
from page_tables.markdown import fill

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

INK, PATH = "#768390", "#d97706"  # of rooms and imports, of the way of a call

Point = tuple[float, float]

# The steps of a first call: what happens, and the function that does it. A later call takes the first two, looks up
# what steps 3 to 6 made, and takes the last.
STEPS = (
    ("resolve the request", "fastsgemm.request", "resolve"),
    ("read the arrays", "fastsgemm.gemm", "sgemm"),
    ("check the operands", "fastsgemm.call.product", "make_plan"),
    ("choose", "fastsgemm.heuristics.choice", "choose"),
    ("list the launches", "fastsgemm.call.ieee", "add_product"),
    ("load the kernels", "fastsgemm.jit.kernel", "get"),
    ("launch", "fastsgemm.call.driver", "multiply"),
)

# Where each room that is drawn stands: column and row, from the top left. Single files that hold no steps of a call
# are left to the table.
PLACES = {
    "command_line": (0, 0), "ladder": (1, 0), "gemm": (2, 0), "host": (3, 0),
    "tuning": (2, 1), "sim": (3, 1),
    "measure": (2, 2), "call": (3, 2),
    "heuristics": (2, 3), "jit": (3, 3),
    "device": (2, 4), "geometry": (3, 4),
    "request": (0, 5), "rungs": (1, 5), "config": (2, 5), "problem": (3, 5),
}  # fmt: skip

_WIDTH, _HEIGHT = 1.55, 0.62  # of a box; columns are 1.95 apart and rows 1.0


def picture(kind: str) -> bytes:
    """Return the picture as ``svg`` or ``png``, the same bytes every time."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "rooms", "svg.fonttype": "path", "font.size": 11, "text.color": INK})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 5.8))
    axes.set_xlim(-0.8, 6.65)
    axes.set_ylim(-5.35, 0.35)
    axes.axis("off")
    _draw_rooms(axes)
    _draw_steps(axes)
    out = io.BytesIO()
    metadata = {"Date": None, "Creator": None, "Description": description()} if kind == "svg" else None
    figure.savefig(out, format=kind, transparent=kind == "svg", bbox_inches="tight", metadata=metadata, dpi=80)
    pyplot.close(figure)
    return out.getvalue()


def _centre(name: str) -> Point:
    column, row = PLACES[name]
    return 1.95 * column, -1.0 * row


def _draw_rooms(axes: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    graph, lines = _graph(), imports.lines(SOURCE)
    for name in PLACES:
        for other in _direct(graph, name):
            _arrow(axes, _centre(name), _centre(other))
    for name in PLACES:
        x, y = _centre(name)
        rooms = [imports.short(imports.room(module)) for _, module, _ in STEPS]
        taken = " ".join(str(number) for number, room in enumerate(rooms, 1) if room == name)
        colour = PATH if taken else INK
        corner = (x - _WIDTH / 2, y - _HEIGHT / 2)
        shape = FancyBboxPatch(
            corner, _WIDTH, _HEIGHT, boxstyle="round,pad=0,rounding_size=0.1",
            facecolor=(*_rgb(colour), 0.14), edgecolor=colour, linewidth=1.6, zorder=3,
        )  # fmt: skip
        axes.add_patch(shape)
        size = 12 if len(name) < 12 else 10.5
        axes.text(x, y + 0.1, name, ha="center", va="center", fontsize=size, weight="bold", zorder=4)
        axes.text(x + 0.76, y + 0.39, taken, ha="right", va="center", fontsize=9, color=PATH, weight="bold", zorder=4)
        axes.text(x, y - 0.16, f"{rounded(lines[name])} lines", ha="center", va="center", fontsize=10, zorder=4)


def _direct(graph: Any, name: str) -> list[str]:
    """Return the drawn rooms that a room imports, without those that it also reaches through another one."""
    imported = {short for short in map(imports.short, graph[name]) if short in PLACES}
    return sorted(other for other in imported if not any(_reaches(graph, one, other) for one in imported - {other}))


def _reaches(graph: Any, name: str, other: str) -> bool:
    found = {imports.short(imported) for imported in graph[name]}
    return other in found or any(_reaches(graph, one, other) for one in found)


def _arrow(axes: Any, start: Point, end: Point) -> None:
    (x, y), (to_x, to_y) = start, end
    if y == to_y:
        side = 1 if to_x > x else -1
        start, end = (x + side * _WIDTH / 2, y), (to_x - side * _WIDTH / 2, to_y)
    else:
        start, end = (x, y - _HEIGHT / 2), (to_x, to_y + _HEIGHT / 2)
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.1, "alpha": 0.7, "shrinkA": 1, "shrinkB": 1}
    axes.annotate("", end, start, arrowprops=style, zorder=1)


def _draw_steps(axes: Any) -> None:
    left, top = -0.75, -0.85
    axes.text(left, top, "A first call", fontsize=12, weight="bold", color=PATH)
    for number, (what, module, function) in enumerate(STEPS):
        y = top - 0.4 - 0.5 * number
        axes.text(left, y, f"{number + 1}  {what}", fontsize=11, color=PATH, weight="bold")
        where = f"{imports.short(module).replace('.', '/')}.{function}"
        axes.text(left + 0.24, y - 0.2, where, fontsize=10)


def rounded(count: int) -> str:
    """Return a count of lines with two significant digits, so that it does not change with every edit."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return f"{round(count / unit) * unit:,}"


def description() -> str:
    """Return in words what the picture shows; it is kept in the SVG, where `--check` finds it."""
    graph, lines = _graph(), imports.lines(SOURCE)
    rooms = (f"{name}, {rounded(lines[name])} lines, imports {' '.join(_direct(graph, name))}" for name in PLACES)
    steps = (f"{what} in {module}.{function}" for what, module, function in STEPS)
    return "; ".join([*rooms, *steps])


def _graph() -> imports.Graph:
    return {imports.short(name): found for name, found in imports.rooms(imports.files(SOURCE)).items()}


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red, green, blue


def check_steps() -> None:
    """Raise `ValueError` where a function of `STEPS` does not exist."""
    for _, module, function in STEPS:
        path = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
        names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        if function not in names:
            raise ValueError(f"{path.relative_to(ROOT)} has no function {function}; correct STEPS")


def tables() -> dict[str, str]:
    """Return the tables of docs/architecture.md by the name of their markers."""
    lines = imports.lines(SOURCE)
    rows = ["| room | lines | what is in it |", "|---|---:|---|"]
    for name, what in imports.ROOMS.items():
        shown = f"`{name or '__init__'}{'' if not (SOURCE / imports.PACKAGE / name).is_dir() or not name else '/'}`"
        rows.append(f"| {shown} | {rounded(lines[name])} | {what} |")
    rows.append(f"| all | {rounded(sum(lines.values()))} | |")
    steps = [f"{number}. {what}: `{module}.{function}`" for number, (what, module, function) in enumerate(STEPS, 1)]
    return {"rooms": "\n".join(rows), "steps": "\n".join(steps)}


def filled(text: str) -> str:
    """Return the page with its tables as the code gives them."""
    return fill(text, tables())


def agree(shown: str, fresh: str) -> bool:
    """Return whether two texts are equal but for numbers that differ by at most a tenth."""
    numbers = re.compile(r"\d[\d,]*")
    if numbers.sub("#", shown) != numbers.sub("#", fresh):
        return False
    old, new = ([int(found.replace(",", "")) for found in numbers.findall(text)] for text in (shown, fresh))
    return all(abs(one - other) <= other / 10 for one, other in zip(old, new, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; see the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where something is out of date")
    parser.add_argument("--png", type=Path, help="also write the picture as PNG, to look at it")
    options = parser.parse_args(arguments)
    check_steps()
    page, svg = ROOT / "docs" / "architecture.md", ROOT / "docs" / "rooms.svg"
    text = page.read_text(encoding="utf-8")
    if options.check:
        drawn = re.search("<dc:description>(.*?)</dc:description>", svg.read_text(encoding="utf-8"))
        stale = [] if agree(text, filled(text)) else [page.name]
        stale += [] if drawn and agree(drawn[1], description()) else [svg.name]
        if stale:
            print(f"out of date: {', '.join(stale)}; run tools/draw_rooms.py", file=sys.stderr)
        return bool(stale)
    page.write_text(filled(text), encoding="utf-8")
    svg.write_bytes(picture("svg"))
    if options.png is not None:
        options.png.write_bytes(picture("png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
