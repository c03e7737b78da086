"""The table of docs/usage.md: a call of another library, and the same with fastsgemm, give the same numbers."""

import ctypes
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import fastsgemm
import fastsgemm.blas

PAGE = Path(__file__).resolve().parent.parent / "docs" / "usage.md"
M, N, K = 5, 3, 4
ROW_MAJOR, NO_TRANS, TRANS = 101, 111, 112  # as cblas.h numbers them

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="docs/ is part of a checkout only")


def rows():
    """The library, its call and ours, of each row."""
    section = PAGE.read_text().split("## From another library\n")[1].split("\n## ")[0]
    return re.findall(r"^\| (\w+) \| `(.+)` \| `(.+)` \|$", section, re.MULTILINE)


def operands(batch):
    """A, B, C, D, W, b and v as the page describes them, in NumPy; the integers have exact products."""
    shapes = {"A": (M, K), "B": (K, N), "C": (M, N), "D": (M, N), "W": (N, K), "b": (N,), "v": (K,)}
    draw = np.random.default_rng(7).integers
    return {
        name: draw(-9, 9, ((2,) if batch and name in "ABCD" else ()) + shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def cblas_sgemm(order, trans_a, trans_b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc):
    """The function of that name in the library that NumPy's wheels bring; its integers have 64 bits."""
    for path in (Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas64*"):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "scipy_cblas_sgemm64_"):
            break
    else:
        pytest.skip("NumPy has no OpenBLAS of its own")
    whole, real = ctypes.c_int64, ctypes.c_float
    a, b, c = (ctypes.c_void_p(one.ctypes.data) for one in (A, B, C))
    options = [ctypes.c_int(one) for one in (order, trans_a, trans_b)]
    extents = [whole(one) for one in (m, n, k)]
    library.scipy_cblas_sgemm64_(
        *options, *extents, real(alpha), a, whole(lda), b, whole(ldb), real(beta), c, whole(ldc)
    )
    return C


def of_library(library, batch):
    """The operands as arrays of a library, and the names that its calls use."""
    given = operands(batch)
    if library == "PyTorch":
        torch = pytest.importorskip("torch")
        return {name: torch.from_numpy(one) for name, one in given.items()} | {"torch": torch}
    if library == "JAX":
        jnp = pytest.importorskip("jax.numpy")
        return {name: jnp.asarray(one) for name, one in given.items()} | {"jnp": jnp}
    if library == "CuPy":
        cupy = pytest.importorskip("cupy")
        if not cupy.cuda.is_available():
            pytest.skip("CuPy finds no device")
        return {name: cupy.asarray(one) for name, one in given.items()} | {"cupy": cupy}
    if library == "SciPy":
        pytest.importorskip("scipy.linalg.blas")
        return given | {"scipy": importlib.import_module("scipy")}
    constants = {"CblasRowMajor": ROW_MAJOR, "CblasNoTrans": NO_TRANS, "CblasTrans": TRANS, "M": M, "N": N, "K": K}
    return given | constants | {"np": np, "cblas_sgemm": cblas_sgemm}


def in_numpy(array):
    return array.get() if hasattr(array, "get") else np.asarray(array)  # of CuPy, or of another library


def test_the_table_has_every_library():
    found = [library for library, _, _ in rows()]
    assert {*found} == {"PyTorch", "JAX", "CuPy", "NumPy", "SciPy", "CBLAS"} and len(found) >= 13


@pytest.mark.parametrize(("library", "theirs", "ours"), rows() if PAGE.exists() else [])
def test_both_calls_of_a_row_agree(library, theirs, ours, on_host):
    batch = "bmm" in theirs
    expected = in_numpy(eval(theirs, of_library(library, batch)))
    names = {"sgemm": fastsgemm.sgemm, "fastsgemm": fastsgemm}
    result = in_numpy(eval(ours, of_library(library, batch) | names))
    np.testing.assert_array_equal(result, expected)
