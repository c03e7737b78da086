"""Tensor maps: what the host tells the tensor memory accelerator about an array in global memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastsgemm.sim.lanes import Array

CHUNK = 16  # bytes that are moved together
SWIZZLE = 128  # bytes of the only pattern but none
_ROW = 7  # the bits of an address from here on number the rows of 128 bytes
_CHUNK_BITS = 4


@dataclass(frozen=True)
class TensorMap:
    """An argument of a launch, in place of the descriptor of 128 bytes that ``cuTensorMapEncodeTiled`` writes.

    Attributes
    ----------
    operand : str
        The operand whose first element is the tensor's.
    dims : tuple of int
        Elements along each dimension, the contiguous one first.
    strides : tuple of int
        Bytes from one element to the next along each dimension but the first.
    box : tuple of int
        Elements that a copy moves, along each dimension.
    swizzle : int
        0, or 128: the 16-byte pieces of each 128 bytes of shared memory change places.
    """

    operand: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = SWIZZLE


def swizzled(address: Array) -> Array:
    """Return where 128-byte swizzle puts what would lie at a shared address: bits 4 to 6 ^= bits 7 to 9."""
    return np.asarray(address ^ (address >> _ROW & 7) << _CHUNK_BITS)


def chunks(tensor: TensorMap, item: int, corner: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the 16-byte pieces of a box, in the order of shared memory.

    Parameters
    ----------
    tensor : TensorMap
    item : int
        Bytes of an element.
    corner : tuple of int
        Coordinates of the first element of the box.

    Returns
    -------
    offset : array of int
        Bytes from the tensor's first element.
    inside : array of bool
        Whether the piece is part of the tensor; if not, zeros take its place.
    """
    steps = CHUNK // item
    extents = (tensor.box[0] // steps, *tensor.box[1:])
    grid = np.indices(extents[::-1]).reshape(len(extents), -1)[::-1]  # the contiguous dimension first
    scale = np.array([steps] + [1] * (len(extents) - 1))[:, None]
    places = grid * scale + np.array(corner)[:, None]
    inside = ((places >= 0) & (places < np.array(tensor.dims)[:, None])).all(axis=0)
    offset = (places * np.array([item, *tensor.strides])[:, None]).sum(axis=0)
    return offset, inside
