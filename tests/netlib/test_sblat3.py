"""netlib's own test of the level 3 BLAS, SBLAT3, with the simulated device behind SGEMM and SSYRK.

Source: J. Dongarra, J. Du Croz, I. Duff, S. Hammarling, "A set of level 3 basic linear algebra subprograms", ACM TOMS
16 (1990). Debian has the program in its package libblas-test.
"""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fastsgemm import blas

PROGRAM = next(Path("/usr/lib").glob("*/blas/xblat3s"), None)
COMPILER = shutil.which("cc")
ROUTINES = ("SGEMM ", "SSYMM ", "STRMM ", "STRSM ", "SSYRK ", "SSYR2K")
INPUT = """'summary' NAME OF SUMMARY OUTPUT FILE
6 UNIT NUMBER OF SUMMARY FILE
'snapshot' NAME OF SNAPSHOT OUTPUT FILE
-1 UNIT NUMBER OF SNAPSHOT FILE
F LOGICAL FLAG, T TO REWIND SNAPSHOT FILE AFTER EACH RECORD.
F LOGICAL FLAG, T TO STOP ON FAILURES.
T LOGICAL FLAG, T TO TEST ERROR EXITS.
16.0 THRESHOLD VALUE OF TEST RATIO
{count} NUMBER OF VALUES OF N
{sizes}
3 NUMBER OF VALUES OF ALPHA
0.0 1.0 0.7
3 NUMBER OF VALUES OF BETA
0.0 1.0 1.3
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="netlib's test program is not installed: apt install libblas-test"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler for what stands between the two"),
]


@pytest.mark.parametrize(
    ("routine", "sizes", "calls"), [("SGEMM", (0, 1, 3, 9), 5184), ("SSYRK", (0, 1, 2, 3, 5, 9), 1944)]
)
def test_netlib_agrees(routine, sizes, calls, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    library = tmp_path / "blas.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, Path(__file__).parent / "blas.c", "-ldl"], check=True)
    pipes = {name: tmp_path / name.lower() for name in ("FASTSGEMM_CALLS", "FASTSGEMM_RESULTS")}
    for pipe in pipes.values():
        os.mkfifo(pipe)
    given = INPUT.format(count=len(sizes), sizes=" ".join(map(str, sizes)))
    given += "".join(f"{name}{' T' if name.strip() == routine else ' F'} PUT F FOR NO TEST.\n" for name in ROUTINES)
    environment = os.environ | {"LD_PRELOAD": str(library)} | {name: str(pipe) for name, pipe in pipes.items()}
    with subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as program:
        program.stdin.write(given)
        program.stdin.close()
        with pipes["FASTSGEMM_CALLS"].open("rb") as asked, pipes["FASTSGEMM_RESULTS"].open("wb") as answered:
            serve(asked, answered)
    summary = (tmp_path / "summary").read_text()
    assert f"{routine}  PASSED THE TESTS OF ERROR-EXITS" in summary
    assert f"{routine}  PASSED THE COMPUTATIONAL TESTS ({calls:6} CALLS)" in summary


def serve(asked, answered):
    """Compute what the program asks for until it ends."""
    while line := asked.readline():
        routine, *words = line.decode().split()
        C = (_ssyrk if routine == "ssyrk" else _sgemm)(asked, words)
        answered.write(C.tobytes(order="F"))
        answered.flush()


def _sgemm(asked, words):
    trans_a, trans_b = ("NTC".index(word.upper()) for word in words[:2])
    M, N, K, lda, ldb, ldc = map(int, words[2:8])
    A = _read(asked, lda, M if trans_a else K)[: K if trans_a else M]
    B = _read(asked, ldb, K if trans_b else N)[: N if trans_b else K]
    C = _read(asked, ldc, N)
    alpha, beta = map(float, words[8:])
    blas.sgemm(alpha, A, B, beta, C[:M], trans_a, trans_b, overwrite_c=1)
    return C


def _ssyrk(asked, words):
    lower, trans = words[0].upper() == "L", "NTC".index(words[1].upper())
    N, K, lda, ldc = map(int, words[2:6])
    A = _read(asked, lda, N if trans else K)[: K if trans else N]
    C = _read(asked, ldc, N)
    alpha, beta = map(float, words[6:])
    blas.ssyrk(alpha, A, beta, C[:N], trans, lower, overwrite_c=1)
    return C


def _read(asked, ld, columns):
    """Return a column-major matrix whose first rows are used; the others are not to change."""
    return np.frombuffer(bytearray(asked.read(4 * ld * columns)), np.float32).reshape((ld, columns), order="F")
