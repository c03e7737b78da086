"""`sgemm`: read the caller's arrays, multiply on their device, and return the result as an array of the same kind."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from fastsgemm import device, host
from fastsgemm.call import arrays, checks, streams
from fastsgemm.call.arrays import HOST
from fastsgemm.call.driver import multiply
from fastsgemm.call.split_operand import SIDES, SplitOperand, array_of
from fastsgemm.errors import MissingExtraError, StreamError
from fastsgemm.problem import Sym
from fastsgemm.request import NAMED, PLAIN, Request, of_call, resolve
from fastsgemm.rungs import PRECISIONS, Rung
from fastsgemm.tuning import first_use
from fastsgemm.tuning.first_use import opened

if TYPE_CHECKING:
    from typing import Protocol, TypedDict, Unpack

    from numpy.typing import NDArray

    from fastsgemm.config import Config

    # The result is `out`, or C, or a new array of the kind of A. Only NumPy is imported for this: a library that is not
    # installed would be Any, and an overload with it would match every array. For an array with none of these, a type
    # checker sees Any.
    class _Array(Protocol):
        @property
        def shape(self) -> Any: ...

    Array = TypeVar("Array", bound=_Array)
    New = TypeVar("New", covariant=True)

    class _Transposable(Protocol[New]):
        """An array whose new arrays are of the type of its transpose: that of a `torch.nn.Parameter` is a tensor."""

        @property
        def T(self) -> New: ...

    class _Options(TypedDict, total=False):
        rung: str | int | Rung | None
        config: Config | None
        precision: str | None
        batch_invariant: bool
        symmetric: bool
        stream: Any


_EXACT = (1.0, 0.0)  # values of alpha and beta that need no rounding
_NUMBERS = (float, int, np.float32, np.float64)  # types of alpha and beta other than arrays, which JAX may trace
_IEEE = PRECISIONS[0]  # the same object as what most callers pass


@overload
def sgemm(
    A: Any, B: Any, alpha: float = ..., beta: float = ..., C: Any = ..., *, out: Array, **options: Unpack[_Options]
) -> Array: ...
@overload
def sgemm(
    A: Any, B: Any, alpha: float, beta: float, C: Array, *, out: None = ..., **options: Unpack[_Options]
) -> Array: ...
@overload
def sgemm(
    A: Any, B: Any, alpha: float = ..., beta: float = ..., *, C: Array, out: None = ..., **options: Unpack[_Options]
) -> Array: ...
@overload
def sgemm(
    A: NDArray[np.float16],
    B: Any,
    alpha: float = ...,
    beta: float = ...,
    C: None = ...,
    *,
    out: None = ...,
    **options: Unpack[_Options],
) -> Any: ...
@overload
def sgemm(
    A: _Transposable[New],
    B: Any,
    alpha: float = ...,
    beta: float = ...,
    C: None = ...,
    *,
    out: None = ...,
    **options: Unpack[_Options],
) -> New: ...
@overload
def sgemm(
    A: Any, B: Any, alpha: float = ..., beta: float = ..., C: Any = ..., *, out: Any = ..., **options: Unpack[_Options]
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
    precision: str | None = None,
    batch_invariant: bool = False,
    symmetric: bool = False,
    stream: Any = None,
    out: Any = None,
) -> Any:
    """Compute C <- alpha * A @ B + beta * C in float32, on an NVIDIA GPU; A @ B follows `numpy.matmul`.

    By default products are IEEE float32 fused multiply-adds. TF32 is never used.

    Parameters
    ----------
    A : array, shape (..., M, K) or (K,), float32, bfloat16 or float16
        From NumPy, CuPy, PyTorch or JAX, or any object with DLPack or the CUDA array interface. Any strides are
        allowed. With precision "fp16x3", A or B may be an operand that `split` returned. 16-bit operands need a
        `precision` by name, or `batch_invariant`; see Notes.
    B : array, shape (..., K, N) or (K,), float32, bfloat16 or float16
        Dimensions before the last two are those of a batch and broadcast with A's.
    alpha, beta : float
        Rounded to float32. With beta = 0, C is not read; with alpha = 0, A and B are not read.
    C : array, shape (..., M, N), float32, optional
        Written in place and returned, unless `out` is given; then beta must not be 0. Without C, beta must be 0 and,
        without `out`, the result is a new array of the same kind as A, on the same device. A JAX array is immutable, so
        the result is always new.
    rung : str or int, optional
        A kernel of the ladder, by name or number; see `RUNGS`. Default: the fastest known or predicted one.
    config : Config, optional
        The kernel's constants; without `rung`, of rung 9, 10 or 11. Default: from the tuning database; see `explain`.
    precision : str, optional
        ``"ieee"``, the default for float32 operands: IEEE fused multiply-adds only, no tensor cores. ``"fp16x3"``: the
        accuracy of float32, from tensor cores where they are faster; see Notes.
    batch_invariant : bool
        Each element of the result depends, to the last bit, only on its row of A, its column of B, alpha, beta and its
        old value, not on M, N, layouts or config. With precision "fp16x3" it also depends on the architecture.
        ``docs/batch-invariance.md`` defines both orders of summation. A `rung` must be "pipelined", "skinny_in_order"
        or "fp16x3".
    symmetric : bool
        Declares that A @ B is symmetric, such as a product of polynomials of one symmetric matrix. One triangle is
        computed and stored twice. Not needed if B is A transposed; see Notes.
    stream : object with ``__cuda_stream__``, optional
        The stream to launch on. Default: the current stream of the library of `out`, or else of C, or else of A.
    out : array, shape (..., M, N), float32, bfloat16 or float16, optional
        Written in place of C and returned: out <- alpha * A @ B + beta * C. C may then be any array that broadcasts to
        this shape, such as a row or a column. `out` may be C itself. If it has 16 bits, the float32 result is rounded
        once, to nearest even, C is float32 or of the type of `out`, and a `precision` must be named.

    Returns
    -------
    array, shape (..., M, N), float32 unless `out` has 16 bits
        `out`, or C, or a new array. As in `numpy.matmul` there is no M where A is a vector, and no N where B is.

    Raises
    ------
    DTypeError, ScalarError, StreamError, ArgumentError
        Subclasses of TypeError. An operand is not an array of an allowed type, or has 16 bits where no precision is
        named; alpha or beta is not a real number; `stream` does not have ``__cuda_stream__``; `batch_invariant` or
        `symmetric` is neither true nor false.
    ShapeError, OverlapError, DeviceMismatchError, OperandError, ScalarRangeError
        Subclasses of ValueError. The shapes do not match, or the result is not square with `symmetric`; what is written
        shares memory with A, B or itself, or `out` with a C that is another array; the operands are on different
        devices; an array cannot be read or written as given; beta != 0 without C, or beta = 0 with both C and `out`.
    UnknownRungError, ConfigError, PrecisionError
        Subclasses of ValueError. The rung or precision is unknown; the config is not legal for the rung on this device;
        the precision contradicts the rung or a split operand.
    DeviceError
        A subclass of RuntimeError. There is no driver or no NVRTC; a new JAX array is requested inside a CUDA graph
        capture; the device is out of memory (`DeviceMemoryError`, also a MemoryError). If PyTorch or CuPy cannot
        allocate a new C, their own error is raised.

    Notes
    -----
    **Host arrays** are copied to the first GPU and back; without a GPU NumPy multiplies them. Set
    ``FASTSGEMM_DEVICE=sim`` to use a simulated device.

    **16-bit operands.** Each of A and B may be bfloat16 or float16 if the call names a precision, so that nothing is
    computed in 16 bits by mistake: the result is float32, as if the operands had first been cast to float32. With
    "ieee", rung 10 converts elements exactly as it loads them, and so moves half the bytes; the other rungs read a
    converted copy. With the same config, the bits are those of the cast operands. With "fp16x3", a 16-bit element is
    one FP16 number, exactly, so two of three products are left, or one. On Hopper, two operands of one 16-bit type
    with k contiguous are not split at all.

    **Streams.** Calls on device arrays never synchronise. Calls on host arrays return with the result complete.

    **First calls.** The first call on a problem compiles its kernel or loads it from the cache on disk. The first call
    on a device that the tuning database does not know tunes it, once; ``FASTSGEMM_TUNE=off`` prevents this.

    **Copies.** A matrix that has a unit stride is read in place, whatever its layout. Any other is packed into
    workspace first. With `out`, the kernels that write it read C in place, with any strides. Rungs 1 to 8 cannot: for
    these, one more launch copies C to `out` first, unless beta is 0.

    **Symmetry.** Where B is A transposed in the same memory, as in ``sgemm(A, A.T)``, or `symmetric` says that A B is
    symmetric, rungs 9 and 11 compute one triangle and store each result twice: the product is symmetric to the last
    bit, and has the bits that the same order of summation gives a whole product. It is computed whole where that is
    faster, which gives A A^T the same symmetry; rungs 1 to 8 and 10 always do so. beta * C is added to each element
    separately, so C need not be symmetric. ``docs/symmetric.md`` says what is detected.

    **Batches.** A batch is one launch if at most three of its dimensions cannot be merged. A matrix that the batch
    shares, by broadcasting or a stride of 0, is not repeated. If the batch shares B, and the rows of all A and of all C
    are evenly spaced, the batch is one product of more rows, unless it is declared `symmetric`. Products of precision
    "fp16x3" are computed one after the other where that is faster than an IEEE kernel.

    **Reproducibility.** The same call with the same config gives the same bits every time. Rungs 1 to 8 sum each
    element of C in one chain of FMAs in ascending k, then apply alpha and beta, so they all give the same bits. Rung 9
    does the same unless its config uses split-K, sliced-K or partial accumulators. These, and rung 10, add in another
    order, which is fixed but rounds differently. The default may use them. With ``batch_invariant`` the bits never
    change.

    **Precision.** With "fp16x3", operands are split into pairs of FP16 numbers; tensor cores sum their products. Every
    element differs from the exact one by at most ``max(K, 100 + K / 64) u (|A| |B|)``, u = 2^-24, on sm_90;
    ``docs/fp16x3.md`` derives the bound and states that of other devices. An IEEE kernel is used where it is faster
    and on devices older than sm_80; `explain` says which.

    Examples
    --------
    >>> import numpy as np, fastsgemm
    >>> fastsgemm.sgemm(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32))
    array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    request = PLAIN if precision is None else NAMED  # no call, because PyTorch's compiler traces this
    if (
        rung is not None
        or config is not None
        or (precision is not None and precision is not _IEEE)
        or batch_invariant is not False
        or symmetric is not False
    ):
        request = resolve(rung, config, precision, batch_invariant, symmetric)
    library = arrays.by_type.get(type(A))
    if arrays.traced() if library is None else library.traced():
        from fastsgemm.torch import operator

        return operator.in_trace(request, A, B, alpha, beta, C, stream, out)
    exact = type(alpha) is float and alpha in _EXACT and type(beta) is float and beta in _EXACT
    if not exact and type(alpha) in _NUMBERS and type(beta) in _NUMBERS:
        alpha, beta, exact = checks.scalar("alpha", alpha), checks.scalar("beta", beta), True
    launch = arrays.known.get(type(A))
    if launch is not None and exact and config is None and stream is out is None and (C is not None or not beta):
        result = launch(request, A, B, C, alpha, beta)
        if result is not None:
            return result
    return _multiply(request, A, B, C, alpha, beta, stream, out)


