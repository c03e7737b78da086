"""The check of the picture of the rooms finds a changed room or import, and lets counts of lines drift by a tenth."""

import itertools
import re

import pytest

rooms = pytest.importorskip("draw_rooms", reason="tools/ is part of a checkout only")


SHOWN = "call, 2,600 lines, imports jit; jit, 490 lines, imports device"


@pytest.mark.parametrize(
    ("fresh", "agree"),
    [
        (SHOWN, True),
        (SHOWN.replace("2,600", "2,800"), True),
        (SHOWN.replace("2,600", "3,000"), False),
        (SHOWN.replace("490", "300"), False),
        (SHOWN.replace("imports device", "imports"), False),
        (SHOWN.replace("; jit", "; sim"), False),
        (SHOWN + "; sim, 5,600 lines, imports call", False),
    ],
)
def test_what_the_check_calls_up_to_date(fresh, agree):
    assert rooms.agree(SHOWN, fresh) is agree


def test_the_check_finds_an_import_that_the_picture_lacks(monkeypatch, capsys):
    assert rooms.main(["--check"]) == 0
    graph = dict(rooms._graph())
    monkeypatch.setattr(rooms, "_graph", lambda: {**graph, "jit": graph["jit"] | {"arguments"}})
    assert rooms.main(["--check"]) == 1
    assert "rooms-light.svg" in capsys.readouterr().err


def test_all_rooms_are_drawn_in_the_order_of_the_table():
    for svg in rooms.pictures().values():
        names = re.findall(r'text-anchor="end">(\w+)</text>', svg)
        assert names == [name or "__init__" for name in rooms.imports.ROOMS]
    table = rooms.tables()["rooms"]
    assert names == [name.rstrip("/") for name in re.findall(r"^\| `([\w/]+)` \|", table, re.MULTILINE)]


def test_an_import_stands_out_unless_another_one_implies_it():
    graph = {"a": frozenset(), "b": frozenset("a"), "c": frozenset("ab"), "d": frozenset("a")}
    assert [rooms.direct_imports(graph, name) for name in "abcd"] == [[], ["a"], ["b"], ["a"]]


def test_no_text_leaves_the_picture_or_meets_another():
    """`Canvas` refuses the former. Each room has a row; its steps begin behind its own square."""
    for name, svg in rooms.pictures().items():
        rows = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*?font-size="([\d.]+)"', svg)
        assert min(float(size) for *_, size in rows) >= 12
        heights = sorted({float(y) for _, y, _ in rows})
        assert len(heights) == len(rooms.imports.ROOMS), name
        assert min(low - high for high, low in itertools.pairwise(heights)) >= 14
