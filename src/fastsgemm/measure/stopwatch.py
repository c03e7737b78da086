"""Measures time: works run in turns after a warm-up, and the median of each counts."""

from __future__ import annotations

import math
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from fastsgemm.call.arrays import DeviceArray
from fastsgemm.device import LEGACY_STREAM

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

Work = Callable[[], object]

_LEAST_RUNS, _MOST_RUNS = 5, 100  # timed runs of each work, however long or short they are


def turns(number: int) -> Iterator[list[int]]:
    """Yield orders of so many works without end: random ones, in which no work follows itself.

    A kernel takes up to 1 us less if it ran last, because its instructions are still in caches that no flush of L2
    reaches. In a fixed order, the second of two works that share a kernel would always gain that.
    """
    generator, last = random.Random(0), -1
    while True:
        order = generator.sample(range(number), number)
        if order[0] == last:
            order.append(order.pop(0))
        last = order[-1]
        yield order


def standard_error(times: Sequence[float]) -> float:
    """Return the standard error of the median of `times`, relative to the median.

    It is estimated from the interquartile range, so that one slow run has no effect. For normally distributed times the
    standard deviation is 0.741 of that range, and the standard error of the median is 1.253 standard deviations divided
    by the square root of n.
    """
    lower, median, upper = statistics.quantiles(times, n=4)
    return 1.253 * 0.741 * (upper - lower) / math.sqrt(len(times)) / median


class Clock(ABC):
    """Times works in turns, by the time that `once` returns."""

    warm_up = 2  # untimed runs, for module load, clocks and page tables

    @abstractmethod
    def once(self, work: Work, flushes: int = 1) -> float:
        """Run `work` and return its time in milliseconds."""

    def medians(self, works: Sequence[Work], seconds: float = 0.3, flushes: int = 1) -> list[float]:
        """Return the median time of each of `works`, in milliseconds; see `samples`."""
        return [statistics.median(seen) for seen in self.samples(works, seconds, flushes)]

    def samples(self, works: Sequence[Work], seconds: float, flushes: int = 1) -> list[list[float]]:
        """Return the times in ms of all runs of each of `works`: about `seconds` of wall time for each of them.

        They run in turns, so that a drifting clock affects all of them; see `turns` for their order.
        """
        for work in works:
            for _ in range(self.warm_up):
                self.once(work, flushes)
        began = time.perf_counter()
        times: list[list[float]] = [[] for _ in works]
        orders = turns(len(works))
        while len(times[0]) < _LEAST_RUNS or (
            len(times[0]) < _MOST_RUNS and time.perf_counter() - began < seconds * len(works)
        ):
            for number in next(orders):
                times[number].append(self.once(works[number], flushes))
        return times


class Stopwatch(Clock):
    """The time on one device, which is current in this thread, of work launched on the legacy default stream."""

    def __init__(self, gpu: Gpu) -> None:
        from cuda.core import LEGACY_DEFAULT_STREAM, EventOptions

        self._stream = LEGACY_DEFAULT_STREAM
        l2_bytes = int(gpu.device.properties.l2_cache_size)
        self._flush = DeviceArray((max(1, 2 * l2_bytes // 4096), 1024), gpu, LEGACY_STREAM)
        options = EventOptions(timing_enabled=True)
        self._start = gpu.device.create_event(options)
        self._stop = gpu.device.create_event(options)

    def once(self, work: Work, flushes: int = 1) -> float:
        """Run `work` with a cold L2 and return its device time in milliseconds.

        L2 is flushed `flushes` times. A device that flushes it for longer than the host takes to launch `work` has all
        of that queued when it starts, so the time has no wait for the host in it.
        """
        for _ in range(flushes):
            self._flush.fill(0)
        self._stream.record(self._start)
        work()
        self._stream.record(self._stop)
        self._stop.sync()
        return float(self._stop - self._start)

    def close(self) -> None:
        """Free the flush buffer."""
        self._flush.close()


class WallClock(Clock):
    """The time on the host. `wait` waits for a device that works use.

    With `launches_only`, the device is waited for before a work and not after it, so its time is not counted.
    """

    def __init__(
        self, wait: Callable[[], object] = lambda: None, launches_only: bool = False, warm_up: int = 0
    ) -> None:
        self._wait, self._launches_only, self.warm_up = wait, launches_only, warm_up

    def once(self, work: Work, flushes: int = 0) -> float:
        """Run `work` and return its wall time in milliseconds; nothing is flushed."""
        self._wait()
        began = time.perf_counter()
        work()
        if not self._launches_only:
            self._wait()
        return 1e3 * (time.perf_counter() - began)
