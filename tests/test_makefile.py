"""The environment that make sets up belongs to one version of Python and of CUDA; a shell script plays Python."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed"),
    pytest.mark.skipif(not (ROOT / "Makefile").exists(), reason="the Makefile is part of a checkout only"),
]

# It prints its version, makes environments with itself in them, and lists what else it is asked.
PYTHON = """\
#!/bin/sh
case "$*" in
*version_info\\[:2\\]*) echo VERSION ;;
-c*) ;;
"-m venv "*)
    for folder; do :; done
    cp "$0" copy
    if test "$3" = --clear; then rm -rf "$folder"; fi
    mkdir -p "$folder/bin"
    test -e "$folder/bin/python" || cp copy "$folder/bin/python" ;;
"-m pip "*)
    if test -e offline; then echo "ERROR: no network"; exit 1; fi
    echo VERSION "$@" >> log ;;
*) echo VERSION "$@" >> log ;;
esac
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Return a function that runs make in a clone with interpreters of three versions; it returns what make did."""
    for name in ("PYTHON", "CUDA", "VENV", "EXTRAS", "MAKEFLAGS", "MAKELEVEL"):
        monkeypatch.delenv(name, raising=False)
    for version in ("3.11", "3.12", "3.13"):
        path = tmp_path / f"python{version}"
        path.write_text(PYTHON.replace("VERSION", version))
        path.chmod(0o755)
    (tmp_path / "python3").symlink_to("python3.11")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)

    def run(*arguments, fails=False):
        (tmp_path / "log").write_text("")
        command = ["make", "--silent", "demo", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        asked = (tmp_path / "log").read_text().splitlines()
        installed = [line.split()[-1] for line in asked if " -m pip " in line]
        ran = [line.split()[0] for line in asked if line.endswith("-m fastsgemm")]
        return done.stdout + done.stderr, installed, ran

    return run


def test_an_environment_is_made_once(make):
    assert make()[1:] == ([".[cu13,dev]"], ["3.11"])
    assert make() == ("", [], ["3.11"])


@pytest.mark.parametrize(
    ("argument", "extra", "version", "words"),
    [
        ("PYTHON=python3.12", "cu13", "3.12", "made for 3.11 cu13; it is made anew for 3.12 cu13"),
        ("CUDA=12", "cu12", "3.11", "made for 3.11 cu13; it is made anew for 3.11 cu12"),
    ],
)
def test_another_interpreter_or_cuda_makes_it_anew_and_says_so(make, tmp_path, argument, extra, version, words):
    make()
    (tmp_path / ".venv" / "old").touch()
    text, installed, ran = make(argument)
    assert words in text and installed == [f".[{extra},dev]"] and ran == [version]
    assert not (tmp_path / ".venv" / "old").exists()
    assert make() == ("", [], [version])  # it stays as it was asked for
    assert make(argument) == ("", [], [version])


def test_an_interpreter_that_is_named_otherwise_makes_nothing_anew(make):
    make()
    assert make("PYTHON=python3.11", "CUDA=13") == ("", [], ["3.11"])


def test_a_change_of_the_project_installs_again_and_keeps_the_rest(make, tmp_path):
    make("PYTHON=python3.13", "CUDA=12")
    (tmp_path / ".venv" / "torch").touch()
    [stamp] = (tmp_path / ".venv").glob(".ready-*")
    os.utime(stamp, (0, 0))
    text, installed, ran = make()
    assert "anew" not in text and installed == [".[cu12,dev]"] and ran == ["3.13"]
    assert (tmp_path / ".venv" / "torch").exists()


def test_an_environment_that_make_did_not_make_is_not_cleared(make, tmp_path):
    (tmp_path / "mine" / "bin").mkdir(parents=True)
    shutil.copy(tmp_path / "python3.13", tmp_path / "mine" / "bin" / "python")
    text, installed, _ = make("VENV=mine", fails=True)
    assert "mine has another Python than python3, which is 3.11" in text and installed == []
    assert make("VENV=mine", "PYTHON=python3.13")[1:] == ([".[cu13,dev]"], ["3.13"])


def test_offline_it_says_that_it_needs_the_network_once(make, tmp_path):
    (tmp_path / "offline").touch()
    text, _, ran = make(fails=True)
    assert "this needs the network, once" in text and ".venv/pip.log" in text and len(text.splitlines()) <= 4
    assert ran == []
    (tmp_path / "offline").unlink()
    assert make()[1:] == ([".[cu13,dev]"], ["3.11"])
    (tmp_path / "offline").touch()
    assert make() == ("", [], ["3.11"])


def test_with_venv_empty_nothing_is_installed(make, tmp_path):
    assert make("VENV=", "PYTHON=python3.12") == ("", [], ["3.12"])
    assert not (tmp_path / ".venv").exists()
