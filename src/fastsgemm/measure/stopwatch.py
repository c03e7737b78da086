"""Timing: works run in turns after a warm-up; the result is the median time of each."""

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

_LEAST_RUNS, _MOST_RUNS = 5, 100  # timed runs of each work, whatever they take


def turns(number: int) -> Iterator[list[int]]:
    """Yield random orders of `number` works without end, in which no work follows itself.

    A kernel takes up to 1 us less if it also ran before, because its instructions are still in caches that flushing L2
    does not reach. In a fixed order, the second of two works that share a kernel would always gain that.
    """
    generator, previous = random.Random(0), -1
    while True:
        order = generator.sample(range(number), number)
        if order[0] == previous:
            order.append(order.pop(0))
        previous = order[-1]
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
    """Times works in turns; `once` defines the time of a run."""

    warm_up = 2  # untimed runs, for module load, clocks and page tables

    @abstractmethod
    def once(self, work: Work, flushes: int = 1) -> float:
        """Run `work` and return its time in milliseconds."""

    def medians(self, works: Sequence[Work], seconds: float = 0.3, flushes: int = 1) -> list[float]:
        """Return the median time of each of `works`, in milliseconds; see `samples`."""
        return [statistics.median(times) for times in self.samples(works, seconds, flushes)]

    def samples(self, works: Sequence[Work], seconds: float, flushes: int = 1) -> list[list[float]]:
        """Return the times in ms of all runs of each of `works`, for about `seconds` of wall time each.

        They run in turns, so that clock drift affects all alike; see `turns` for their order.
        """
        for work in works:
            for _ in range(self.warm_up):
                self.once(work, flushes)
        start = time.perf_counter()
        times: list[list[float]] = [[] for _ in works]
        orders = turns(len(works))
        while len(times[0]) < _LEAST_RUNS or (
            len(times[0]) < _MOST_RUNS and time.perf_counter() - start < seconds * len(works)
        ):
            for number in next(orders):
                times[number].append(self.once(works[number], flushes))
        return times


class Stopwatch(Clock):
    """Device time of work launched on the legacy default stream of one device, current in this thread."""

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

        L2 is flushed `flushes` times. If that takes longer than launching `work`, all launches are queued before the
        work starts, so the time includes no wait for the host.
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
    """Wall time on the host. `wait` synchronises with the device that works use.

    With `launches_only`, that happens before a work but not after it, so that device time is not counted.
    """

    def __init__(
        self, wait: Callable[[], object] = lambda: None, launches_only: bool = False, warm_up: int = 0
    ) -> None:
        self._wait, self._launches_only, self.warm_up = wait, launches_only, warm_up

    def once(self, work: Work, flushes: int = 0) -> float:
        """Run `work` and return its wall time in milliseconds; nothing is flushed."""
        self._wait()
        start = time.perf_counter()
        work()
        if not self._launches_only:
            self._wait()
        return 1e3 * (time.perf_counter() - start)