def multiply_triangle(A: Any, B: Any, alpha: float, beta: float, C: Any, sym: Sym) -> Any:
    """Compute one triangle, LOWER or UPPER, of C <- alpha * A @ B + beta * C with a symmetric A @ B; return C.

    The other triangle of C is left as it is. If C is immutable, a new array with C's other triangle is returned.

    Raises
    ------
    FastsgemmError
        See `sgemm`.
    """
    if _is_traced(A, B, C, alpha, beta) or arrays.library(C).immutable:
        full = sgemm(A, B, alpha, beta, C, symmetric=True)
        lower = np.tri(full.shape[-1], dtype=bool)
        return full.__array_namespace__().where(lower if sym is Sym.LOWER else lower.T, full, C)
    alpha, beta = checks.scalar("alpha", alpha), checks.scalar("beta", beta)
    return _multiply(Request(symmetric=sym), A, B, C, alpha, beta, None, None)


def _is_traced(*arguments: Any) -> bool:
    """Return whether JAX traces one of these."""
    core = sys.modules.get("jax.core")
    return core is not None and any(isinstance(x, core.Tracer) for x in arguments)


@cache
def _by_xla() -> Any:
    """Return the module that lets XLA compute products, or None if JAX is too old."""
    try:
        from fastsgemm.jax import primitive
    except MissingExtraError:
        return None
    return primitive


