"""Ctrl-C at every line that runs while the switch is turned: it is on or off afterwards, never in between."""

import gc
import itertools
import signal
import sys

import pytest

torch = pytest.importorskip("torch")

import fastsgemm.torch  # noqa: E402
from fastsgemm.switches import periods  # noqa: E402
from fastsgemm.torch import kernel_switch  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_host")

ATTACK = "Ctrl-C while the switch is turned"


@pytest.fixture(autouse=True)
def handler():
    """The handler of Ctrl-C that Python begins with; it is there again after each test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def interrupted_at(number, function):
    """Call a function and press Ctrl-C at the line of this number below it; return whether it came so far."""
    lines = 0

    def at_line(frame, event, given):
        nonlocal lines
        # Python can be interrupted where any function begins, so no block can be sure of its end there.
        ends = frame.f_code.co_name == "__exit__" and frame.f_code.co_filename == periods.__file__
        if event == "line" and not (ends and frame.f_lineno == frame.f_code.co_firstlineno + 1):
            lines += 1
            if lines == number:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return at_line

    # Not the lines of this file: Python is not interrupted between a ``with`` and the call of what ends it.
    # Not in a finaliser, which loses the interrupt: no garbage is collected meanwhile. (CPython 3.11 also crashes if it
    # is collected while a frame is made for a trace function.)
    gc.disable()
    sys.settrace(lambda frame, event, given: None if frame.f_code.co_filename == __file__ else at_line)
    try:
        function()
    finally:
        sys.settrace(None)
        gc.enable()
    return lines >= number


def attempts(function, errors):
    """Call a function again and again, interrupted one line later each time, until it ends first; yield after each.

    `errors` holds the errors, and so the frames of their tracebacks, as an interactive session does.
    """
    for number in itertools.count(1):
        try:
            if not interrupted_at(number, function):
                return
        except KeyboardInterrupt as error:
            errors.append(error)
        yield


def test_a_block(tried):
    def block():
        with fastsgemm.torch.enabled(only="mm", device="cpu"):
            assert kernel_switch.periods.blocks

    errors = []
    for _ in attempts(block, errors):
        assert kernel_switch.periods.current is None and not kernel_switch.periods.blocks
    assert len(errors) > 50
    tried(ATTACK, len(errors))


@pytest.mark.parametrize("first", [fastsgemm.torch.disable, lambda: fastsgemm.torch.enable(only="mm", device="cpu")])
def test_enable_and_disable(tried, first):
    def turn():
        fastsgemm.torch.enable(only=["mm", "dot"], device="cpu")
        fastsgemm.torch.disable()

    errors = []
    first()
    try:
        for _ in attempts(turn, errors):
            assert kernel_switch.periods.current is kernel_switch.periods.process.switch
            on = kernel_switch.periods.current
            before = on and on.report().calls
            torch.mm(torch.ones(2, 2), torch.ones(2, 2))
            assert on is None or on.report().calls == before + 1
            first()
    finally:
        fastsgemm.torch.disable()
    assert len(errors) > 50
    tried(ATTACK, len(errors))


def test_a_handler_of_the_program_is_called_when_the_switch_is_turned():
    called = []
    signal.signal(signal.SIGINT, lambda *given: called.append(given))
    block = fastsgemm.torch.enabled(only="mm", device="cpu")
    for number in (1, 50, 100):
        assert interrupted_at(number, block.__enter__)
        block.__exit__(None, None, None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert len(called) == 3
