"""Operands that are split once into pairs of FP16 numbers, which rung 11 multiplies in many calls.

What the arrays hold is described in ``cuda_src/device/split_format.cuh``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastsgemm import arguments, device
from fastsgemm.call import arrays, packing, streams
from fastsgemm.call.arrays import HOST
from fastsgemm.call.driver import LoadedPlan
from fastsgemm.call.plan import Draft
from fastsgemm.call.splitting import Unsplit, add_split, pairs_at
from fastsgemm.call.workspace import DeviceMemory
from fastsgemm.device import PER_THREAD_STREAM
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
    changed** while the split operand is in use: the result would mix old and new values. A copy of it is the same
    object. It may be dropped on any thread and in a capture, and outlive the stream that it was split on.

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
        "_gpu",
        "_handle",
        "_memory",
        "array",
        "nbytes",
        "shape",
        "side",
    )

    def __init__(
        self, array: Any, side: str, shape: Pair, gpu: Gpu, handle: int, memory: DeviceMemory, parts: SplitArrays
    ) -> None:
        self.array, self.side, self.shape, self.nbytes = array, side, shape, parts.end
        self._gpu, self._handle, self._memory = gpu, handle, memory
        self._done = False  # whether the splitting is known to be

    def __copy__(self) -> SplitOperand:
        return self

    def __deepcopy__(self, memo: Any) -> SplitOperand:
        return self

    @property
    def address(self) -> int:
        """Where the pairs and what belongs to them begin."""
        return self._memory.address

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

    def make_ready(self, handle: int) -> None:
        """Let a stream of the device, which is current, wait until the splitting is done.

        On the stream that it was split on it is. The default streams of all threads have the same handle, so these are
        taken to be different.
        """
        if self._done or handle == self._handle != PER_THREAD_STREAM:
            return
        ready = self._memory.ready
        if device.is_capturing(handle):  # a graph must not wait for an event from outside it, so the host does
            ready.synchronize()
            self._done = True
        elif ready.is_done:
            self._done = True
        else:
            ready.hold_back(handle)


def split(X: Any, side: str = "B", *, stream: Any = None) -> SplitOperand:
    """Split an operand, such as a weight, once for many products.

    ``sgemm(A, split(B), precision="fp16x3")`` gives the bits of ``sgemm(A, B, precision="fp16x3")`` if both use rung
    11, without the time to split B, which is most of the time if A has few rows.

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
        kept = [X]
        address, meta = library.view(X, handle, stream is None and library.has_streams, kept)
        if meta.fault is not None:
            raise meta.fault("X")
        _check_shape(meta.shape)
        if device.is_capturing(handle):
            raise CaptureError(
                "split inside a CUDA graph capture, whose memory does not outlive a replay; split before it"
            )
        matrix = Matrix(Address(Base.A), tuple(meta.shape), tuple(meta.strides), address & 15, side, meta.dtype)
        made = _split(gpu, handle, X, side, address, matrix)
        gpu.keep_alive(handle, kept)
        return made


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
    memory = DeviceMemory(gpu, handle, parts.end, f"a split operand of {rows} x {columns}")
    if lines and K:
        draft = Draft(gpu)
        if source.stored is None:
            source = packing.add_packed(draft, source)
        operands = [Unsplit(source, pairs_at(Address(Base.SPLIT_A), parts, lines, K, side, matrix.dtype))]
        add_split(draft, operands, early=False)
        LoadedPlan(gpu, draft.plan(K)).launch(handle, (address, 0, 0, memory.address, 0, 0), 1.0, 0.0)
        memory.ready.record(handle)
    return SplitOperand(X, side, (rows, columns), gpu, handle, memory, parts)


def array_of(name: str, x: SplitOperand, precision: str) -> Any:
    """Return the array of a split operand given as A or B of `sgemm`, or raise what is wrong with that."""
    if x.side != name:
        raise OperandError(f"{name} is split for the other side: {x!r}; split it with side={name!r}")
    if precision == "ieee":
        raise PrecisionError(f"{name} is {x!r}, which only precision='fp16x3' reads; pass that, or {name}.array")
    return x.array
