"""Arrows between the files and between the rooms of the package point one way, lazy imports included."""

from pathlib import Path

import imports
import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"


@pytest.fixture(scope="module")
def files():
    return imports.files(SOURCE)


def test_no_files_import_each_other(files):
    imports.floors(files)


def test_no_rooms_import_each_other(files):
    imports.floors(imports.rooms(files))


def test_every_room_has_its_place_in_the_order(files):
    assert {imports.short(name) for name in imports.rooms(files)} == {*imports.ROOMS}


def test_rooms_import_only_from_rooms_below_them(files):
    assert imports.against_order(files) == []


def test_an_import_against_the_order_is_found(tmp_path):
    package = tmp_path / "fastsgemm"
    for name, text in {
        "call/launch.py": "def f():\n    from fastsgemm.tuning.first_use import meet\n",
        "tuning/first_use.py": "from fastsgemm.heuristics import choice\n",
        "heuristics/choice.py": "",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    assert imports.against_order(imports.files(tmp_path)) == ["call -> tuning"]


def test_a_circle_is_found_and_shown(tmp_path):
    for name, text in {
        "low": "",
        "one": "def f():\n    from fastsgemm import two\n",
        "two": "from fastsgemm.low import x\nfrom fastsgemm.one import f\n",
    }.items():
        (tmp_path / "fastsgemm").mkdir(exist_ok=True)
        (tmp_path / "fastsgemm" / f"{name}.py").write_text(text)
    with pytest.raises(ValueError, match=r"fastsgemm.one -> fastsgemm.two -> fastsgemm.one"):
        imports.floors(imports.files(tmp_path))
