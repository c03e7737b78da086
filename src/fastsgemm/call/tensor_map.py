"""Tensor maps: what the copy engine (TMA) is told about an array.

cuda.core's ``TensorMapDescriptor`` is made from an array object, and so is its every new address; here addresses are
workspace and change from call to call. So the driver is asked directly.
"""

from __future__ import annotations

import ctypes

from fastsgemm import device
from fastsgemm.geometry.fp16x3 import LINE_BYTES

_BYTES, _ALIGNMENT = 128, 64  # of a tensor map
_HALVES = LINE_BYTES // 2  # FP16 numbers of a line
_MOST_KNOWN = 64  # addresses whose maps are remembered: workspace comes back from the pool at few of them


class TensorMap:
    """The pairs of a split operand, [blocks][lines][64] FP16 numbers, read in boxes of a block of `box` lines.

    Lines past the end are read as zeros.

    Parameters
    ----------
    lines, blocks, box : int
    """

    def __init__(self, lines: int, blocks: int, box: int) -> None:
        self.lines, self.blocks, self.box = lines, blocks, box
        self._room = ctypes.create_string_buffer(_BYTES + _ALIGNMENT)
        self.place = -(-ctypes.addressof(self._room) // _ALIGNMENT) * _ALIGNMENT  # of the 128 bytes, on the host
        self._address = 0
        self._known: dict[int, bytes] = {}

    def point_to(self, address: int) -> None:
        """Let it describe the pairs at this device address, a multiple of 16.

        Raises
        ------
        DeviceError
            The driver refuses the map.
        """
        if address == self._address:
            return
        descriptor = self._known.get(address)
        if descriptor is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            descriptor = self._known[address] = encode(address, self.lines, self.blocks, self.box)
        self._address = 0  # until the descriptor is there: Ctrl-C may come between
        ctypes.memmove(self.place, descriptor, _BYTES)
        self._address = address


def encode(address: int, lines: int, blocks: int, box: int) -> bytes:
    """Return the 128 bytes of the map for pairs at a device address; see `TensorMap`."""
    from cuda.bindings import driver

    u64, u32 = driver.cuuint64_t, driver.cuuint32_t
    answer = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        3,
        address,
        [u64(_HALVES), u64(lines), u64(blocks)],
        [u64(LINE_BYTES), u64(LINE_BYTES * lines)],
        [u32(_HALVES), u32(box), u32(1)],
        [u32(1)] * 3,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    device.succeed(f"describing {blocks} blocks of {lines} lines to the copy engine", answer)
    return ctypes.string_at(answer[1].getPtr(), _BYTES)
