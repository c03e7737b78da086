import io
import sys

import pytest

from fastsgemm import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_the_bar_at_once_and_no_trace_of_it_at_the_end(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    items = progress.track(["a", "b"], "timing")
    assert next(iter(items)) == "a"
    assert "timing" in terminal.getvalue() and "0/2" in terminal.getvalue()


def test_a_log_sees_nothing_of_what_is_short(capsys):
    assert [*progress.track(["a", "b"], "timing")] == ["a", "b"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fault", [OSError, ValueError])
def test_a_stream_that_takes_nothing_ends_no_run(monkeypatch, fault):
    class Broken(Terminal):
        def write(self, text):
            raise fault

    monkeypatch.setattr(sys, "stderr", Broken())
    assert [*progress.track(["a", "b"], "timing")] == ["a", "b"]
    progress.say("text")
