"""``python -m fastsgemm.torch``: a program runs with the switch on."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

from fastsgemm.torch.__main__ import main

PROGRAM = """
import sys, torch
import helper
torch.ones(2, 3) @ torch.ones(3, 4)
print(__name__, sys.argv[1:])
"""


def run(*arguments, folder):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "fastsgemm.torch", "--device", "cpu", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "host")
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "one.py").write_text(PROGRAM)
    (tmp_path / "programs" / "helper.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("program", "place"), [(["programs/one.py"], "."), pytest.param(["-m", "one"], "programs", marks=pytest.mark.slow)]
)
def test_a_script_and_a_module(folder, program, place):
    ran = run("--report", *program, "--precision", "7", folder=folder / place)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "__main__ ['--precision', '7']"
    assert "fastsgemm computed 1 product, 48 FLOP" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "a program is missing"),
        (("nowhere.py",), "there is no file nowhere.py"),
        (("-m", "nowhere"), "there is no module nowhere"),
        (("-m", "nowhere.one"), "there is no module nowhere.one"),
        (("--only", "gemm", "programs/one.py"), "only must name operators of"),
    ],
)
def test_wrong_arguments(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as error:
        main(["--device", "cpu", *arguments])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
