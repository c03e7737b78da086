"""Tensor maps of matrices at address 0, as CUDA's driver 580 wrote them on an H200; see also tests/gpu/test_half.py."""

import struct

import pytest

from fastsgemm.geometry.tensor_map import MOST_STRIDE, TensorMap, unpacked
from fastsgemm.problem import DType

WRITTEN = {
    TensorMap(DType.BF16, 4096, 4096, 4096, 128): "20000046530 4000000000000001 0 fff00000fff 3fff3fffffff 3f<<56 7f",
    TensorMap(DType.BF16, 4095, 77, 4096, 128): "20000046530 4000000000000001 0 4c00000ffe 3fff3fffffff 3f<<56 7f",
    TensorMap(DType.BF16, 4096, 4096, 2056, 256): "10100046530 4000000000000001 0 fff00000fff 3fff3fffffff 3f<<56 ff",
    TensorMap(DType.BF16, 1, 1, 8, 1): "100046530 4000000000000001 0 0 3fff3fffffff 3f<<56 0",
}


def number(text):
    digits, _, shift = text.partition("<<")
    return int(digits, 16) << int(shift or 0)


@pytest.mark.parametrize("tensor", WRITTEN)
def test_maps_are_as_the_driver_writes_them(tensor):
    words = [0, *map(number, WRITTEN[tensor].split()), 128 * tensor.box, 1024, *[0] * 6]
    assert tensor.packed == struct.pack("<16Q", *words)


def test_types_and_long_strides():
    """Elements of another type change four bits; what a stride has more than 32 bits lies in another word."""
    of = {dtype: struct.unpack("<16Q", TensorMap(dtype, 99, 7, 1 << 20, 64).packed) for dtype in DType}
    assert [of[dtype][1] & 0xFFF for dtype in DType] == [0x3B0, 0x530, 0x330]
    assert [of[dtype][6] >> 56 for dtype in DType] == [31, 63, 63]
    far = struct.unpack("<16Q", TensorMap(DType.BF16, 64, 7, 495000262096 // 2, 64).packed)
    assert (far[1] >> 32, far[3]) == (0x3405095D, 7 << 32)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize(("K", "lines", "step"), [(1, 1, 16), (12345, 1 << 31, 1 << 20), (1 << 31, 3, MOST_STRIDE)])
def test_what_is_packed_can_be_unpacked(dtype, K, lines, step):
    tensor = TensorMap(dtype, K, lines, step // dtype.item, 64)
    assert unpacked(tensor.packed) == tensor


@pytest.mark.parametrize("data", [b"\1" + bytes(127), bytes(128)])
def test_other_bits_are_no_map(data):
    with pytest.raises(ValueError, match="no tensor map"):
        unpacked(data)
