"""Kernels of the Python device, which read their arguments as a device does: by the parameters that are declared."""

import ctypes
import re
import struct
from typing import ClassVar

import numpy as np

from fastsgemm.geometry.tensor_map import BYTES, unpacked


class Batch:
    """What a kernel reads of ``Batch`` in cuda_src/device/batch.cuh and, where they are, ``Source`` and ``Groups``."""

    def __init__(self, address, with_source, with_groups=False):
        self.count, self.middle, self.inner, *steps = struct.unpack("3I4x9q", ctypes.string_at(address, 88))
        self.a, self.b, self.c = steps[:3], steps[3:6], steps[6:]
        self.source = None
        if with_source:
            first, *strides_and_steps = struct.unpack("Q5q", ctypes.string_at(address + 88, 48))
            self.source = first, strides_and_steps[:2], strides_and_steps[2:]
        if with_groups:
            self.groups = struct.unpack("Qq", ctypes.string_at(address + (136 if with_source else 88), 16))

    def __eq__(self, other):
        return vars(self) == vars(other)


def parameters_of(source, entry):
    """Return the types of a kernel's parameters.

    They are i int, f float, q long long, P pointer, b batch, s batch and source, g and h these two with groups, and t
    tensor map.
    """
    found = re.split(r",(?![^<]*>)", re.search(rf"\b{entry}\((.*?)\)", source, re.DOTALL)[1])
    last = "b" if "constexpr int SOURCE = 0;" in source else "s"
    kinds = {"int": "i", "float": "f", "long long": "q", "Batch": "b", "BatchAndSource<SOURCE>": last, "TensorMap": "t"}
    grouped = re.search(r"constexpr int GROUPED = [123];", source)
    kinds["LastArgument<GROUPED>::Type"] = "q"
    kinds["GroupedBatch<SOURCE, GROUPED>"] = {"b": "g", "s": "h"}[last] if grouped else last
    plain = [re.sub(r"const |__grid_constant__ |\s*\w+$", "", " ".join(one.split())).strip() for one in found]
    return "".join("P" if "*" in one else kinds[kind] for one, kind in zip(found, plain, strict=True))


def argument(kind, address):
    """Return what a kernel finds at a pointer to its argument."""
    if kind in "bsgh":
        return Batch(address, kind in "sh", kind in "gh")
    if kind == "t":
        return unpacked(ctypes.string_at(address, BYTES))
    (value,) = struct.unpack(kind, ctypes.string_at(address, struct.calcsize(kind)))
    return {"i": np.int32, "f": np.float32}.get(kind, int)(value)


class PythonKernel:
    """A kernel in NumPy that reads its arguments as the CUDA C++ source declares them."""

    local_bytes = 0
    made: ClassVar[list] = []  # every kernel; its place is its handle

    def __init__(self, name, run, types):
        self.name, self.run, self.types = name, run, types
        self.handle = len(self.made)
        self.made.append(self)

    def unload(self):
        """A kernel in Python has nothing to unload."""

    def arguments(self, pointers):
        places = (ctypes.c_void_p * len(self.types)).from_address(pointers)
        return tuple(argument(kind, place) for kind, place in zip(self.types, places, strict=True))
