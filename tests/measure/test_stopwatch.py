import itertools
import statistics
from types import SimpleNamespace

import pytest

from fastsgemm.measure import stopwatch as module
from fastsgemm.measure.stopwatch import _MOST_RUNS, Stopwatch, WallClock, standard_error, turns

L2_BYTES = 50 * 2**20


class Log(list):
    """Everything that is put on the stream, in order, with a clock that each piece of work advances."""

    now = 0.0


class Event:
    def __init__(self, log):
        self.log = log

    def __sub__(self, other):
        return self.at - other.at

    def sync(self):
        self.log.append("sync")


@pytest.fixture
def log(monkeypatch):
    log = Log()

    class Flush:
        def __init__(self, shape, gpu, handle):
            log.flushed = 4 * shape[0] * shape[1]
            self.fill = lambda value: log.append("flush")

        def close(self):
            log.append("close")

    monkeypatch.setattr("fastsgemm.measure.stopwatch.DeviceArray", Flush)
    return log


@pytest.fixture
def stopwatch(log, monkeypatch):
    def record(event):
        event.at = log.now
        log.append("event")

    stream = SimpleNamespace(record=record)
    device = SimpleNamespace(
        properties=SimpleNamespace(l2_cache_size=L2_BYTES), create_event=lambda options: Event(log)
    )
    monkeypatch.setattr("cuda.core.LEGACY_DEFAULT_STREAM", stream)
    return Stopwatch(SimpleNamespace(device=device))


def work(log, name, times):
    left = iter(times)

    def run():
        log.append(name)
        log.now += next(left)

    return run


def test_the_l2_is_flushed_before_the_clock_starts(stopwatch, log):
    assert stopwatch.once(work(log, "work", [2.5])) == 2.5
    assert log == ["flush", "event", "work", "event", "sync"]


def test_the_flush_is_larger_than_the_l2(stopwatch, log):
    assert log.flushed >= 2 * L2_BYTES


def test_a_median_leaves_the_warm_up_out(stopwatch, log):
    times = [100.0, 100.0, 1.0, 9.0, 2.0, 8.0, 3.0]
    assert stopwatch.medians([work(log, "work", times)], seconds=0.0) == [3.0]


def test_several_run_in_turns(stopwatch, log):
    a, b = work(log, "a", [1.0] * 7), work(log, "b", [2.0] * 7)
    assert stopwatch.medians([a, b], seconds=0.0) == [1.0, 2.0]
    order = "".join(entry for entry in log if entry in "ab")
    assert order in ("aabb" + "ab" * 5, "aabb" + "ba" * 5)


def test_turns_have_all_orders_and_nothing_follows_itself():
    orders = list(itertools.islice(turns(3), 200))
    assert {*map(tuple, orders)} == {*itertools.permutations(range(3))}
    assert all(before[-1] != after[0] for before, after in itertools.pairwise(orders))
    assert list(itertools.islice(turns(1), 3)) == [[0]] * 3


def test_samples_are_the_times_that_the_medians_are_of(stopwatch, log):
    a, b = work(log, "a", [9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 5.0]), work(log, "b", [2.0] * 7)
    assert stopwatch.samples([a, b], seconds=0.0) == [[1.0, 2.0, 3.0, 4.0, 5.0], [2.0] * 5]


def test_quick_work_stops_after_enough_runs(stopwatch, log):
    runs = Stopwatch.warm_up + _MOST_RUNS
    assert stopwatch.medians([work(log, "work", [1.0] * runs)], seconds=60.0) == [1.0]


def test_close_frees_the_flush_buffer(stopwatch, log):
    stopwatch.close()
    assert log == ["close"]


def test_the_wall_clock_includes_the_wait_for_the_device_and_not_what_ran_before(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    waits = iter([7.0, 0.5])

    def advance(seconds):
        clock.now += seconds

    assert WallClock(lambda: advance(next(waits))).once(lambda: advance(0.25)) == 750.0


def test_the_wall_clock_of_launches_has_no_wait_in_it(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    waits = []

    def advance(seconds):
        clock.now += seconds

    assert WallClock(lambda: waits.append(clock.now), launches_only=True).once(lambda: advance(0.25)) == 250.0
    assert waits == [0.0]


def test_the_standard_error_of_a_median():
    times = [statistics.NormalDist(10.0, 0.5).inv_cdf((i + 0.5) / 100) for i in range(100)]
    assert standard_error(times) == pytest.approx(1.253 * 0.5 / 10 / 10.0, rel=0.03)
    assert standard_error([1.0] * 5) == 0.0


@pytest.mark.gpu
def test_more_work_takes_longer():
    from fastsgemm.measure import contenders
    from fastsgemm.problem import Problem
    from fastsgemm.rungs import find

    times = []
    for size in (256, 4096):  # where other processes use the device, their slices of 2 ms may lie in each time
        with contenders.on_device(Problem(size, size, size), [find("coalesced")]) as place:
            times += place.medians([place.products[0].work])
    assert 0 < times[0] < times[1]
