"""What goes to stderr: messages, and by tqdm how far a long run is."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

# In a log file a bar appears only where the work takes longer than this, and then once in that time, in seconds.
_LOG_PERIOD = 10.0


def say(text: str) -> None:
    """Print a line on stderr, if there is one that takes it."""
    if not _closed():
        stderr = _Stderr(sys.stderr)
        stderr.write(f"{text}\n")
        stderr.flush()


def abandon(stream: Any) -> None:
    """Send what a stream still holds nowhere: else the interpreter fails to write it again as it ends."""
    with suppress(AttributeError, OSError, ValueError):  # closed, or not a file
        target = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)


class _Stderr:
    """stderr as it is now. A line that cannot be written is dropped: a run must not end because of its bar."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(ValueError):  # letters that it cannot encode
            try:
                self._stream.write(text)
            except OSError:  # full, or closed by the reader
                abandon(self._stream)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            abandon(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def track(items: Collection[T], doing: str, delay: float = 0.0) -> Iterable[T]:
    """Iterate over `items` with a bar: on a terminal after `delay` seconds, in a log where it takes long.

    Parameters
    ----------
    items : collection
    doing : str
        What the bar says of them, for example ``timing``.
    delay : float
        Seconds before a terminal shows the bar.
    """
    if _closed():
        return items
    from tqdm import tqdm

    stderr = _Stderr(sys.stderr)
    period = 0.1 if stderr.isatty() else _LOG_PERIOD
    wait = delay if stderr.isatty() else max(delay, _LOG_PERIOD)
    bar: Iterable[T] = tqdm(items, doing, file=stderr, leave=False, delay=wait, mininterval=period)
    return bar


class Bar:
    """The progress of a tuning run: a bar for each phase, with the best so far and the time left.

    Parameters
    ----------
    enabled : bool
        False shows nothing, not even notes.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled and not _closed()
        self._title = ""
        self._bar: Any = None

    def title(self, text: str) -> None:
        """Say what the next phases are about."""
        self._title = text

    def begin(self, what: str, count: int) -> None:
        """Start counting to `count`."""
        from tqdm import tqdm

        self.end()
        self._bar = tqdm(
            total=count,
            desc=f"{self._title} {what}".strip(),
            file=_Stderr(sys.stderr),
            leave=False,
            disable=not self._enabled,
        )

    def step(self) -> None:
        """Count one."""
        self._bar.update()

    def best(self, text: str) -> None:
        """Show the best so far."""
        self._bar.set_postfix_str(f"best {text}", refresh=False)

    def note(self, text: str) -> None:
        """Say something that stays."""
        if self._enabled:
            from tqdm import tqdm

            tqdm.write(text, file=_Stderr(sys.stderr))

    def end(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _closed() -> bool:
    """Whether there is no stderr: the process was started with ``2>&-``, or a program has closed it."""
    return sys.stderr is None or sys.stderr.closed