def _multiply(request: Request, A: Any, B: Any, C: Any, alpha: Any, beta: Any, stream: Any, out: Any) -> Any:
    """Slow path, without a cached plan: read the arrays with all checks. Floats are already rounded to float32."""
    if _is_traced(A, B, C, out, alpha, beta):
        if stream is not None:
            raise StreamError("stream= has no meaning in code that JAX traces: XLA chooses the stream")
        from fastsgemm.jax import primitive

        return primitive.sgemm(request, A, B, alpha, beta, C, out)
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = checks.scalar("alpha", alpha), checks.scalar("beta", beta)
    if C is None:
        checks.no_output(beta)
    elif out is not None and out is not C:
        checks.unread_source(beta)
    split: dict[str, SplitOperand] = {}
    if type(A) is SplitOperand:
        split["A"], A = A, array_of("A", A, request.precision)
    if type(B) is SplitOperand:
        split["B"], B = B, array_of("B", B, request.precision)
    if split or out is not None:
        request = of_call(request, ("A" in split, "B" in split), "C" if out is None else "out")
    target = C if out is None else out
    leading = A if target is None else target
    library = arrays.library(leading)
    if not split and stream is None and out is None and request.has_operator and library.needs_dispatcher(A, B, C):
        from fastsgemm.torch import operator

        return operator.sgemm(request, A, B, alpha, beta, C)
    ordinal = library.device_of(leading)
    if ordinal == HOST:
        checks.no_stream(stream)
        return host.sgemm(request, A, B, C, alpha, beta, out)
    if library.has_runtime and stream is None and not split:
        primitive = _by_xla()
        if primitive is not None and all(x is None or arrays.library(x) is library for x in (A, B, C, out)):
            return primitive.eager(request, A, B, alpha, beta, C, out)

    gpu = opened.get(ordinal)
    if gpu is None:
        gpu = first_use.open_for(library, ordinal, stream)
    switched = gpu.enter()
    try:
        handle = library.current_stream(ordinal) if stream is None else streams.handle_of(stream)
        if handle not in gpu.streams:
            gpu.adopt(handle)
        in_order = stream is None or device.is_capturing(handle)
        operands, result, in_use = arrays.read(library, A, B, C, out, gpu, handle, in_order)
        addresses = [0, 0]  # of A and B where they were split before
        if split:
            for name, operand in split.items():
                side = SIDES.index(name)
                operand.require(name, operands[side][1].shape)
                operand.make_ready(handle)
                in_use.append(operand)
                addresses[side] = operand.address
        learns = library.has_launcher and not in_use and out is None and request.config is None
        if learns:
            from fastsgemm.torch import cpp_launcher

            epoch = cpp_launcher.epoch()
        loaded = multiply(gpu, handle, request, operands, alpha, beta, addresses)
        if learns:
            cpp_launcher.learn(request, A, B, C, loaded, operands[2][1].shape, epoch)
        if in_use:
            gpu.keep_alive(handle, in_use)
        if result is not target:
            return library.finish(result)
        library.written(target)
        return target
    finally:
        if switched:
            gpu.leave()
