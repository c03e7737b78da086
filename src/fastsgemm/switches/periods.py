"""The periods in which a switch is on: in the whole process, or in blocks that may overlap.

Each library has one switch for the whole process, because it has one table of kernels or of lowerings.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S")


@dataclass(eq=False)
class Period(Generic[S]):
    """The settings of the process, or of a block that has not ended."""

    switch: S | None  # None: the switch is off
    block: Block[S] | None = None  # None for the process
    thread: int | None = None  # of the block


class Periods(Generic[S]):
    """The settings of the process, and of blocks in any thread. Those of the block that began last hold.

    `turn` applies the settings of another switch, and makes it `current`. If it fails, nothing has changed.
    """

    def __init__(self, turn: Callable[[S | None], None]) -> None:
        self._turn = turn
        self.lock = threading.RLock()  # held while the switch is turned
        self.process: Period[S] = Period(None)
        self.blocks: list[Period[S]] = []  # in the order in which they began
        self.current: S | None = None  # the switch whose settings hold
        self.last: S | None = None  # the one that was turned on last

    def has(self, switch: S) -> bool:
        """Return whether a switch is on, or will be when a block ends."""
        return any(period.switch is switch for period in (self.process, *self.blocks))

    def set(self, new: S | None) -> None:
        """Change the settings of the block that this thread is in, or else of the process."""
        with self._uninterrupted():
            period = _last_of_this_thread(self.blocks, self.process)
            previous, period.switch = period.switch, new
            try:
                self._turn_if_needed()
            except BaseException:
                period.switch = previous
                raise

    def begin(self, period: Period[S]) -> None:
        """Apply the settings of a block."""
        with self._uninterrupted():
            self.blocks.append(period)
            try:
                self._turn_if_needed()
            except BaseException:
                self.blocks.remove(period)
                raise

    def end(self, period: Period[S]) -> None:
        """Remove a block, and apply the settings that then hold. Nothing happens if it has ended."""
        with self._uninterrupted():
            if period in self.blocks:
                self.blocks.remove(period)
                self._turn_if_needed()

    def last_of(self, block: Block[S]) -> Period[S]:
        """Return the period of this block that began last: in this thread, or else in any."""
        periods = [period for period in self.blocks[:] if period.block is block]  # other threads may change the list
        return _last_of_this_thread(periods, periods[-1])

    def _turn_if_needed(self) -> None:
        new = (self.blocks[-1] if self.blocks else self.process).switch
        if new is not self.current:
            self._turn(new)
            self.last = new or self.last

    @contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """Lock the settings, and defer Ctrl-C, which could leave a change half done.

        Python interrupts its main thread only, and only if it handles Ctrl-C itself.
        """
        handler: Any = signal.getsignal(signal.SIGINT)
        interrupts: list[Any] = []
        interruptible = threading.current_thread() is threading.main_thread() and callable(handler)
        if interruptible:
            signal.signal(signal.SIGINT, lambda *arguments: interrupts.append(arguments))
        try:
            with self.lock:
                yield
        finally:
            if interruptible:
                signal.signal(signal.SIGINT, handler)
                for arguments in interrupts[:1]:
                    handler(*arguments)


def _last_of_this_thread(periods: list[Period[S]], default: Period[S]) -> Period[S]:
    thread = threading.get_ident()
    return next((period for period in reversed(periods) if period.thread == thread), default)


class Block(ContextDecorator, Generic[S]):
    """A block of code with its own settings, which may be entered again before it has ended.

    On Ctrl-C it has not begun, or is ended.
    """

    def __init__(self, periods: Periods[S], make: Callable[[], S]) -> None:
        self._periods, self._make = periods, make

    def _recreate_cm(self) -> Block[S]:
        return Block(self._periods, self._make)  # for each call of a decorated function

    def __enter__(self) -> S:
        new = self._make()
        period = Period(new, self, threading.get_ident())
        try:
            self._periods.begin(period)
            return new
        except BaseException:  # Ctrl-C after it began: Python does not exit a block that was not entered
            self._periods.end(period)
            raise

    def __exit__(self, *_: object) -> None:
        try:
            period = self._periods.last_of(self)
            self._periods.end(period)
        except KeyboardInterrupt:
            if "period" not in locals():  # Ctrl-C came before the assignment
                period = self._periods.last_of(self)
            self._periods.end(period)
            raise
