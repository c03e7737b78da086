"""Operands that are split once into pairs of FP16 numbers, which rung 11 multiplies in many calls.

What the arrays hold is described in ``cuda_src/device/split_format.cuh``.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from fastsgemm import arguments, device
from fastsgemm.call import arrays, packing, streams, workspace
from fastsgemm.call.arrays import HOST
from fastsgemm.call.driver import LoadedPlan
from fastsgemm.call.plan import Draft
from fastsgemm.call.splitting import Unsplit, add_split, maxima_bytes, pairs_at
from fastsgemm.device import LEGACY_STREAM, PER_THREAD_STREAM
from fastsgemm.errors import (
    ArgumentError,
    CaptureError,
    DeviceMismatchError,
    OperandError,
    PrecisionError,
    ShapeError,
)
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry.fp16x3 import SplitArrays
from fastsgemm.geometry.layout import Pair
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.heuristics.fp16x3 import require_tensor_cores
from fastsgemm.problem import MAX_EXTENT

if TYPE_CHECKING:
    from fastsgemm.device import Gpu

SIDES = ("A", "B")


class SplitOperand:
    """An operand of `sgemm` that has been split into pairs of FP16 numbers; `split` makes one.

    It takes the place of `array` in `sgemm(..., precision="fp16x3")`, on the side that it was split for. The elements
    that FP16 pairs cannot express are read from `array` at every call, so `array` is kept alive, and **it must not be
    changed** while the split operand is in use: the result would mix old and new values.

    Attributes
    ----------
    array : array
        What was split.
    side : str
        ``"A"`` or ``"B"``.
    shape : (int, int)
        Of `array`.
    device : int
        CUDA's number of the device.
    nbytes : int
        Device memory of the pairs and what belongs to them; that of `array` comes on top.
    address : int
        Where that memory begins.
    """

    __slots__ = (
        "__weakref__",
        "_done",
        "_event",
        "_gpu",
        "_handle",
        "address",
        "array",
        "nbytes",
        "shape",
        "side",
    )

    def __init__(
        self, array: Any, side: str, shape: Pair, gpu: Gpu, handle: int, address: int, parts: SplitArrays
    ) -> None:
        self.array, self.side, self.shape, self.nbytes = array, side, shape, parts.end
        self._gpu, self._handle, self.address = gpu, handle, address
        self._event: Any = None
        self._done = False
        weakref.finalize(self, _release, gpu, handle, address).atexit = False

    @property
    def device(self) -> int:
        """CUDA's number of the device."""
        return self._gpu.ordinal

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<SplitOperand {self.side}: {rows} x {columns} on cuda:{self.device}, {self.nbytes} bytes>"

    def require(self, name: str, shape: Any) -> None:
        """Raise `OperandError` unless the array still has the shape that was split; `name` is that of the operand."""
        if tuple(shape) != self.shape:
            raise OperandError(
                f"{name}.array has become {tuple(shape)} since {name} was split: {self!r}; split it again"
            )

    def ready_on(self, gpu: Gpu, handle: int) -> bool:
        """Make the stream wait until the splitting is done; return whether its memory must be kept for the stream.

        On the stream that it was split on, both splitting and freeing are in order. The default streams of all threads
        have the same handle, so these are taken to be different.
        """
        if handle == self._handle != PER_THREAD_STREAM:
            return False
        if not self._done:
            with device.relaxed_capture():  # else this would end any capture that there is
                if device.is_capturing(handle):  # a graph must not wait for an event from outside it, so the host does
                    self._event.sync()
                    self._done = True
                else:
                    self._done = self._event.is_done
            if not self._done:
                gpu.stream(handle).wait(self._event)
        return True


def _release(gpu: Gpu, handle: int, address: int) -> None:
    """Free the memory in the order of its stream, or of the legacy default stream where that stream is gone.

    Any thread may drop the last reference. A default stream of each thread is of another one then, and the legacy
    stream, which waits for all of these, is that of the device that is current.
    """
    with device.current(gpu):
        answer = gpu.free(address, LEGACY_STREAM if handle in (0, PER_THREAD_STREAM) else handle)
        if int(answer[0]) != 0:
            gpu.free(address, LEGACY_STREAM)


