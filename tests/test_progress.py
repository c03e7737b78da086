import functools
import io
import sys
import time

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


def test_a_log_sees_no_bar_however_long_it_takes(capsys, monkeypatch):
    monkeypatch.setattr("tqdm.tqdm.__init__", lambda *_, **how: pytest.fail("a bar") if not how["disable"] else None)
    assert [*progress.track(["a", "b"], "timing")] == ["a", "b"]
    assert capsys.readouterr().err == ""


def test_a_log_sees_the_notes_of_a_run(capsys):
    bar = progress.Bar()
    bar.begin("timing", 2)
    bar.step()
    bar.note("a note")
    bar.end()
    assert capsys.readouterr().err == "a note\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_bar_is_ascii_where_the_encoding_needs_it(monkeypatch, encoding):
    class Encoded(io.TextIOWrapper):
        def isatty(self):
            return True

    terminal = Encoded(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stderr", terminal)
    for _ in progress.track(range(2), "timing"):
        time.sleep(0.15)  # past tqdm's least interval
    bar = progress.Bar()
    bar.begin("timing", 2)
    bar.step()
    bar.end()
    terminal.flush()
    shown = terminal.buffer.getvalue().decode(encoding)
    assert "1/2" in shown and shown.isascii() is (encoding != "utf-8")


@pytest.mark.parametrize("fault", [OSError, ValueError])
def test_a_stream_that_takes_nothing_ends_no_run(monkeypatch, fault):
    class Broken(Terminal):
        def write(self, text):
            raise fault

    monkeypatch.setattr(sys, "stderr", Broken())
    assert [*progress.track(["a", "b"], "timing")] == ["a", "b"]
    progress.say("text")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a line", "a line"),
        ("two\n\tlines, \u00b5s, k\u00e4se", "two\n\tlines, \u00b5s, k\u00e4se"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("over\rwritten", r"over\rwritten"),
        ("\x9b2J \u202e \x7f \x00 \udcff", r"\x9b2J \u202e \x7f \x00 \udcff"),
    ],
)
def test_what_a_terminal_obeys_is_escaped(capsys, text, shown):
    progress.show(text)
    progress.say(text)
    assert capsys.readouterr() == (f"{shown}\n", f"{shown}\n")
    with pytest.warns(RuntimeWarning) as seen:
        progress.warn(text)
    line = " ".join(text.split())
    assert str(seen[0].message) == progress.printable(line) and seen[0].filename == __file__


def test_a_warning_points_through_a_cached_property_of_the_package_at_the_caller():
    names = {"__name__": "fastsgemm.made_up", "warn": progress.warn, "cached_property": functools.cached_property}
    exec("class Lazy:\n    @cached_property\n    def value(self): warn('text')\ndef of(lazy): return lazy.value", names)
    with pytest.warns(RuntimeWarning) as seen:
        names["of"](names["Lazy"]())
    assert seen[0].filename == __file__
