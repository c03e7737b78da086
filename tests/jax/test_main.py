"""``python -m fastsgemm.jax``: a program runs with the switch on, and is otherwise run as by ``python``."""

import subprocess
import sys

import pytest

pytest.importorskip("jax")

from fastsgemm.jax.jax_command import main

PROGRAM = """\
import sys, jax, jax.numpy as jnp
import fastsgemm.jax
import helper
f = jax.jit(lambda a, b: jnp.dot(a, b, precision="highest"))
with fastsgemm.jax.lowering_for("sm_90"):
    text = f.trace(jnp.ones((2, 3)), jnp.ones((3, 4))).lower(lowering_platforms=("cuda",)).as_text()
print(__name__, sys.argv[1:], text.count("@__gpu$xla.gpu.ptx"))
"""


def run(*arguments, folder):
    command = [sys.executable, "-m", "fastsgemm.jax", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "one.py").write_text(PROGRAM)
    (tmp_path / "programs" / "helper.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("program", "place"), [(["programs/one.py"], "."), pytest.param(["-m", "one"], "programs", marks=pytest.mark.slow)]
)
def test_a_script_and_a_module(folder, program, place):
    ran = run("--report", "--predict", "H100", *program, "--precision", "7", folder=folder / place)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "__main__ ['--precision', '7'] 1"
    assert "1 product of 4.8e-08 GFLOP by fastsgemm" in ran.stderr
    assert "predicted for NVIDIA H100 80GB HBM3" in ran.stderr and "\n  2,4,3     1 " in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "a program is missing"), (("--precision", "fp8", "programs/one.py"), "precision must be")],
)
def test_wrong_arguments(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err
