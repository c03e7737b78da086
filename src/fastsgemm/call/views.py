"""The arrays of a call as addresses, shapes and strides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastsgemm.call import arrays, checks
from fastsgemm.call.arrays import DeviceArray, Library, View
from fastsgemm.errors import ShapeError
from fastsgemm.geometry.layout import same_elements

if TYPE_CHECKING:
    from fastsgemm.device import Gpu


def read(
    library: Library, A: Any, B: Any, C: Any, out: Any, gpu: Gpu, handle: int, in_order: bool
) -> tuple[list[View], Any, bool]:
    """Return the views of A, B, what is written and, if that is another array, C; and the array that is written.

    The last item says whether all operands are of one library, on its current stream, whose own ordering and lifetimes
    suffice.

    Parameters
    ----------
    library : Library
        Of what is written, or of A where that is a new array.
    A, B, C, out : array or None
        The caller's.
    gpu : Gpu
    handle : int
        The raw stream.
    in_order : bool
        It is the library's current stream, or is being captured.
    """
    target = C if out is None else out
    lead = A if target is None else target
    of_a = library if type(A) is type(lead) else arrays.library(A)
    of_b = library if type(B) is type(lead) else arrays.library(B)
    at_home = in_order and library.has_streams and of_a is library and of_b is library
    a = of_a.view(A, handle, at_home)
    b = of_b.view(B, handle, at_home)
    result = target
    if target is None or library.immutable:
        result = library.empty(lead, _new_shape(a, b), gpu, handle)
    operands = [a, b, result.view if type(result) is DeviceArray else library.view(result, handle, at_home)]
    if target is not C or (library.immutable and C is not None):
        at_home = at_home and (C is None or arrays.library(C) is library)
        operands += _source(C, out, library, operands[2], handle, at_home)
    return operands, result, at_home


def _new_shape(a: View, b: View) -> tuple[int, ...]:
    of_a, of_b = a[1][0], b[1][0]
    if len(of_a) == len(of_b) == 2 and of_a[1] == of_b[0] and a[1][3] is b[1][3] is None:
        return of_a[0], of_b[1]
    try:
        return checks.result_shape(of_a, of_b)
    except ShapeError:
        for name, (_, (_, _, _, fault, *_)) in (("A", a), ("B", b)):
            if fault is not None:  # why the array cannot be used matters more than its shape
                raise fault(name) from None
        raise


def _source(C: Any, out: Any, library: Library, written: View, handle: int, at_home: bool) -> list[View]:
    """Return the view of C where that is not what is written, after checking it."""
    address, (shape, strides, *_, dtype) = written
    if out is not None and library.immutable:
        of_out, _, _, fault, _, of_out_dtype = library.view(out, handle, False)[1]
        if fault is not None:
            raise fault("out")
        if of_out_dtype:
            raise checks.immutable_out(of_out_dtype)
        checks.exact_shape("out", of_out, shape)
    if C is None:
        return []
    source = arrays.library(C).view(C, handle, at_home)
    if out is None and source[1][3] is None:
        checks.exact_shape("C", source[1][0], shape)
    same = source[0] == address and source[1][5] is dtype and same_elements(source[1][:2], (shape, strides))
    return [] if same else [source]
