"""What the page and the example show runs, without a GPU, too."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from subprocesses import environment

pytest.importorskip("jax")

import jax

import fastsgemm.jax

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="docs/ is part of a checkout only")
def test_the_programs_of_the_page():
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "jax.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(programs) == 4
    names = {"f": lambda a, b: jax.numpy.matmul(a, b, precision="highest")}  # the reader's
    try:
        for program in programs:
            exec(program, names)
    finally:
        fastsgemm.jax.disable()


def test_the_example():
    command = [sys.executable, ROOT / "examples" / "jax_in_jit.py"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
