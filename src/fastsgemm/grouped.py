"""`grouped_mm`: products of groups of rows, columns or k, whose ends lie in device memory, by one launch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fastsgemm import device, host
from fastsgemm.call import arrays, checks, streams
from fastsgemm.call.arrays import HOST
from fastsgemm.call.arrays.library import offsets_meta
from fastsgemm.call.driver import multiply_groups
from fastsgemm.call.grouped import check_offsets, check_types, result_shape
from fastsgemm.errors import ArgumentError, OperandError, ShapeError
from fastsgemm.geometry import layout
from fastsgemm.geometry.layout import Meta
from fastsgemm.heuristics.choice import check_grouped
from fastsgemm.problem import DType
from fastsgemm.request import Request, of_call, resolve
from fastsgemm.tuning import first_use
from fastsgemm.tuning.first_use import opened


def grouped_mm(
    A: Any,
    B: Any,
    offsets: Any = None,
    alpha: float = 1.0,
    C: Any = None,
    beta: float = 0.0,
    *,
    precision: str | None = None,
    batch_invariant: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Compute C <- alpha * A @ B + beta * C for each group of rows, columns or k, in float32, by one launch.

    Group g is ``offsets[g - 1]:offsets[g]``, the first one begins at 0. Of what, the dimensions of A and B say:

    ========== ========== ========== ======================================== ====================
    A          B          result     group g                                  as in a layer of experts
    ========== ========== ========== ======================================== ====================
    (T, K)     (G, K, N)  (T, N)     rows: ``A[begin:end] @ B[g]``            forward
    (M, T)     (T, N)     (G, M, N)  k: ``A[:, begin:end] @ B[begin:end]``    gradient of the weights
    (G, M, K)  (K, T)     (M, T)     columns: ``A[g] @ B[:, begin:end]``      forward, transposed
    (G, M, K)  (G, K, N)  (G, M, N)  all of one size, without offsets         a batch, as in `sgemm`
    ========== ========== ========== ======================================== ====================

    By default products are IEEE float32 fused multiply-adds. TF32 is never used.

    Parameters
    ----------
    A, B : array, float32, bfloat16 or float16
        As `sgemm` takes them, but not under JAX's tracing. A float32 matrix that has a unit stride is read in place.
        16-bit operands need a `precision` by name, or `batch_invariant`; with "ieee", float32 copies are multiplied.
    offsets : array, shape (G,), int32 or int64, optional
        Where each group ends, ascending, at most T. On the device of A; a device's offsets are never read by the host.
    alpha, beta : float
        Rounded to float32. With beta = 0, C is not read; with alpha = 0, A and B are not read.
    C : array, of the shape of the result, float32, optional
        Written in place and returned, unless `out` is given; then beta must not be 0. Without C, beta must be 0.
    precision : str, optional
        ``"ieee"``, the default for float32 operands, or ``"fp16x3"``, as in `sgemm`: tensor cores compute groups of
        rows of a row-major result, or of columns of a column-major one, where they are faster.
    batch_invariant : bool
        Each element of a group's result has the bits that ``sgemm(..., batch_invariant=True)`` gives it. Precision
        "ieee" only.
    out : array, of the shape of the result, float32, optional
        Written in place of C and returned.
    stream : object with ``__cuda_stream__``, optional
        The stream to launch on. Default: the current stream of the library of `out`, or else of C, or else of A.

    Returns
    -------
    array, float32
        `out`, or C, or a new array of the kind of A.

    Raises
    ------
    DTypeError, ScalarError, StreamError, ArgumentError
        Subclasses of TypeError. An operand is not an array of an allowed type, or has 16 bits where no precision is
        named; `offsets` are not int32 or int64, or are missing; alpha or beta is not a real number; `stream` does not
        have ``__cuda_stream__``; `batch_invariant` is neither true nor false.
    ShapeError, OverlapError, DeviceMismatchError, OperandError, ScalarRangeError, PrecisionError
        Subclasses of ValueError. The shapes do not match; what is written shares memory with another operand or
        itself; the operands are on different devices; an array cannot be read or written as given; beta != 0 without C,
        or beta = 0 with both C and `out`; the precision is unknown, or "fp16x3" with `batch_invariant`.
    DeviceError
        A subclass of RuntimeError. See `sgemm`.

    Notes
    -----
    **Offsets are not checked**, because the host does not know them. An offset below the one before counts as that
    one, one below 0 as 0, and one past T as T, so no offsets let a kernel read or write outside the operands. Of int64
    offsets on a device the low 32 bits are read.

    **Rows or columns past the last offset** belong to no group. They are left as they are in C or `out`, and undefined
    in a new result. A group without steps of k has the result beta * C: zeros where beta is 0.

    **Choice of the kernel.** It is rung 9 with the config for groups of the mean size T / G, without split-K, or rung
    11. So results do not depend on how the groups divide T, except that with ragged k each group sums its own steps. A
    CUDA graph can be replayed with other offsets. With `batch_invariant` results do not depend on T and G either.

    **Host arrays** are copied to the first GPU and back, as by `sgemm`; without a GPU NumPy multiplies them, group by
    group. Set ``FASTSGEMM_DEVICE=sim`` to use a simulated device.

    **Gradients** of PyTorch's tensors have every order, and are products of groups, too: of rows, zero past the last
    offset, and of k. Tensors that require grad, and code that ``torch.compile`` traces, become
    ``torch.ops.fastsgemm.grouped_mm``, whose new results are zero past the last offset; they take no `stream` or `out`.

    Examples
    --------
    >>> import numpy as np, fastsgemm
    >>> rows, experts = np.ones((3, 2), np.float32), np.ones((2, 2, 1), np.float32)
    >>> fastsgemm.grouped_mm(rows, experts, np.array([1, 3], np.int32))
    array([[2.],
           [2.],
           [2.]], dtype=float32)
    """
    if offsets is None:
        return _of_one_size(A, B, alpha, C, beta, precision, batch_invariant, out, stream)
    known = arrays.by_type.get(type(A))
    if arrays.traced() if known is None else known.traced():
        from fastsgemm.torch import grouped_operator

        return grouped_operator.in_trace(A, B, offsets, alpha, beta, C, precision, batch_invariant, stream, out)
    request = of_call(resolve(None, None, precision, batch_invariant), output="C" if out is None else "out")
    check_grouped(request)
    alpha, beta = checks.scalar("alpha", alpha), checks.scalar("beta", beta)
    if C is None:
        checks.no_output(beta)
    elif out is not None and out is not C:
        checks.unread_source(beta)
    target = C if out is None else out
    leading = A if target is None else target
    library = arrays.library(leading)
    _refuse_tracing(A, B, C, out, offsets)
    if stream is out is None and library.needs_dispatcher(A, B, C):
        from fastsgemm.torch import grouped_operator

        return grouped_operator.grouped_mm(A, B, offsets, alpha, beta, C, precision, request.batch_invariant)
    ordinal = library.device_of(leading)
    if ordinal == HOST:
        checks.no_stream(stream)
        return _on_host(request, A, B, offsets, alpha, C, beta, out)
    return _on_device(request, library, ordinal, A, B, offsets, alpha, C, beta, out, stream)


