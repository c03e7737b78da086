"""What a type checker knows of `sgemm`: the result is of the kind of out, of C or of A, the first that there is."""

import subprocess
import sys

import pytest

from fastsgemm import resources

# What the kinds of arrays look like to a type checker, so that the libraries need not be installed or read.
_KINDS = {
    "numpy": "from typing import Generic, TypeVar\nT = TypeVar('T')\n"
    "class float32: ...\nclass ndarray(Generic[T]): ...",
    "numpy/typing": "from typing import TypeAlias, TypeVar\nfrom numpy import ndarray\nT = TypeVar('T')\n"
    "NDArray: TypeAlias = ndarray[T]",
    "torch": "class Tensor: ...\nclass Parameter(Tensor): ...",
    "cupy": "class ndarray: ...",
    "jax": "class Array: ...",
}
_PROGRAM = """
import cupy, jax, numpy as np, torch
from numpy.typing import NDArray
from fastsgemm import sgemm

def use(n: NDArray[np.float32], t: torch.Tensor, p: torch.Parameter, c: cupy.ndarray, j: jax.Array, o: object) -> None:
    reveal_type(sgemm(n, n))
    reveal_type(sgemm(t, t))
    reveal_type(sgemm(p, t))
    reveal_type(sgemm(c, c, 2.0))
    reveal_type(sgemm(j, j, alpha=2.0))
    reveal_type(sgemm(n, n, 1.0, 1.0, t))
    reveal_type(sgemm(o, t, C=c))
    reveal_type(sgemm(o, o))
    reveal_type(sgemm(o, o, batch_invariant=True, out=c))
    sgemm(t, t, "2")
    sgemm(t, t, precison="ieee")
"""
_REVEALED = [
    "ndarray",
    "torch.Tensor",
    "torch.Tensor",
    "cupy.ndarray",
    "jax.Array",
    "torch.Tensor",
    "cupy.ndarray",
    "Any",
    "cupy.ndarray",
]


def test_the_result_is_of_the_kind_of_what_was_given(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    for name, text in _KINDS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.pyi").write_text(text)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nfollow_imports = silent\n[mypy-fastsgemm.*]\nfollow_imports = skip\n"
        "[mypy-fastsgemm]\nfollow_imports = silent\n[mypy-fastsgemm.gemm]\nfollow_imports = silent\n"
    )
    (tmp_path / "program.py").write_text(_PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-color-output", "program.py"],
        cwd=tmp_path,
        env={"MYPYPATH": f"{tmp_path}:{resources.__file__.rpartition('/fastsgemm/')[0]}", "PATH": ""},
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("program.py")]
    revealed = [line.partition("Revealed type is ")[2] for line in lines if "Revealed" in line]
    assert len(revealed) == len(_REVEALED), done.stdout
    assert all(wanted in found for wanted, found in zip(_REVEALED, revealed, strict=True)), revealed
    errors = {line.split(":")[1] for line in lines if " error: " in line}
    assert errors == {"16", "17"}, done.stdout  # a text for alpha, a keyword that does not exist
