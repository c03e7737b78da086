"""What type checkers know of `sgemm`: the result is of the kind of out, of C or of A, the first that there is.

Whatever array libraries are installed: one that is not is Any, and must not make the others so.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastsgemm import resources

SOURCES = resources.__file__.rpartition("/fastsgemm/")[0]

# What the kinds of arrays look like to a type checker, so that the libraries need not be installed or read.
SHAPE = "    @property\n    def shape(self) -> object: ...\n"
TRANSPOSE = "    @property\n    def T(self) -> {}: ...\n"
KINDS = {
    "numpy": "from typing import Generic, Self, TypeVar\nD = TypeVar('D')\n"
    f"class float16: ...\nclass float32: ...\nclass ndarray(Generic[D]):\n{SHAPE}{TRANSPOSE.format('Self')}",
    "numpy/typing": "from typing import TypeAlias, TypeVar\nfrom numpy import ndarray\nS = TypeVar('S')\n"
    "NDArray: TypeAlias = ndarray[S]",
    "torch": f"class Tensor:\n{SHAPE}    T: Tensor\nclass Parameter(Tensor): ...",
    "cupy": f"class ndarray:\n{SHAPE}{TRANSPOSE.format('ndarray')}",
    "jax": f"class Array:\n{SHAPE}{TRANSPOSE.format('Array')}",
}
PROGRAM = """
import cupy, jax, numpy as np, torch
from numpy.typing import NDArray
from fastsgemm import sgemm

def use(
    n: NDArray[np.float32], h: NDArray[np.float16], t: torch.Tensor, p: torch.Parameter, c: cupy.ndarray, j: jax.Array,
    o: object,
) -> None:
    reveal_type(sgemm(n, n))  # numpy
    reveal_type(sgemm(t, t))  # torch
    reveal_type(sgemm(p, t))  # torch
    reveal_type(sgemm(c, c, 2.0))  # cupy
    reveal_type(sgemm(j, j, alpha=2.0))  # jax
    reveal_type(sgemm(n, n, 1.0, 1.0, t))  # torch
    reveal_type(sgemm(o, t, C=c))  # cupy
    reveal_type(sgemm(t, t, C=None, out=None))  # torch
    reveal_type(sgemm(h, h, precision="ieee"))  # unknown, because it is float32
    reveal_type(sgemm(o, o))  # unknown
    reveal_type(sgemm(o, o, batch_invariant=True, out=c))  # cupy
    sgemm(n, n, "2")  # error
    sgemm(n, n, precison="ieee")  # error
"""
TYPES = {"numpy": r"ndarray\[.*float32\]", "torch": "Tensor", "cupy": "ndarray", "jax": "Array"}
INSTALLED = {
    "NumPy alone": ["numpy"],
    "PyTorch": ["numpy", "torch"],
    "JAX": ["numpy", "jax"],
    "CuPy": ["numpy", "cupy"],
    "PyTorch and JAX": ["numpy", "torch", "jax"],
    "all": ["numpy", "torch", "jax", "cupy"],
}


def mypy(folder: Path) -> tuple[dict[int, str], set[int]]:
    """Return the types that mypy reveals by line, and the lines with errors."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    (folder / "mypy.ini").write_text(
        "[mypy]\nfollow_imports = silent\n[mypy-fastsgemm.*]\nfollow_imports = skip\n"
        "[mypy-fastsgemm]\nfollow_imports = silent\n[mypy-fastsgemm.gemm]\nfollow_imports = silent\n"
        + "".join(f"[mypy-{name}.*]\nignore_missing_imports = True\n" for name in TYPES)
    )
    # An empty site folder, so that what is installed beside mypy is not seen.
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-site-packages", "--no-color-output"]
    env = {"MYPYPATH": f"{folder}:{SOURCES}", "PATH": ""}
    done = subprocess.run([*command, "program.py"], cwd=folder, env=env, capture_output=True, text=True)
    lines = re.findall(r"^program\.py:(\d+): (error|note): (.*)", done.stdout, re.MULTILINE)
    revealed = {int(at): text for at, _, text in lines if text.startswith("Revealed type is ")}
    assert revealed, done.stdout + done.stderr
    return revealed, {int(at) for at, kind, _ in lines if kind == "error"}


def pyright(folder: Path) -> tuple[dict[int, str], set[int]]:
    """Return the same of pyright."""
    program = shutil.which("pyright", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        pytest.skip("pyright is not installed")
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"include": ["program.py"], "extraPaths": [str(folder), SOURCES], "reportMissingImports": False})
    )
    (folder / "python").symlink_to(sys.base_prefix + "/bin/python3")  # without the packages of an environment
    command = [program, "--project", str(folder), "--pythonpath", str(folder / "python"), "--outputjson"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    at = {id(each): each["range"]["start"]["line"] + 1 for each in found}
    revealed = {at[id(each)]: each["message"] for each in found if each["severity"] == "information"}
    return revealed, {at[id(each)] for each in found if each["severity"] == "error"}


@pytest.mark.parametrize("checker", [mypy, pyright])
@pytest.mark.parametrize("installed", INSTALLED.values(), ids=INSTALLED)
def test_the_result_is_of_the_kind_of_what_was_given(tmp_path, checker, installed):
    for name, text in KINDS.items():
        if name.partition("/")[0] in installed:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.pyi").write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM)
    revealed, errors = checker(tmp_path)
    lines = dict(enumerate(PROGRAM.splitlines(), start=1))
    expected = {at: line.rpartition("# ")[2].partition(",")[0] for at, line in lines.items() if "reveal_type" in line}
    assert revealed.keys() == expected.keys()
    for at, kind in expected.items():
        if kind in installed:
            assert re.search(rf'is ".*{TYPES[kind]}"', revealed[at]), (lines[at], revealed[at])
        else:  # nothing is claimed
            assert re.search('is "(Any|Unknown)"', revealed[at]), (lines[at], revealed[at])
    assert errors == {at for at, line in lines.items() if line.endswith("# error")}