def _of_one_size(
    A: Any, B: Any, alpha: float, C: Any, beta: float, precision: str | None, batch_invariant: bool, out: Any,
    stream: Any,
) -> Any:  # fmt: skip
    """Compute a batch, whose products need no offsets."""
    from fastsgemm.gemm import sgemm

    dimensions = [len(getattr(x, "shape", ())) for x in (A, B)]
    if dimensions != [3, 3]:
        raise ArgumentError(
            f"offsets= is missing: only products of an A and a B with 3 dimensions each need none, got {dimensions[0]} "
            f"and {dimensions[1]}"
        )
    if A.shape[0] != B.shape[0]:
        raise ShapeError(f"A and B must have as many matrices, got {A.shape[0]} and {B.shape[0]}")
    return sgemm(
        A, B, alpha, beta, C, precision=precision, batch_invariant=batch_invariant, out=out, stream=stream
    )  # fmt: skip


def _refuse_tracing(*operands: Any) -> None:
    """Refuse operands of a program that JAX traces."""
    core = sys.modules.get("jax.core")
    if core is not None and any(isinstance(x, core.Tracer) for x in operands):
        raise OperandError(
            "grouped_mm cannot be used in code that JAX traces; fastsgemm.jax.enable replaces jax.lax.ragged_dot there"
        )


