"""Tensor maps: what the tensor memory accelerator is told of a matrix; see ``cuda_src/device/tensor_map.cuh``.

The bits are those that ``cuTensorMapEncodeTiled`` of CUDA's driver writes for compute capability 9.0; a test on a
device compares them. They are written here, so that a plan has all it needs where there is no driver: on the simulated
device, and where XLA lowers a program for another machine.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from fastsgemm.problem import DType

BOX_BYTES = 128  # of a line in a box
PERIOD = 1024  # bytes of shared memory: of the swizzle, at multiples of which a box begins
UNIT = 16  # bytes in which strides are counted, and of which an address is a multiple
MOST_STRIDE = (1 << 40) - UNIT  # bytes
END = 1 << 48  # bytes: the addresses that the two coordinates below reach
NEAR, FAR = UNIT, 1 << 34  # bytes: the steps of the two coordinates that are the address of a matrix

_WORDS = struct.Struct("<16Q")
BYTES, ALIGNMENT = _WORDS.size, 64  # of a map
_WORD = 32  # bits of most fields, two of which share a word of 64
_LOW = (1 << _WORD) - 1
_RANK = 4 - 1 << 4
_TYPES = {DType.F16: 6 << 7, DType.F32: 7 << 7, DType.BF16: 10 << 7}
_SWIZZLE_128_BYTES, _L2_128_BYTES = 3 << 13, 2 << 17
_BOX_SHIFT = 56  # of the box's extent along k in its word


class TensorMap(Struct, frozen=True, gc=False):
    """The map of a matrix of K-major lines at address 0, which is copied in boxes of `box` lines of 128 bytes."""

    dtype: DType
    K: int
    lines: int
    ld: int  # elements from a line to the next: a multiple of 16 bytes up to MOST_STRIDE; 0 of one line
    box: int  # at most 256

    @property
    def packed(self) -> bytes:
        """The argument of a kernel: 128 bytes."""
        step = self.ld * self.dtype.item // UNIT
        return _WORDS.pack(
            0,
            _RANK | _TYPES[self.dtype] | _SWIZZLE_128_BYTES | _L2_128_BYTES | (step & _LOW) << _WORD,
            NEAR // UNIT | FAR // UNIT << _WORD,
            step >> _WORD << _WORD,
            self.K - 1 | self.lines - 1 << _WORD,
            (FAR // NEAR - 1) | (END // FAR - 1) << _WORD,
            BOX_BYTES // self.dtype.item - 1 << _BOX_SHIFT,
            self.box - 1,
            self.box * BOX_BYTES,
            PERIOD,
            *(0,) * 6,
        )


def unpacked(data: bytes) -> TensorMap:
    """Return the map that was packed so.

    Raises
    ------
    ValueError
        It was not.
    """
    words = _WORDS.unpack(data)
    step = words[1] >> _WORD | words[3] >> _WORD << _WORD
    K, lines = (words[4] & _LOW) + 1, (words[4] >> _WORD) + 1
    for dtype in DType:
        found = TensorMap(dtype, K, lines, step * UNIT // dtype.item, words[7] + 1)
        if found.packed == data:
            return found
    raise ValueError("this is no tensor map of such a matrix")
