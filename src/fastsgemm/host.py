"""Products of host arrays: on the first device, with NumPy's BLAS, or on a simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
from msgspec.structs import replace

from fastsgemm import device, settings
from fastsgemm.call import arrays, checks
from fastsgemm.call.arrays import HOST, DeviceArray, View
from fastsgemm.call.driver import multiply, multiply_groups
from fastsgemm.errors import NoDriverError
from fastsgemm.geometry import layout
from fastsgemm.geometry.layout import same_elements
from fastsgemm.problem import MAX_EXTENT, DType, Ragged, Sym
from fastsgemm.progress import say, warn
from fastsgemm.request import Request
from fastsgemm.tuning import first_use

_MANY_FMAS = 10**9  # of a simulated product, from which on its time is announced
_warned = False


def sgemm(
    request: Request, A: Any, B: Any, C: Any, alpha: float, beta: float, out: Any = None, backend: str | None = None
) -> Any:
    """Compute C <- alpha * A @ B + beta * C for arrays in host memory; see `fastsgemm.sgemm`.

    The default `backend` is that of `device.host_backend`.
    """
    target = C if out is None else out
    leading = A if target is None else target
    library = arrays.library(leading)
    a, b = read(A, "A"), read(B, "B")
    d = None if target is None else read(target, request.output)
    c = None if C is None else read(C, "C")
    shape = checks.result_shape(
        a.shape, b.shape, None if d is None else d.shape, None if out is None or c is None else c.shape, request.output
    )
    if library.immutable:
        if out is not None and d is not None and _dtype(d):
            raise checks.immutable_out(_dtype(d))
        d = None
    dtype = DType.F32 if d is None else _dtype(d)
    _check_types(request, (a, b, c), dtype)
    # Whether the array read as C, if any, is the one that is written.
    in_place = out is None or c is None or (d is not None and _same(c, d))
    if d is not None:
        checks.output(d.shape, _strides(d), readonly=not d.flags.writeable, name=request.output)
        for name, x in (("A", a), ("B", b), ("C", None if in_place else c)):
            if x is not None:
                checks.apart(name, layout.shares_memory(d, x), request.output)
    if request.symmetric:
        checks.square(a.shape, b.shape)
    backend = _checked_backend(request, backend)
    source = None
    if d is not None and in_place and not (dtype and backend == "host"):
        result = d
    else:  # so that `out` is unchanged if the product fails
        result = (
            np.empty(shape, np.float32) if d is None else np.empty_like(d, d.dtype if backend == "sim" else np.float32)
        )
        if backend == "sim":
            source = c
        elif c is not None and beta != 0.0:
            result[...] = as_float32(c)
    if backend == "cuda":
        _through_device(request, a, b, result, alpha, beta)
    elif backend == "sim":
        _through_simulation(request, a, b, result, alpha, beta, source)
    else:
        _through_blas(a, b, alpha, beta, result, request.symmetric)
    if d is None:
        return library.from_numpy(result, leading)
    if result is not d:
        write(d, result)
    library.written(target)
    return target


def read(x: Any, name: str) -> np.ndarray:
    """Return an operand in host memory as a NumPy view of the same memory, after checking that it can be used."""
    library = arrays.library(x)
    ordinal = library.device_of(x)
    if ordinal != HOST:
        checks.one_device({"an operand": "the host", name: f"cuda:{ordinal}"})
    values = library.to_numpy(x, name)
    error = arrays.host_fault(values)
    if error is not None:
        raise error(name)
    return values


def _dtype(x: np.ndarray) -> DType:
    """Return the type of a valid host array."""
    return arrays.host_dtype(x) or DType.F32


def _check_types(request: Request, operands: Sequence[np.ndarray | None], written: DType) -> None:
    """Refuse the types that `make_plan` refuses, because the host makes no plan."""
    a, b, *source = (None if x is None else _dtype(x) for x in operands)
    dtypes = [a, b, written, *source]
    if any(dtypes):
        checks.types(request, [dtype for dtype in dtypes if dtype is not None])


def as_float32(x: np.ndarray) -> np.ndarray:
    """Return a host array as float32: itself, or converted exactly."""
    dtype = _dtype(x)
    if dtype is DType.BF16:
        return (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return x.astype(np.float32) if dtype else x


def write(target: np.ndarray, values: np.ndarray) -> None:
    """Write float32 values, or those of the target's type, to a host array, rounded once to nearest even."""
    dtype = _dtype(target)
    if values.dtype != np.float32 or not dtype:
        target[...] = values
    elif dtype is DType.F16:
        with np.errstate(all="ignore"):  # overflow gives an infinity, as on a device
            target[...] = values
    else:
        bits = values.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        target.view(np.uint16)[...] = np.where(np.isnan(values), np.uint32(0x7FFF), rounded)


