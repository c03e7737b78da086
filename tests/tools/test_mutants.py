"""Mutants: the data are of the code as it is, and the program says which tests notice one."""

import json
from pathlib import Path

import pytest

mutants = pytest.importorskip("mutants", reason="tools/ is part of a checkout only")

DATA = Path(__file__).resolve().parents[1] / "mutants.json"
CODE = "def double(x):\n    return x + x\n\n\ndef half(x):\n    return x / 2\n"
TEST = """
import time
from fastsgemm.room import code


def test_the_double_is_even():
    assert code.double(3) % 2 == 0


def test_the_double():
    for _ in range(code.double(2)):
        time.sleep(0.001)
    assert code.double(3) == 6
"""


def test_the_code_has_the_old_text_of_each_mutant_once_and_its_tests_are_there():
    assert [*filter(None, map(mutants.fault_of, json.loads(DATA.read_text())))] == []


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A small checkout with some mutants; the function writes them, and returns what the program does with them."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    for path, text in {
        "src/fastsgemm/__init__.py": "", "src/fastsgemm/room/__init__.py": "", "src/fastsgemm/room/code.py": CODE,
        "tests/room/test_code.py": TEST, "tests/room/test_other.py": TEST,
        "pytest.ini": "[pytest]\nmarkers =\n  gpu\n  slow\naddopts = -ra --import-mode=importlib\n",
    }.items():  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    data = tmp_path / "tests" / "mutants.json"

    def run(*options, **texts):
        if texts:
            made = [{"file": "src/fastsgemm/room/code.py", "old": old, "new": new} for old, new in texts.values()]
            mutants.save(made, data)
        return mutants.main(options), [each.get("killers") for each in json.loads(data.read_text())]

    return run


ODD, DOUBLE = (f"tests/room/test_code.py::{name}" for name in ("test_the_double_is_even", "test_the_double"))


def test_the_first_killer_is_kept_and_runs_first(checkout, monkeypatch):
    texts = {"wrong": ("x + x", "x * x"), "other": ("x + x", "x + x + 2")}
    assert checkout(**texts) == (0, [[ODD], [DOUBLE]])
    ran = []
    run = mutants.run
    monkeypatch.setattr(mutants, "run", lambda *given, **more: ran.append(given[1]) or run(*given, **more))
    assert checkout("x * x") == (0, [[ODD], [DOUBLE]])
    assert ran == [[ODD], [ODD]]  # without the mutant and with it
    assert checkout("--new") == (0, [[ODD], [DOUBLE]])
    assert len(ran) == 2


@pytest.mark.slow
def test_all_files_whose_tests_notice_are_found(checkout):
    assert checkout("--full", wrong=("x + x", "x * x")) == (0, [[ODD, ODD.replace("code", "other")]])


@pytest.mark.slow
def test_a_survivor_is_an_error(checkout, capsys):
    assert checkout(half=("x / 2", "x / 3"), wrong=("x + x", "x * x")) == (1, [None, [ODD]])
    said = capsys.readouterr().out
    assert said.endswith("1 of 2 mutants are killed\nsrc/fastsgemm/room/code.py: x / 2 -> x / 3\n")


@pytest.mark.slow
def test_tests_that_do_not_end_have_not_noticed_anything(checkout, monkeypatch, capsys):
    monkeypatch.setattr(mutants, "SECONDS", 6.0)
    assert checkout(slow=("x + x", "x + x + 10 ** 10")) == (1, [None])
    assert "tests/room/test_code.py -m not gpu and not slow: not done in 6 s" in capsys.readouterr().err


@pytest.mark.slow
def test_code_that_does_not_import_is_noticed(checkout):
    assert checkout(nonsense=("def half(x)", "def half(")) == (0, [["tests/room/test_code.py"]])


def test_a_text_that_is_not_there_or_not_unique_and_a_missing_test_are_errors(checkout, capsys):
    assert checkout(gone=("x - x", "x"), twice=("return x", "return"))[0] == 2
    assert "found 0 times" in (said := capsys.readouterr().err) and "found 2 times" in said
    missing = {"file": "src/fastsgemm/room/code.py", "old": "x + x", "new": "x", "tests": ["tests/none"]}
    assert mutants.fault_of(missing).endswith("there is no tests/none")


@pytest.mark.slow
def test_a_killer_that_fails_without_a_mutant_is_an_error(checkout, capsys):
    assert checkout(wrong=("x + x", "x * x"))[0] == 0
    (mutants.ROOT / "src/fastsgemm/room/code.py").write_text(CODE.replace("def half", "1 / 0\n\n\ndef half"))
    assert checkout()[0] == 2
    assert "fails without a mutant" in capsys.readouterr().err
