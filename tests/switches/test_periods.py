"""When a switch is on: in the process, in blocks that overlap, and after failures."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fastsgemm.switches.periods import Block, Period, Periods


class Switch:
    """Settings of nothing."""


class Turns(Periods):
    """Periods that say to which switches they were turned; they can refuse all."""

    def __init__(self):
        super().__init__(self.turn)
        self.turned, self.refuse = [], False

    def turn(self, new):
        if self.refuse:
            raise ZeroDivisionError
        self.turned.append(new)
        self.current = new


@pytest.fixture
def periods():
    made = Turns()
    yield made
    assert not made.blocks


@pytest.fixture
def other():
    """Calls a function in another thread, and returns when that has returned."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda function, *arguments: thread.submit(function, *arguments).result(60)


def leave(block):
    block.__exit__(None, None, None)


def test_what_holds_is_turned_to_once(periods):
    on = Switch()
    for new in (on, on, None, None):
        periods.set(new)
    assert periods.turned == [on, None]
    assert periods.current is None and periods.last is on


def test_each_thread_ends_its_own_period_of_a_block(periods, other):
    block = Block(periods, Switch)
    mine, theirs = block.__enter__(), other(block.__enter__)
    assert periods.current is theirs and periods.has(mine)
    leave(block)
    assert periods.current is theirs and not periods.has(mine)
    other(leave, block)
    assert periods.current is None


def test_a_block_may_end_in_another_thread(periods, other):
    block = Block(periods, Switch)
    outer, inner = block.__enter__(), block.__enter__()
    other(leave, block)
    assert periods.current is outer is not inner
    leave(block)
    with pytest.raises(IndexError):
        leave(block)


def test_each_call_of_a_decorated_function_has_a_block_of_its_own(periods):
    whole = Block(periods, Switch)

    @whole
    def call(times):
        blocks = [period.block for period in periods.blocks]
        return call(times - 1) if times else blocks

    assert len({whole, *call(2)}) == 4


def test_settings_of_the_process_hold_after_the_blocks_of_other_threads(periods, other):
    block, process, changed = Block(periods, Switch), Switch(), Switch()
    begun = other(block.__enter__)
    periods.set(process)
    assert periods.current is begun and periods.has(process)
    other(periods.set, changed)
    assert periods.current is changed and not periods.has(begun)
    other(leave, block)
    assert periods.current is process


def test_what_is_refused_changes_nothing(periods):
    with Block(periods, Switch) as before:
        periods.refuse = True
        with pytest.raises(ZeroDivisionError):
            Block(periods, Switch).__enter__()
        with pytest.raises(ZeroDivisionError):
            periods.begin(Period(Switch()))
        with pytest.raises(ZeroDivisionError):
            periods.set(Switch())
        periods.refuse = False
        assert periods.current is before and [period.switch for period in periods.blocks] == [before]
    assert periods.turned == [before, None] and periods.last is before