def _strides(x: np.ndarray) -> tuple[int, ...]:
    return tuple(step // x.itemsize for step in x.strides)


def _same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.ctypes.data == y.ctypes.data and x.dtype == y.dtype and same_elements(x, y)


def _checked_backend(request: Request, named: str | None) -> str:
    """Return the named backend or that of the machine; refuse what NumPy cannot do."""
    backend = named or device.host_backend()
    if backend == "host":
        if request.batch_invariant or request.rung is not None or request.config is not None:
            request_text = "batch_invariant=True" if request.batch_invariant else f"rung={request.rung}"
            request_text += "" if request.config is None else f", config={request.config!r}"
            raise NoDriverError(
                f"{request_text} asks for a kernel, which needs an NVIDIA GPU; without one, leave that "
                "out to multiply with NumPy, or set FASTSGEMM_DEVICE=sim to simulate a device"
            )
        if named is None:
            _say_once()
    return backend


def _say_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        if settings.DEVICE.read() != "host":
            warn("fastsgemm found no NVIDIA GPU: host arrays are multiplied by NumPy")


def _through_blas(
    a: np.ndarray, b: np.ndarray, alpha: float, beta: float, c: np.ndarray, symmetric: Sym = Sym.WHOLE
) -> None:
    if symmetric.leaves_one:
        full, lower = c.copy(), np.tri(len(c), dtype=bool)
        _through_blas(a, b, alpha, beta, full, Sym.BOTH)
        np.copyto(c, full, where=lower if symmetric is Sym.LOWER else lower.T)
        return
    product: Any = None
    with np.errstate(all="ignore"):  # NaN and Inf are ordinary values, as on a device
        if alpha != 0.0 and a.shape[-1] > 0:
            product = as_float32(a) @ as_float32(b)  # before C is written, because it may run out of memory
            if symmetric:
                product = np.where(np.tri(product.shape[-1], dtype=bool), product, product.swapaxes(-1, -2))
            if alpha != 1.0:
                product *= alpha
        if beta == 0.0:
            c[...] = 0.0 if product is None else product
            return
        if beta != 1.0:
            c *= beta
        if product is not None:
            c += product


def grouped_mm(
    request: Request, ragged: Ragged, a: np.ndarray, b: np.ndarray, ends: np.ndarray, alpha: float, beta: float,
    written: np.ndarray, source: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Write the products of groups, of checked host arrays.

    beta multiplies the source or, without one, what was there before; see `fastsgemm.grouped_mm`.
    """
    backend = _checked_backend(request, None)
    if backend == "cuda":
        _groups_through_device(request, ragged, a, b, ends, alpha, beta, written, source)
        return
    if backend == "sim":
        from fastsgemm.sim import grouped

        grouped.grouped_mm(a, b, ends, alpha, beta, written, source, request=request)
        return
    a, b = as_float32(a), as_float32(b)
    extent, begin = b.shape[1] if ragged is Ragged.COLUMNS else a.shape[0 if ragged is Ragged.ROWS else 1], 0
    for group, offset in enumerate(ends):
        part = slice(begin, min(max(int(offset), begin), extent))
        begin = part.stop
        places: dict[Ragged, tuple[Any, Any, Any]] = {
            Ragged.ROWS: ((part,), (group,), (part,)),
            Ragged.K: ((slice(None), part), (part,), (group,)),
            Ragged.COLUMNS: ((group,), (slice(None), part), (slice(None), part)),
        }
        of_a, of_b, where = places[ragged]
        if source is not None and beta != 0.0:
            written[where] = source[where]
        _through_blas(a[of_a], b[of_b], alpha, beta, written[where])


def _through_simulation(
    request: Request, a: np.ndarray, b: np.ndarray, c: np.ndarray, alpha: float, beta: float, source: np.ndarray | None
) -> None:
    from fastsgemm.sim import gemm  # imported late: few calls need it

    fmas = c.size * a.shape[-1] if alpha else 0
    if fmas >= _MANY_FMAS:
        say(f"fastsgemm: simulating {fmas:.2g} FMAs takes {gemm.minutes(2 * fmas)}; FASTSGEMM_DEVICE=host uses NumPy")
    gemm.multiply(request, a, b, c, alpha, beta, source)


def _through_device(request: Request, a: np.ndarray, b: np.ndarray, c: np.ndarray, alpha: float, beta: float) -> None:
    gpu = first_use.open_device(0)
    # On a stream of its own, which waits for no other, so that captures of other threads are not affected.
    handle = gpu.copying
    with device.current(gpu), device.relaxed_capture(), ExitStack() as stack:
        views: list[View] = []
        reads_c = bool(beta) or request.symmetric.leaves_one  # elements that are not written are downloaded unchanged
        for x, is_read in ((a, bool(alpha)), (b, bool(alpha)), (c, reads_c)):
            if x is b and _is_gram(a, b):
                views.append(_transposed(views[0]))
                continue
            array, view = _placed(stack, gpu, x, is_read)
            views.append(view)
        multiply(gpu, handle, request, views, alpha, beta)
        _download(array, c)


def _groups_through_device(
    request: Request, ragged: Ragged, a: np.ndarray, b: np.ndarray, ends: np.ndarray, alpha: float, beta: float,
    c: np.ndarray, source: np.ndarray | None,
) -> None:  # fmt: skip
    gpu = first_use.open_device(0)
    handle = gpu.copying  # see `_through_device`
    # As a kernel counts them, which reads the low half of 64 bits.
    offsets = np.clip(ends, 0, MAX_EXTENT).astype(np.int32).view(np.float32)
    reads_c = ragged is not Ragged.K or (bool(beta) and source is None)  # what is in no group is downloaded unchanged
    with device.current(gpu), device.relaxed_capture(), ExitStack() as stack:
        (_, of_ends), (_, of_a), (_, of_b), (array, of_c) = (
            _placed(stack, gpu, x, is_read)
            for x, is_read in ((offsets, True), (a, bool(alpha)), (b, bool(alpha)), (c, reads_c))
        )
        views = [of_a, of_b, of_c]
        if source is not None:
            views.append(_placed(stack, gpu, source, bool(beta))[1])
        multiply_groups(gpu, handle, request, views, of_ends, alpha, beta)
        _download(array, c)


def _placed(stack: ExitStack, gpu: device.Gpu, x: np.ndarray, is_read: bool) -> tuple[DeviceArray, View]:
    """Return a device array of the size of a host array until the stack is closed, and its view of the same shape.

    It has the values of the host array if these are read.
    """
    lines, flipped = _lines(x)
    array = stack.enter_context(closing(DeviceArray(lines.shape, gpu, gpu.copying, _dtype(x))))
    if is_read and lines.size:
        array.upload(lines)
    return array, _flip(array.view) if flipped else array.view


def _lines(x: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return `x`, or its transpose if that is row-major, as a row-major array, and whether it was transposed.

    A transpose has all dimensions in reverse, those of a batch included.
    """
    if x.flags.f_contiguous and not x.flags.c_contiguous:
        return x.T, True
    return np.asarray(x, order="C"), False  # np.ascontiguousarray makes a vector of an array without dimensions


def _is_gram(a: np.ndarray, b: np.ndarray) -> bool:
    same_memory = a.ctypes.data == b.ctypes.data and a.dtype == b.dtype
    return same_memory and layout.is_transpose(a, b)


def _transposed(view: View) -> View:
    pointer, meta = view
    shape, strides = ((*sizes[:-2], sizes[-1], sizes[-2]) for sizes in (meta.shape, meta.strides))
    return pointer, replace(meta, shape=shape, strides=strides)


def _flip(view: View) -> View:
    pointer, meta = view
    return pointer, replace(meta, shape=meta.shape[::-1], strides=meta.strides[::-1])


def _download(array: DeviceArray, c: np.ndarray) -> None:
    if c.size == 0:
        return
    lines, flipped = _lines(c)
    if not np.shares_memory(lines, c):
        lines = np.empty(c.shape, c.dtype)
    array.download(lines)
    if not flipped and lines is not c:
        c[...] = lines
