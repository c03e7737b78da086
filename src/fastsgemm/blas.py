"""SGEMM and SSYRK with the signatures that SciPy gives them, on any arrays that `fastsgemm.sgemm` takes.

Examples
--------
>>> import numpy as np
>>> from fastsgemm import blas
>>> a, b = np.ones((3, 2), np.float32), np.ones((3, 4), np.float32)
>>> blas.sgemm(2.0, a, b, trans_a=1)
array([[6., 6., 6., 6.],
       [6., 6., 6., 6.]], dtype=float32)
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from fastsgemm import arguments
from fastsgemm.errors import ArgumentError, OperandError, ShapeError
from fastsgemm.gemm import multiply_triangle
from fastsgemm.gemm import sgemm as _sgemm
from fastsgemm.problem import Sym

_TRANSPOSITIONS = (0, 1, 2)  # no, transpose, conjugate transpose, which is the same for real numbers


def sgemm(
    alpha: float,
    a: Any,
    b: Any,
    beta: float = 0.0,
    c: Any = None,
    trans_a: int = 0,
    trans_b: int = 0,
    overwrite_c: int = 0,
) -> Any:
    """Return alpha * op(a) @ op(b) + beta * c, as `scipy.linalg.blas.sgemm` does.

    Parameters
    ----------
    alpha : float
    a : array, float32
        (M, K), or (K, M) if `trans_a` is not 0.
    b : array, float32
        (K, N), or (N, K) if `trans_b` is not 0.
    beta : float, optional
    c : array, shape (M, N), float32, optional
        Default: zeros.
    trans_a, trans_b : int
        0: as it is; 1 or 2: transposed.
    overwrite_c : int
        Not 0: the result is written to `c`, which is returned. 0: `c` is left as it is.

    Returns
    -------
    array, shape (M, N), float32
        Of the same kind as `a`, or `c` itself.

    Raises
    ------
    ArgumentError
        `trans_a` or `trans_b` is not 0, 1 or 2, or `overwrite_c` neither true nor false.
    OperandError
        An array cannot be transposed or copied, because it has no ``.T`` or ``.copy()``.
    ShapeError
        An array to be transposed does not have 2 dimensions.
    FastsgemmError
        See `fastsgemm.sgemm`.

    Notes
    -----
    SciPy converts its operands to column-major float32, and returns a column-major array. Here, operands of another
    dtype are refused, any layout is read in place, and a new result is row-major.
    """
    a, b = _operand("a", a, trans_a), _operand("b", b, trans_b)
    if c is None:
        return _sgemm(a, b, alpha)
    return _sgemm(a, b, alpha, beta, c if arguments.switch("overwrite_c", overwrite_c) else _copy(c))


def ssyrk(
    alpha: float,
    a: Any,
    beta: float = 0.0,
    c: Any = None,
    trans: int = 0,
    lower: int = 0,
    overwrite_c: int = 0,
) -> Any:
    """Return one triangle of alpha * op(a) @ op(a).T + beta * c, as `scipy.linalg.blas.ssyrk` does.

    Parameters
    ----------
    alpha : float
    a : array, float32
        (N, K), or (K, N) if `trans` is not 0.
    beta : float, optional
    c : array, shape (N, N), float32, optional
        Default: zeros.
    trans : int
        0: a @ a.T; 1 or 2: a.T @ a.
    lower : int
        Not 0: the lower triangle is computed. 0: the upper one. The diagonal belongs to both. The other elements are
        those of `c`.
    overwrite_c : int
        Not 0: the result is written to `c`, which is returned. 0: `c` is left as it is.

    Returns
    -------
    array, shape (N, N), float32
        Of the same kind as `a`, or `c` itself.

    Raises
    ------
    ArgumentError
        `trans` is not 0, 1 or 2, or `lower` or `overwrite_c` neither true nor false.
    OperandError
        An array cannot be transposed, copied or written.
    ShapeError
        `a` does not have 2 dimensions.
    FastsgemmError
        See `fastsgemm.sgemm`.
    """
    sym = Sym.LOWER if arguments.switch("lower", lower) else Sym.UPPER
    overwrite = arguments.switch("overwrite_c", overwrite_c)
    transpose = _transposed("a", a, "; fastsgemm.sgemm multiplies vectors and batches")
    left, right = (transpose, a) if _asks("trans", trans) else (a, transpose)
    if c is None:
        c, beta = _sgemm(left, right, 0.0), 0.0  # zeros, of the same kind as a
    elif not overwrite:
        c = _copy(c)
    return multiply_triangle(left, right, alpha, beta, c, sym)


def _operand(name: str, x: Any, transposed: int) -> Any:
    return _transposed(name, x, f"; pass it transposed and trans_{name}=0") if _asks(f"trans_{name}", transposed) else x


def _asks(argument: str, value: Any) -> bool:
    """Return whether an argument such as `trans_a` asks for a transposition."""
    if not isinstance(value, Real | np.bool_) or value not in _TRANSPOSITIONS:
        raise ArgumentError(f"{argument} must be 0, 1 or 2, got {value!r}")
    return bool(value)


def _transposed(name: str, x: Any, remedy: str) -> Any:
    try:
        shape, transpose = tuple(x.shape), x.T
    except AttributeError:
        raise OperandError(f"{name} ({type(x).__name__}) has no .T, which is needed{remedy}") from None
    if len(shape) != 2:  # .T reverses the dimensions of a batch, too
        raise ShapeError(f"{name} must have 2 dimensions to be transposed, got {shape}{remedy}")
    return transpose


def _copy(c: Any) -> Any:
    copy = getattr(c, "clone", None) or getattr(c, "copy", None)  # PyTorch's name, and everyone else's
    if copy is None:
        raise OperandError(f"c ({type(c).__name__}) has no .copy(); pass overwrite_c=1")
    return copy()
