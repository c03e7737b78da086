#!/usr/bin/env python3
"""Draw which room of the package imports which, and write the tables of docs/architecture.md.

    tools/draw_rooms.py            write docs/figures/rooms-*.svg and the tables
    tools/draw_rooms.py --check    change nothing; fail where a picture or a table is not what the code gives; a count
                                   of lines may be off by a tenth, so that not every edit needs a new table

Rooms, lines and imports are read from the source, in the order of `imports.ROOMS`. The steps of a call are named here;
each names the function that takes it, and the program fails where that function does not exist.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from functools import cache

import generated
import imports
from generated import ROOT
from page_tables.markdown import fill, table
from svg_canvas import THEMES, Canvas, Theme

SOURCE = ROOT / "src"
ROW = 16.0  # pixels from a room to the next
TEXT = 12.0

# The steps of a first call: what happens, and the function that does it. A later call takes the first two, looks up
# what steps 3 to 6 made, and takes the last.
STEPS = (
    ("resolve the request", "fastsgemm.request", "resolve"),
    ("read the arrays", "fastsgemm.gemm", "sgemm"),
    ("check the operands", "fastsgemm.call.product", "make_plan"),
    ("choose", "fastsgemm.heuristics.choice", "choose"),
    ("list the launches", "fastsgemm.call.ieee", "add_product"),
    ("load the kernels", "fastsgemm.jit.kernel", "ready"),
    ("launch", "fastsgemm.call.driver", "multiply"),
)


def picture(theme: Theme) -> str:
    """Return the picture as SVG: a row and a column per room, with a square where the row's room imports the column's.

    A square is pale where the room imports the other through a third one as well. The last square of a row is the room
    itself; those that take steps of a first call have another colour, and the numbers of the steps beside them.
    """
    canvas = Canvas(360, theme)
    graph, names = _graph(), list(imports.ROOMS)
    left, top, wide = 112.0, 12.0, 6.2
    rooms = [imports.short(imports.room(module)) for _, module, _ in STEPS]
    for row, name in enumerate(names):
        y = top + row * ROW
        canvas.text((left - 10, y + 12), name or "__init__", anchor="end", size=TEXT)
        if row % 2 == 0:
            canvas.rect((left, y, wide * len(names), ROW), theme.faint, "none", 0.3)
        direct = direct_imports(graph, name)
        for column, other in enumerate(names[:row]):
            if other in graph[name]:
                box = (left + column * wide + 1, y + 3, wide - 2, ROW - 6)
                canvas.rect(box, theme.block, "none", 1.0 if other in direct else 0.35)
        taken = [number for number, room in enumerate(rooms, 1) if room == name]
        color = theme.thread if taken else theme.muted
        canvas.rect((left + row * wide + 1, y + 3, wide - 2, ROW - 6), color)
        if taken:
            canvas.text((left + (row + 1) * wide + 5, y + 12), ", ".join(map(str, taken)), theme.thread, size=TEXT)
    return canvas.svg(top + ROW * len(names) + 8, description())


def direct_imports(graph: imports.Graph, name: str) -> list[str]:
    """Return the rooms that a room imports, without those that it also reaches through another one."""
    imported = graph[name]
    return sorted(other for other in imported if not any(_reaches(graph, one, other) for one in imported - {other}))


def _reaches(graph: imports.Graph, name: str, other: str) -> bool:
    return other in graph[name] or any(_reaches(graph, one, other) for one in graph[name])


def pictures() -> dict[str, str]:
    """Return every picture by the name of its file."""
    return {f"rooms-{variant}.svg": picture(theme) for variant, theme in THEMES.items()}


def rounded(count: int) -> str:
    """Return a count of lines with two significant digits, so that it does not change with every edit."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return f"{round(count / unit) * unit:,}"


def description() -> str:
    """Return in words what the picture shows."""
    graph = _graph()
    drawn = (f"{name or '__init__'} imports {', '.join(direct_imports(graph, name)) or 'nothing'}" for name in graph)
    return "; ".join(drawn)


@cache
def _graph() -> imports.Graph:
    """Return what each room imports, by short names in the order of the table."""
    by_name = {imports.short(name): each for name, each in imports.rooms(imports.files(SOURCE)).items()}
    return {name: frozenset(map(imports.short, by_name[name])) for name in imports.ROOMS}


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
    rows = []
    for name, what in imports.ROOMS.items():
        folder = "/" if name and (SOURCE / imports.PACKAGE / name).is_dir() else ""
        rows.append((f"`{name or '__init__'}{folder}`", rounded(lines[name]), what))
    rows.append(("all", rounded(sum(lines.values())), ""))
    steps = [f"{number}. {what}: `{module}.{function}`" for number, (what, module, function) in enumerate(STEPS, 1)]
    return {
        "rooms": table(("room", "lines", "what is in it"), rows, text=("what is in it",)),
        "steps": "\n".join(steps),
    }


def agree(shown: str, fresh: str) -> bool:
    """Return whether two texts are equal but for numbers that differ by at most a tenth."""
    numbers = re.compile(r"\d[\d,]*")
    if numbers.sub("#", shown) != numbers.sub("#", fresh):
        return False
    old, new = ([int(number.replace(",", "")) for number in numbers.findall(text)] for text in (shown, fresh))
    return all(abs(one - other) <= other / 10 for one, other in zip(old, new, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    options = generated.parser(__doc__).parse_args(arguments)
    check_steps()
    page = ROOT / "docs" / "architecture.md"
    wanted = {ROOT / "docs" / "figures" / name: svg for name, svg in pictures().items()}
    text = page.read_text(encoding="utf-8")
    fresh = fill(text, tables())
    wanted[page] = text if options.check and agree(text, fresh) else fresh
    return generated.update(wanted, "draw_rooms.py", options.check)


if __name__ == "__main__":
    sys.exit(main())
