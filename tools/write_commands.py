#!/usr/bin/env python3
"""Write the environment variables and the options of every command into docs/commands.md, as the code describes them.

    tools/write_commands.py            write the page
    tools/write_commands.py --check    write nothing; exit 1 if the page differs from the code

What the page says outside of its markers is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

import generated
from page_tables.markdown import fill, table

from fastsgemm import command_line, settings

PAGE = generated.ROOT / "docs" / "commands.md"
_HEADS = ("argument", "meaning", "commands")


def variables() -> str:
    """Return a table of the environment variables, in the order of their declarations."""
    rows, heads = [], ("variable", "meaning", "values", "default")
    for variable in vars(settings).values():
        if isinstance(variable, settings.Variable):
            values = ", ".join(f"`{value}`" for value in variable.values) or "any"
            default = f"`{variable.default}`" if variable.default else variable.unset
            rows.append((f"`{variable.name}`", variable.meaning, values, default))
    return table(heads, rows, text=heads)


def text() -> str:
    """Return a section for each command with a table of its arguments; what several take stands in the last one."""
    parser = command_line._parser()
    commands = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    about = {one.dest: one.help or "" for one in commands._choices_actions}
    rows = {
        name: [(f"`{_spelled(one)}`", _sentence(_described(one))) for one in command._actions if one.dest != "help"]
        for name, command in commands.choices.items()
    }
    taken_by = {row: [name for name in rows if row in rows[name]] for each in rows.values() for row in each}
    parts = []
    for name, command in commands.choices.items():
        own = [row for row in rows[name] if len(taken_by[row]) == 1]
        parts += [f"## fastsgemm {name}", "", _sentence(command.description or about[name]), ""]
        parts += [table(_HEADS[:2], own, text=_HEADS), ""] if own else []
    several = (
        (*row, "all" if len(names) == len(rows) else ", ".join(names))
        for row, names in taken_by.items()
        if len(names) > 1
    )
    return "\n".join([*parts, "## Arguments of several commands", "", table(_HEADS, several, text=_HEADS)])


def _spelled(action: argparse.Action) -> str:
    name = max(action.option_strings, key=len, default="")
    value = action.metavar or (" | ".join(map(str, action.choices)) if action.choices else action.dest.upper())
    return f"{name} {'' if action.nargs == 0 else value}".strip().replace("|", r"\|")


def _described(action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": "fastsgemm"}


def _sentence(text: str) -> str:
    text = re.sub(r"--[a-z]+(-[a-z]+)*", r"`\g<0>`", text)
    return (text[:1].upper() + text[1:]).replace("|", r"\|").rstrip(".") + "."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    texts = {"variables": variables(), "commands": text()}
    page = fill(PAGE.read_text(encoding="utf-8"), texts)
    return generated.run(__doc__, "write_commands.py", {PAGE: page}, arguments)


if __name__ == "__main__":
    sys.exit(main())
