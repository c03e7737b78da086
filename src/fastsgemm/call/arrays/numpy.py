"""NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastsgemm.call.arrays.library import HOST, Library


class NumPy(Library):
    def refusal(self, cls: type) -> str | None:
        """Refuse subclasses whose elements are not plain numbers: masked arrays, and arrays with a unit.

        NumPy has two protocols with which a class redefines operations (NEP 13 and NEP 18). Unit libraries such as
        astropy and unyt use them. A class that uses neither, such as `numpy.matrix` or `numpy.memmap`, holds plain
        numbers.
        """
        if issubclass(cls, np.ma.MaskedArray):
            return "has a mask, which would be ignored; pass .filled(value), or .data to use the values under the mask"
        for method in ("__array_ufunc__", "__array_function__"):
            if getattr(cls, method) is not getattr(np.ndarray, method):
                return f"redefines operations ({method}), for example for units; pass .view(numpy.ndarray)"
        return None

    def device_of(self, x: Any) -> int:
        return HOST

    def to_numpy(self, x: Any, name: str) -> np.ndarray:
        return np.asarray(x)

    def from_numpy(self, result: np.ndarray, like: Any) -> Any:
        return result
