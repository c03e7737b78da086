"""The check of the picture of the rooms finds a changed room or import, and lets counts of lines drift by a tenth."""

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
    imports = dict(rooms._graph())
    monkeypatch.setattr(rooms, "_graph", lambda: {**imports, "jit": imports["jit"] | {"heuristics"}})
    assert rooms.main(["--check"]) == 1
    assert "rooms.svg" in capsys.readouterr().err
