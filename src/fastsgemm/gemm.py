"""`sgemm`: take the caller's arrays apart, run on their addresses, hand the result back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from fastsgemm import device, host, rungs
from fastsgemm.call import arrays, checks, fp16x3, packing, streams
from fastsgemm.call.arrays import HOST, DeviceArray, View
from fastsgemm.call.launch import run
from fastsgemm.call.split_operand import SplitOperand, array_of
from fastsgemm.config import Config, Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.errors import ArgumentError, ConfigError, ShapeError
from fastsgemm.rungs import Rung

if TYPE_CHECKING:
    import cupy
    import jax
    import torch
    from numpy.typing import NDArray

    from fastsgemm.device import Gpu

    # What comes back is of the kind of C, or of A where there is no C. Of other kinds a type checker knows nothing.
    Array = TypeVar("Array", NDArray[np.float32], torch.Tensor, cupy.ndarray, jax.Array)

_FLOAT32 = {0.0: np.float32(0.0), 1.0: np.float32(1.0)}  # the usual alpha and beta, converted once


@overload
def sgemm(
    A: Array,
    B: Any,
    alpha: float = ...,
    beta: float = ...,
    C: None = ...,
    *,
    rung: str | int | Rung | None = ...,
    config: Config | None = ...,
    precision: str = ...,
    stream: Any = ...,
) -> Array: ...
@overload
def sgemm(
    A: Any,
    B: Any,
    alpha: float,
    beta: float,
    C: Array,
    *,
    rung: str | int | Rung | None = ...,
    config: Config | None = ...,
    precision: str = ...,
    stream: Any = ...,
) -> Array: ...
@overload
def sgemm(
    A: Any,
    B: Any,
    alpha: float = ...,
    beta: float = ...,
    *,
    C: Array,
    rung: str | int | Rung | None = ...,
    config: Config | None = ...,
    precision: str = ...,
    stream: Any = ...,
) -> Array: ...
@overload
def sgemm(
    A: Any,
    B: Any,
    alpha: float = ...,
    beta: float = ...,
    C: Any = ...,
    *,
    rung: str | int | Rung | None = ...,
    config: Config | None = ...,
    precision: str = ...,
    stream: Any = ...,
) -> Any: ...
def sgemm(
    A: Any,
    B: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    C: Any = None,
    *,
    rung: str | int | Rung | None = None,
    config: Any = None,
    precision: str = "ieee",
    stream: Any = None,
    out: None = None,
) -> Any:
    """Compute C <- alpha * A @ B + beta * C in float32, by default with IEEE fused multiply-adds, and never in TF32.

    Parameters
    ----------
    A : array, shape (M, K), float32
        NumPy, CuPy, PyTorch, JAX, or any object with DLPack or the CUDA array interface. With precision "fp16x3" A or B
        may be what `split` made of one.
    B : array, shape (K, N), float32
    alpha, beta : float
        Rounded to float32. With beta = 0, C is never read; with alpha = 0, A and B are never read.
    C : array, shape (M, N), float32, optional
        Updated in place and returned. Without it (beta must be 0) the result is a new array of A's kind on A's
        device. A JAX array is never written: the result is then a new array.
    rung : str or int, optional
        A rung of the ladder, by name or number (see `RUNGS`). Default: the best known for the problem.
    config : Config, optional
        Explicit tile constants for the rung. Default: from the tuning database.
    precision : str
        ``"ieee"``: IEEE fused multiply-adds only, no tensor cores. ``"fp16x3"``: the accuracy of float32, from tensor
        cores where they are quicker; see `Notes`.
    stream : object with ``__cuda_stream__``, optional
        Where to launch. Default: the current stream of the library that C (or else A) belongs to.
    out : None
        Not taken: C is the array that is written.

    Returns
    -------
    array, shape (M, N), float32
        C, or a new array.

    Raises
    ------
    ArgumentError, DTypeError, ScalarError, StreamError
        Also a TypeError: an operand is not a float32 array, alpha or beta is not a real number, the stream does
        not speak the protocol; out= instead of C=.
    ShapeError, OverlapError, DeviceMismatchError, OperandError, ScalarRangeError
        Also a ValueError: shapes that do not fit, C sharing memory with an operand or with itself, operands on
        different devices, an array that cannot be read or written as given, beta != 0 without C.
    UnknownRungError, ConfigError, PrecisionError
        Also a ValueError.
    DeviceError
        Also a RuntimeError: no driver, no NVRTC, a first call inside a graph capture, no room on the device (then
        also a MemoryError; a new C that PyTorch or CuPy has no room for is their own error).

    Notes
    -----
    The same call gives the same bits, with the same config, every time. On rungs 1 to 8, and on rung 9 without
    split-K, sliced-K and partial accumulators, every element of C is one chain of FMAs in ascending k, then the
    epilogue alpha * acc + beta * C: they all give the same bits. Without a rung, K may be shared out among blocks or
    among the threads of a block, or a sum be made of several short chains, which err less: another order of additions,
    as fixed, but rounded elsewhere.

    With precision "fp16x3" each operand is split into pairs of FP16 numbers, whose products tensor cores sum. Every
    element differs from the exact one by at most max(K, 100 + K / 64) u (|A| |B|), u = 2^-24, on sm_90;
    ``docs/precision.md`` derives the bound and has that of other devices. Where an IEEE kernel is quicker, or the
    device is older than sm_80, it is used; `explain` says which.

    Any strides are allowed; an operand without a unit stride is packed first. Device arrays are never synchronised
    with. Host arrays go through the first device and back or, where there is none, through NumPy. With
    ``FASTSGEMM_DEVICE=sim`` they go through a simulated device.

    Examples
    --------
    >>> import numpy as np, fastsgemm
    >>> fastsgemm.sgemm(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32))
    array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    if rung is not None or isinstance(config, Fp16x3Config | Fp16x3MmaConfig):
        rung = rungs.find("fp16x3" if rung is None else rung)
    precision = rungs.precision_of(rung, precision)
    split_a = A if type(A) is SplitOperand else None
    split_b = B if type(B) is SplitOperand else None
    if split_a is not None:
        A = array_of("A", split_a, precision)
    if split_b is not None:
        B = array_of("B", split_b, precision)
    lead = A if C is None else C
    library = arrays.library(lead)
    ordinal = library.device_of(lead)
    alpha32 = _FLOAT32.get(alpha) if type(alpha) is float else None
    if alpha32 is None:
        alpha32 = checks.scalar("alpha", alpha)
    beta32 = _FLOAT32.get(beta) if type(beta) is float else None
    if beta32 is None:
        beta32 = checks.scalar("beta", beta)
    if C is None:
        checks.no_output(beta32)
    if out is not None:
        raise ArgumentError(
            "sgemm has no out=; pass the array to write as C=, with beta=0 (the default) it is not read"
        )
    if config is not None and not isinstance(config, Config):
        raise ConfigError(f"config must be a fastsgemm.Config, got {type(config).__name__}")
    if ordinal == HOST:
        return host.sgemm(A, B, alpha32, beta32, C, rung, config, stream, precision)

    gpu = device.gpus.get(ordinal) or device.open_gpu(ordinal)
    switched = gpu.enter()
    try:
        handle = library.current_stream(ordinal) if stream is None else streams.handle_of(stream)
        of_a, of_b = arrays.library(A), arrays.library(B)
        # One library on its own current stream: nothing to order, nothing to keep.
        at_home = library.has_streams and of_a is library and of_b is library
        if stream is not None:
            at_home = at_home and device.is_capturing(gpu.stream(handle))
        a = of_a.view(A, handle, at_home)
        b = of_b.view(B, handle, at_home)
        result = C
        if C is None or library.immutable:
            result = library.empty(lead, _new_shape(a, b), gpu, handle)
        c = result.view if type(result) is DeviceArray else library.view(result, handle, at_home)
        if C is not None and library.immutable:
            _copy_values(gpu, handle, library.view(C, handle, False), c, beta32)
        kept: list[SplitOperand] = []  # whose memory the stream must not lose
        if precision == "ieee":
            run(gpu, handle, a, b, c, alpha32, beta32, rung, config)
        else:
            splits = (split_a, split_b)
            kept += [one for one in splits if one is not None and one.ready_on(gpu, handle)]
            at_home = at_home and not kept
            fp16x3.run(gpu, handle, a, b, c, alpha32, beta32, config, splits, rung is not None)
        if not at_home:
            gpu.keep_alive(handle, (A, B, C, result, *kept))
        if result is not C:
            return library.finish(result)
        library.written(C)
        return C
    finally:
        if switched:
            gpu.leave()


def _new_shape(a: View, b: View) -> tuple[int, int]:
    try:
        M, N, _ = checks.shapes(a[1][0], b[1][0], None)
    except ShapeError:
        for name, (_, (_, _, _, fault, _)) in (("A", a), ("B", b)):
            if fault is not None:  # says more than the shape of an array that cannot be used
                raise fault(name) from None
        raise
    return M, N


def _copy_values(gpu: Gpu, handle: int, old: View, new: View, beta: np.float32) -> None:
    """Start a new C from the values of one that may not be written."""
    (shape, _, ordinal, fault, _), (new_shape, _, new_ordinal, _, _) = old[1], new[1]
    if fault is not None:
        raise fault("C")
    checks.one_device({"C": f"cuda:{ordinal}", "A and B": f"cuda:{new_ordinal}"})
    checks.c_shape(shape, new_shape)
    if beta != 0.0:
        packing.copy(gpu, handle, old, new)
