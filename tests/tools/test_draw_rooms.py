"""The check of the picture of the rooms finds a changed room or import, and lets counts of lines drift by a tenth."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "tools").is_dir(), reason="tools/ is part of a checkout only")


@pytest.fixture(scope="module")
def rooms():
    spec = importlib.util.spec_from_file_location("draw_rooms", ROOT / "tools" / "draw_rooms.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
def test_what_the_check_calls_up_to_date(rooms, fresh, agree):
    assert rooms.agree(SHOWN, fresh) is agree


def test_the_check_finds_an_import_that_the_picture_lacks(rooms, monkeypatch, capsys):
    assert rooms.main(["--check"]) == 0
    imports = dict(rooms._graph())
    monkeypatch.setattr(rooms, "_graph", lambda: {**imports, "jit": imports["jit"] | {"heuristics"}})
    assert rooms.main(["--check"]) == 1
    assert "rooms.svg" in capsys.readouterr().err
