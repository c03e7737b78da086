"""Any object with the CUDA array interface but without DLPack."""

from __future__ import annotations

import operator
from typing import Any

from fastsgemm import device
from fastsgemm.call.arrays.library import Library, message_of, type_name
from fastsgemm.errors import OperandError


class CudaArrayInterface(Library):
    """Objects with the CUDA array interface."""

    def device_of(self, x: Any) -> int:
        from cuda.bindings import driver

        interface = _interface(x)
        address = interface["data"][0]
        device.probe()
        if address == 0 and 0 in interface["shape"]:  # it has no memory, and so lies on any device: the current one
            result, current = driver.cuCtxGetDevice()
            return 0 if int(result) != 0 else int(current)
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        result, ordinal = driver.cuPointerGetAttribute(attribute, address)
        if int(result) != 0:
            raise OperandError(f"{type_name(x)} does not point to CUDA memory: {result.name}")
        return int(ordinal)

    def _exporter(self, x: Any) -> Any:
        interface = _interface(x)
        return _Version3(interface) if interface["version"] < 3 else x


class _Version3:
    """An older CUDA array interface as version 3, which cuda.core reads. Version 3 adds a stream, which is optional."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = {**interface, "version": 3}


def _interface(x: Any) -> dict[str, Any]:
    """Return the CUDA array interface of `x`, after checking the entries that are used here."""
    interface: Any = "nothing"
    try:
        interface = x.__cuda_array_interface__
        address, _ = interface["data"]
        operator.index(address), operator.index(interface["version"]), tuple(interface["shape"])
    except Exception as error:
        rule = "must be a dictionary with a shape, a version and data: an address and whether it is read-only"
        raise OperandError(
            f"{type_name(x)}.__cuda_array_interface__ {rule}, got {interface!r} ({message_of(error)})"
        ) from error
    return interface  # type: ignore[no-any-return]