def _on_device(
    request: Request, library: arrays.Library, ordinal: int, A: Any, B: Any, offsets: Any, alpha: float, C: Any,
    beta: float, out: Any, stream: Any,
) -> Any:  # fmt: skip
    """Compute it on the device of the array that is written, or of A."""
    target = C if out is None else out
    gpu = opened.get(ordinal)
    if gpu is None:
        gpu = first_use.open_for(library, ordinal, stream)
    switched = gpu.enter()
    try:
        handle = library.current_stream(ordinal) if stream is None else streams.handle_of(stream)
        if handle not in gpu.streams:
            gpu.adopt(handle)
        in_order = stream is None or device.is_capturing(handle)
        of_offsets = arrays.library(offsets)
        if of_offsets.device_of(offsets) != ordinal:
            checks.one_device({"the operands": f"cuda:{ordinal}", "offsets": _place(of_offsets.device_of(offsets))})
        at_home = in_order and of_offsets is library and library.has_streams
        kept: list[Any] = []
        place, ends = of_offsets.offsets_view(offsets, handle, at_home, kept)
        if ends.fault is not None:
            raise ends.fault("offsets")
        check_offsets(ends.shape)

        def new_shape(a: Meta, b: Meta) -> tuple[int, ...]:
            return result_shape(a.shape, b.shape, ends.shape[0])[1]

        operands, result, in_use = arrays.read(library, A, B, C, out, gpu, handle, in_order, new_shape)
        if not at_home:
            in_use += [*kept, offsets]
        multiply_groups(gpu, handle, request, operands, (place, ends), alpha, beta)
        if in_use:
            gpu.keep_alive(handle, in_use)
        if result is not target:
            return library.finish(result)
        library.written(target)
        return target
    finally:
        if switched:
            gpu.leave()


def _place(ordinal: int) -> str:
    return "the host" if ordinal == HOST else f"cuda:{ordinal}"


def _on_host(request: Request, A: Any, B: Any, offsets: Any, alpha: float, C: Any, beta: float, out: Any) -> Any:
    """Compute it for arrays in host memory."""
    output, target = request.output, C if out is None else out
    library = arrays.library(A if target is None else target)
    a, b = host.read(A, "A"), host.read(B, "B")
    c = None if C is None else host.read(C, "C")
    d = None if target is None else host.read(target, output)
    dtypes = [DType.F32 if x is None else arrays.host_dtype(x) for x in (a, b, d, c)]
    check_types(request, dtypes)  # type: ignore[arg-type]  # read has refused others
    ends = _host_offsets(offsets)
    ragged, shape = result_shape(a.shape, b.shape, len(ends))
    for name, x in ((output, d), ("C", c)):
        if x is not None:
            checks.exact_shape(name, x.shape, shape)
    if d is None or library.immutable:
        result, in_place = np.zeros(shape, np.float32), False
        if d is not None:
            result[...] = d
    else:
        strides = tuple(step // d.itemsize for step in d.strides)
        checks.output(d.shape, strides, readonly=not d.flags.writeable, name=output)
        for name, x in (("A", a), ("B", b), ("C", None if _same(c, d) else c), ("offsets", ends)):
            if x is not None:
                checks.apart(name, layout.shares_memory(d, x), output)
        result, in_place = d, True
    source = None if c is None or _same(c, d) else c
    host.grouped_mm(request, ragged, a, b, ends, alpha, beta, result, source)
    if not in_place:
        return library.from_numpy(result, A if target is None else target)
    library.written(target)
    return target


def _host_offsets(offsets: Any) -> np.ndarray:
    """Return offsets in host memory, after checking their type and shape."""
    library = arrays.library(offsets)
    if library.device_of(offsets) != HOST:
        checks.one_device({"the operands": "the host", "offsets": _place(library.device_of(offsets))})
    ends = offsets if isinstance(offsets, np.ndarray) else np.from_dlpack(offsets)
    meta = offsets_meta(ends.dtype, ends.shape, ends.strides, HOST)
    if meta.fault is not None:
        raise meta.fault("offsets")
    check_offsets(ends.shape)
    return ends


def _same(x: np.ndarray | None, y: np.ndarray | None) -> bool:
    if x is None or y is None:
        return x is y
    return x.ctypes.data == y.ctypes.data and layout.same_elements(x, y)
