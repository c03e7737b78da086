"""When a switch is on, and with which settings: in the whole process, or in blocks that may overlap.

There is one switch of a library for the whole process, because the library has one table of kernels or of lowerings.
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
    thread: int | None = None  # that of the block


class Periods(Generic[S]):
    """The settings of the process, and those of blocks in any thread. Those of the block that began last hold.

    `turn` makes the settings of another switch hold, and that `current`. If it fails, nothing has changed.
    """

    def __init__(self, turn: Callable[[S | None], None]) -> None:
        self._turn = turn
        self.lock = threading.RLock()  # whoever turns the switch holds it
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
            before, period.switch = period.switch, new
            try:
                self._turn_if_needed()
            except BaseException:
                period.switch = before
                raise

    def begin(self, period: Period[S]) -> None:
        """Let the settings of a block hold."""
        with self._uninterrupted():
            self.blocks.append(period)
            try:
                self._turn_if_needed()
            except BaseException:
                self.blocks.remove(period)
                raise

    def end(self, period: Period[S]) -> None:
        """Let the settings hold again that are those without this block. Nothing happens if it has ended."""
        with self._uninterrupted():
            if period in self.blocks:
                self.blocks.remove(period)
                self._turn_if_needed()

    def last_of(self, block: Block[S]) -> Period[S]:
        """Return the period of this block that began last: in this thread, or else in any."""
        periods = [period for period in self.blocks[:] if period.block is block]  # other threads may change the list
        return _last_of_this_thread(periods, periods[-1])

    def _turn_if_needed(self) -> None:
        wanted = (self.blocks[-1] if self.blocks else self.process).switch
        if wanted is not self.current:
            self._turn(wanted)
            self.last = wanted or self.last

    @contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """Let no other thread change the settings, and hold Ctrl-C back meanwhile: it would leave half of a change.

        Python interrupts its main thread only, and not where the program has not left Ctrl-C to Python.
        """
        handler: Any = signal.getsignal(signal.SIGINT)
        held: list[Any] = []
        interruptible = threading.current_thread() is threading.main_thread() and callable(handler)
        if interruptible:
            signal.signal(signal.SIGINT, lambda *given: held.append(given))
        try:
            with self.lock:
                yield
        finally:
            if interruptible:
                signal.signal(signal.SIGINT, handler)
                for given in held[:1]:
                    handler(*given)


def _last_of_this_thread(periods: list[Period[S]], otherwise: Period[S]) -> Period[S]:
    thread = threading.get_ident()
    return next((period for period in reversed(periods) if period.thread == thread), otherwise)


class Block(ContextDecorator, Generic[S]):
    """A block of code with settings of its own, which may be entered again before it has ended.

    Ctrl-C finds it not begun, or ends it.
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
        except BaseException:  # Ctrl-C after it began: Python does not end a block that was not entered
            self._periods.end(period)
            raise

    def __exit__(self, *_: object) -> None:
        try:
            period = self._periods.last_of(self)
            self._periods.end(period)
        except KeyboardInterrupt:
            if "period" not in locals():  # it came before that was read
                period = self._periods.last_of(self)
            self._periods.end(period)
            raise