def split(X: Any, side: str = "B", *, stream: Any = None) -> SplitOperand:
    """Split an operand once that is multiplied many times, such as a weight.

    ``sgemm(A, split(B), precision="fp16x3")`` gives the bits of ``sgemm(A, B, precision="fp16x3")`` where both use rung
    11, without the time for splitting B: with few rows in A that is most of it.

    Parameters
    ----------
    X : array, shape (M, K) or (K, N), float32, bfloat16 or float16
        On a device: PyTorch, CuPy, JAX, or any object with DLPack or the CUDA array interface, with any strides.
        It is kept alive and **must not be changed** while the result is in use; see `SplitOperand`.
    side : str
        ``"A"`` or ``"B"``: on which side of the product it will stand.
    stream : object with ``__cuda_stream__``, optional
        Where to split. Default: the current stream of the library that X belongs to. Calls of `sgemm` on other streams
        wait for it.

    Returns
    -------
    SplitOperand
        As large as X again, on the same device, float32 or of 16 bits.

    Raises
    ------
    ArgumentError
        `side` is neither. Also a TypeError.
    DeviceMismatchError
        X is in host memory. Also a ValueError.
    DTypeError, ShapeError, OperandError, StreamError
        As `sgemm`.
    DeviceError
        The device is older than sm_80; no room on it (then also a MemoryError); the stream is being captured into a
        graph, whose memory does not outlive a replay.

    Examples
    --------
    >>> weight = fastsgemm.split(W)  # doctest: +SKIP
    >>> y = fastsgemm.sgemm(x, weight, precision="fp16x3")  # doctest: +SKIP
    """
    if not arguments.is_one_of(side, SIDES):
        raise ArgumentError(f"side must be 'A' or 'B', got {side!r}")
    if isinstance(X, SplitOperand):
        raise ArgumentError(f"{X!r} is split already; pass its array to split it for another side")
    library = arrays.library(X)
    ordinal = library.device_of(X)
    if ordinal == HOST:
        raise DeviceMismatchError(
            "split takes an array on a device, this one is in host memory, which sgemm splits itself"
        )
    gpu = device.open_gpu(ordinal)
    with device.current(gpu):
        require_tensor_cores(gpu)
        handle = library.current_stream(ordinal) if stream is None else streams.handle_of(stream)
        address, meta = library.view(X, handle, stream is None and library.has_streams)
        if meta.fault is not None:
            raise meta.fault("X")
        _check_shape(meta.shape)
        if device.is_capturing(handle):
            raise CaptureError(
                "split inside a CUDA graph capture, whose memory does not outlive a replay; split before it"
            )
        matrix = Matrix(Address(Base.A), tuple(meta.shape), tuple(meta.strides), address & 15, side, meta.dtype)
        return _split(gpu, handle, X, side, address, matrix)


def _check_shape(shape: Any) -> None:
    if len(shape) != 2:
        raise ShapeError(f"X must have 2 dimensions, got {len(shape)}: X {tuple(shape)}")
    if max(shape) > MAX_EXTENT:
        raise ShapeError(f"M, N and K must each be at most {MAX_EXTENT}, got {max(shape)}: X {tuple(shape)}")


def _split(gpu: Gpu, handle: int, X: Any, side: str, address: int, matrix: Matrix) -> SplitOperand:
    """Split a matrix, on a stream that is not capturing."""
    rows, columns = matrix.shape
    source = matrix if side == "A" else matrix.transposed
    lines, K = source.shape
    parts = geometry.split_arrays(lines, K, matrix.dtype)
    own = workspace.allocate(gpu, handle, parts.end, f"a split operand of {rows} x {columns}")
    made = SplitOperand(X, side, (rows, columns), gpu, handle, own, parts)
    if lines and K:
        draft = Draft(gpu)
        if source.stored is None:
            source = packing.add_packed(draft, source)
        operands = [Unsplit(source, pairs_at(Address(Base.SPLIT_A), parts, lines, K, side, matrix.dtype))]
        maxima = draft.reserve(maxima_bytes(gpu, operands), "the largest magnitudes of an operand")
        add_split(draft, operands, maxima, early=False)
        LoadedPlan(gpu, draft.plan(K), handle).launch(handle, (address, 0, 0, own, 0, 0), 1.0, 0.0)
    made._event = gpu.stream(handle).record()
    gpu.keep_alive(handle, X)
    return made


def array_of(name: str, x: SplitOperand, precision: str) -> Any:
    """Return the array of a split operand given as A or B of `sgemm`, or raise what is wrong with that."""
    if x.side != name:
        raise OperandError(f"{name} is split for the other side: {x!r}; split it with side={name!r}")
    if precision == "ieee":
        raise PrecisionError(f"{name} is {x!r}, which only precision='fp16x3' reads; pass that, or {name}.array")
    return x.array
