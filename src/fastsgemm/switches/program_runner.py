"""Runs a program as ``python`` would, in a process whose own program turned a switch on first.

The program runs in the namespace of the process's module ``__main__``, for the rest of the process. So whatever runs
after its last line still sees it, as under ``python``: threads, functions of ``atexit`` and the pickling of classes.
Modules, folders and archives are run by the function that ``python`` itself calls.
"""

from __future__ import annotations

import argparse
import atexit
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import BYTECODE_SUFFIXES, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from pkgutil import get_importer
from typing import Any

from fastsgemm.device import DeviceInfo
from fastsgemm.errors import FastsgemmError

# Whether `sys.path` begins with the current folder, as under ``python -m`` without -P, -I and PYTHONSAFEPATH.
_BEGINS_HERE = not sys.flags.safe_path


def main(parser: argparse.ArgumentParser, enable: Callable[[Any], Any], arguments: Sequence[str] | None = None) -> None:
    """Turn a switch on for the rest of the process, and run the program that the command line names; see `parser_for`.

    `enable` turns the switch on as the options say, and returns it.
    """
    options = parser.parse_args(arguments)
    if options.program[:1] == ["--"]:
        del options.program[0]
    if not options.program:
        parser.error("a program is missing")
    try:
        predicted_for = _device(options.predict)
        switch = enable(options)
    except FastsgemmError as error:
        parser.error(str(error))
    if options.report or options.sizes or predicted_for:  # registered before the program's functions, so it runs last
        atexit.register(lambda: _tell(switch.report(), options, predicted_for))
    name, *rest = options.program
    run = run_module if options.module else run_path
    run(name, rest)


def _device(name: str | None) -> DeviceInfo | None:
    """Return the device to predict for; None if nothing is to be predicted."""
    from fastsgemm.heuristics import explanation  # most programs are run without a prediction

    return None if name is None else explanation.device_at(name)


def _tell(report: Any, options: argparse.Namespace, predicted_for: DeviceInfo | None) -> None:
    """Print the report of a switch and what is predicted of its products, and write their sizes."""
    if options.report:
        print(report, report.table(), sep="\n", file=sys.stderr)
    if predicted_for is not None:
        from fastsgemm.measure import prediction

        sizes = ((of_size.size, of_size.products) for of_size in report.sizes)
        print(prediction.predict(predicted_for, sizes), file=sys.stderr)
    if options.sizes:
        try:
            Path(options.sizes).write_text(report.arguments(), encoding="utf-8")
        except OSError as error:
            print(f"the sizes of products could not be written to {options.sizes}: {error.strerror}", file=sys.stderr)


def parser_for(module: str, library: str) -> argparse.ArgumentParser:
    """Return the parser of ``python -m module``, with the options that every switch has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=f"Run a {library} program with its float32 products replaced by fastsgemm's.",
        usage="%(prog)s [options] (script.py | folder | -m module) [args...]",
    )
    parser.add_argument("--precision", default="ieee", help="ieee (default) or fp16x3")
    parser.add_argument("--batch-invariant", action="store_true", help="a row has the same bits in every batch")
    parser.add_argument("--report", action="store_true", help="print to stderr at the end what was replaced, by size")
    parser.add_argument(
        "--predict",
        metavar="DEVICE",
        help="print to stderr at the end what the products would take, ours and cuBLAS's, on this device; one that is "
        "not here is named, in full or in part, as by H100",
    )
    parser.add_argument(
        "--sizes",
        metavar="FILE",
        help="write the sizes of the products at the end, for fastsgemm tune @FILE, predict FILE and others",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Run a module as ``python -m`` does; SystemExit if there is none."""
    _fresh_main()
    sys.argv = ["-m", *arguments]  # during the import of parent packages; then replaced by the file
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def run_path(path: str, arguments: Sequence[str]) -> None:
    """Run a script, or a folder or an archive with a ``__main__.py``, as ``python`` does; SystemExit if there is none.

    As there, ``__file__`` and the first entry of `sys.path` are absolute but not normalised.
    """
    absolute = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    archive = get_importer(absolute) is not None
    loader = _loader(absolute)
    code: Any = None if archive else _code(loader)
    namespace = _fresh_main()
    sys.argv = [path, *arguments]
    if _BEGINS_HERE:
        del sys.path[0]
    if archive:
        sys.path.insert(0, absolute)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    if _BEGINS_HERE:
        sys.path.insert(0, os.path.dirname(os.path.realpath(absolute)))
    namespace.update(__file__=absolute, __cached__=None, __loader__=loader)
    exec(code, namespace)


def _loader(path: str) -> SourceFileLoader | SourcelessFileLoader:
    if path.endswith(tuple(BYTECODE_SUFFIXES)):
        return SourcelessFileLoader("__main__", path)
    return SourceFileLoader("__main__", path)


def _code(loader: SourceFileLoader | SourcelessFileLoader) -> Any:
    """Return the code of a script, which, unlike a module's, is not cached in compiled form."""
    try:
        if isinstance(loader, SourcelessFileLoader):
            return loader.get_code("__main__")
        return loader.source_to_code(loader.get_data(loader.path), loader.path)
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {loader.path!r}: {reason}", file=sys.stderr)
        sys.exit(2)


def _fresh_main() -> dict[str, Any]:
    """Reset the namespace of ``__main__`` to the initial names of a program, and return it."""
    namespace = vars(sys.modules["__main__"])
    kept: dict[str, Any] = {name: namespace[name] for name in ("__builtins__", "__annotations__") if name in namespace}
    namespace.clear()
    namespace.update(kept, __name__="__main__", __doc__=None, __package__=None, __loader__=None, __spec__=None)
    return namespace
