"""Read the imports of the package from its source: which file imports which, and which room imports which.

A room is a folder of ``src/fastsgemm``. The files directly in it are a room each. Imports inside functions and under
``TYPE_CHECKING`` count like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "fastsgemm"

Graph = Mapping[str, frozenset[str]]


def files(source: Path) -> Graph:
    """Return for every module below ``source/fastsgemm`` the modules of the package that it imports."""
    paths = {_name(path, source): path for path in sorted((source / PACKAGE).rglob("*.py"))}
    return {name: frozenset(_imported(path, paths.keys())) - {name} for name, path in paths.items()}


def rooms(graph: Graph) -> Graph:
    """Return the same between rooms."""
    found: dict[str, set[str]] = {}
    for name, imported in graph.items():
        found.setdefault(room(name), set()).update(map(room, imported))
    return {name: frozenset(imported - {name}) for name, imported in found.items()}


def room(module: str) -> str:
    """Return the room of a module: ``fastsgemm.call`` for ``fastsgemm.call.launch``."""
    return ".".join(module.split(".")[:2])


def floors(graph: Graph) -> list[list[str]]:
    """Return the nodes in layers, the lowest first: each imports only from layers below its own.

    Raises
    ------
    ValueError
        There is a circle; the message shows it.
    """
    left, done, layers = dict(graph), set[str](), list[list[str]]()
    while left:
        layer = sorted(name for name, imported in left.items() if imported <= done)
        if not layer:
            raise ValueError("these import each other: " + " -> ".join(_circle(left)))
        layers.append(layer)
        done.update(layer)
        for name in layer:
            del left[name]
    return layers


def _circle(left: Graph) -> list[str]:
    name, path = next(iter(left)), list[str]()
    while name not in path:
        path.append(name)
        name = next(imported for imported in sorted(left[name]) if imported in left)
    return [*path[path.index(name) :], name]


def _name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, known: object) -> Iterator[str]:
    names = set(known)  # type: ignore[call-overload]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from inside & names
            if inside - names and node.module != PACKAGE:  # a name that the module itself defines
                yield str(node.module)
