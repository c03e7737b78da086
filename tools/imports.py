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

# The rooms and what is in each, the lowest first: a room imports only from rooms above it in this list.
# Those without a trailing slash are single files.
ROOMS = {
    "errors": "every error that a caller can see",
    "settings": "every environment variable that the package reads",
    "progress": "all that is printed: results, warnings, messages and progress bars",
    "log": "what is chosen, compiled, loaded, replaced and passed on, if it is asked for",
    "arguments": "integers, names and switches that a caller passes, NumPy's included",
    "resources": "finds the data files of the package: device code and tuning database",
    "strict_json": "reads JSON and refuses what it does not know",
    "private_files": "files that no other user may write",
    "problem": "a problem: M, N, K and a layout, and its spelling",
    "config": "the constants of a kernel, and the predicate that says which are legal",
    "rungs": "the kernels of the ladder, and which of them `sgemm` uses by default",
    "known_devices": "limits of devices that are not in this machine",
    "driver": "calls of the CUDA driver that need no opened device",
    "gpu": "an opened device, and the kernels that are loaded on it",
    "device": "the devices of this machine, and those opened so far",
    "geometry": "how matrices lie in memory, which variant of a kernel they need, and the grid: pure arithmetic",
    "request": "what a caller asks for besides the operands, resolved once",
    "jit": "source with its constants filled in, NVRTC, the kernel cache, loaded kernels",
    "heuristics": "the tuning database, the cost model, and the choice of rung and config",
    "call": "one product: array libraries, checks, packing, split-K, launch",
    "sim": "the simulated device, which runs the compiled kernels without a GPU",
    "measure": "stopwatch, cuBLAS to compare with, the ladder and the benchmark, timed or simulated, and their reports",
    "tuning": "search, check, time and store configs; opens a device and tunes an unknown one",
    "host": "`sgemm` for arrays in host memory",
    "switches": "what PyTorch's and JAX's switches share: when one is on, its report, and a program run with it",
    "torch": "the operator in PyTorch, and the switch that replaces PyTorch's own products",
    "jax": "`sgemm` in code that JAX traces, and the switch that replaces JAX's own products",
    "gemm": "`sgemm`, the public function",
    "grouped": "`grouped_mm`, the public function",
    "preparation": "`prepare`: compiles and loads kernels before their first call",
    "kernel_package": "`fastsgemm pack`: the wheel of compiled kernels, and the census that says which",
    "blas": "`sgemm` with SciPy's signature",
    "": "the public names",
    "command_line": "`fastsgemm` on the command line",
    "__main__": "starts the command line, and answers Ctrl-C while it loads",
    "tune": "`python -m fastsgemm.tune`, the older spelling of `fastsgemm tune`",
}


def files(source: Path) -> Graph:
    """Return for every module below ``source/fastsgemm`` the modules of the package that it imports."""
    paths = {_name(path, source): path for path in sorted((source / PACKAGE).rglob("*.py"))}
    return {name: frozenset(_imported(path, paths.keys())) - {name} for name, path in paths.items()}


def rooms(graph: Graph) -> Graph:
    """Return the same between rooms."""
    imported_by: dict[str, set[str]] = {}
    for name, imported in graph.items():
        imported_by.setdefault(room(name), set()).update(map(room, imported))
    return {name: frozenset(imported - {name}) for name, imported in imported_by.items()}


def room(module: str) -> str:
    """Return the room of a module: ``fastsgemm.call`` for ``fastsgemm.call.product``."""
    return ".".join(module.split(".")[:2])


def lines(source: Path) -> dict[str, int]:
    """Return the lines of Python in each room, in the order of `ROOMS`."""
    counted = dict.fromkeys(ROOMS, 0)
    for path in sorted((source / PACKAGE).rglob("*.py")):
        counted[short(room(_name(path, source)))] += len(path.read_text(encoding="utf-8").splitlines())
    return counted


def short(name: str) -> str:
    """Return the name of a room as `ROOMS` has it: ``call`` for ``fastsgemm.call``."""
    return name.removeprefix(PACKAGE).removeprefix(".")


def against_order(graph: Graph) -> list[str]:
    """Return the imports between rooms that go against the order of `ROOMS`, as ``call -> tuning``."""
    order = {name: place for place, name in enumerate(ROOMS)}
    pairs = [(short(name), short(other)) for name, imported in rooms(graph).items() for other in sorted(imported)]
    return [f"{name} -> {other}" for name, other in pairs if order[other] > order[name]]


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
        elif isinstance(node, ast.ImportFrom) and node.module in {*names, PACKAGE}:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from inside & names
            if inside - names and node.module != PACKAGE:  # a name that the module itself defines
                yield str(node.module)
