"""Output: results on stdout; warnings, messages and progress bars on stderr.

Text can come from files of others, so everything is printed from here, without control characters.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

# A warning points at the calling line of the program, not at the modules in between.
_PASSED_THROUGH = ("fastsgemm", "torch", "jax", "jaxlib", "functools", "contextlib")


def printable(text: str) -> str:
    r"""Return the text with unprintable characters escaped, as in ``\x1b``, except newlines and tabs."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(x if x.isprintable() or x in "\n\t" else x.encode("unicode_escape").decode() for x in text)


def show(text: Any, end: str = "\n") -> None:
    """Print a result on stdout."""
    print(printable(str(text)), end=end, flush=True)


def say(text: str) -> None:
    """Print a line on stderr; do nothing if stderr is missing or closed."""
    if not _closed():
        stderr = _Stderr(sys.stderr)
        stderr.write(f"{printable(text)}\n")
        stderr.flush()


def warn(text: str) -> None:
    """Issue a `RuntimeWarning` of one line that points at the caller's program."""
    frame = sys._getframe()
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_THROUGH:
        frame = frame.f_back
    line, names = (frame.f_code.co_filename, frame.f_lineno), frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(printable(" ".join(text.split())), RuntimeWarning, *line, names.get("__name__"), registry)


def abandon(stream: Any) -> None:
    """Redirect a stream to the null device, or the interpreter would fail when it flushes the stream at exit."""
    with suppress(AttributeError, OSError, ValueError):  # closed, or not a file
        target = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)


class _Stderr:
    """A wrapper of stderr that drops failed writes, so that a run never fails because of its progress bar."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(ValueError):  # characters that the stream cannot encode
            try:
                self._stream.write(text)
            except OSError:  # the disk is full, or the reader has closed the pipe
                abandon(self._stream)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            abandon(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def track(items: Collection[T], label: str, delay: float = 0.0) -> Iterable[T]:
    """Return an iterable over `items` that shows a progress bar with a label, on a terminal after `delay` seconds."""
    if not _is_terminal():
        return items
    from tqdm import tqdm

    bar: Iterable[T] = tqdm(items, label, file=_Stderr(sys.stderr), leave=False, delay=delay)
    return bar


class Bar:
    """The progress bars of a tuning run, one for each phase, with the best result so far and the time left.

    Bars are for terminals; notes are also for logs. Unless it is enabled, nothing is shown, not even notes.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled and not _closed()
        self._title = ""
        self._bar: Any = None

    def title(self, text: str) -> None:
        """Set the label of the phases that follow."""
        self._title = text

    def begin(self, phase: str, count: int) -> None:
        """Start a phase of `count` steps."""
        from tqdm import tqdm

        self.end()
        self._bar = tqdm(
            total=count,
            desc=f"{self._title} {phase}".strip(),
            file=_Stderr(sys.stderr),
            leave=False,
            disable=not (self._enabled and _is_terminal()),
        )

    def step(self) -> None:
        """Advance by one step."""
        self._bar.update()

    def best(self, text: str) -> None:
        """Show the best result so far."""
        self._bar.set_postfix_str(f"best {text}", refresh=False)

    def note(self, text: str) -> None:
        """Print a permanent line above the bar."""
        if self._enabled:
            from tqdm import tqdm

            tqdm.write(printable(text), file=_Stderr(sys.stderr))

    def end(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _is_terminal() -> bool:
    """Return whether stderr is a terminal."""
    return not _closed() and sys.stderr.isatty()


def _closed() -> bool:
    """Return whether stderr is closed or missing (after ``2>&-``)."""
    return sys.stderr is None or sys.stderr.closed
