"""Code that `torch.compile` generated calls the replacements itself, without PyTorch's dispatcher.

Among other kernels of a program the dispatcher takes about as long as a replacement. Generated code looks products up
by name, in a namespace of the compiler, each time it runs. So code that was compiled before is concerned, too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch

_COMPILER = "torch._inductor.select_algorithm"
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")  # generated code gives each an `out`

_MARK = "of_fastsgemm"  # an attribute of the functions that this module makes
_compilers: dict[str, Callable[..., Any]] = {}  # what the compiler has for them
_ours: dict[str, Callable[..., Any]] = {}  # what is called in their place
_lock = threading.RLock()


def take(functions: Mapping[str, Callable[..., Any]], device: str) -> None:
    """Let generated code call these functions, and what the compiler has for products that are not among them.

    They are named by operator and form, such as ``mm.out``. The device is ``cuda`` or ``cpu``; tensors of others are
    left to PyTorch.
    """
    global _ours
    ours = {name: _divided(functions[f"{name}.out"], name, device) for name in _PRODUCTS if f"{name}.out" in functions}
    with _lock:
        _ours = ours
        renew()


def leave() -> None:
    """Let generated code call what the compiler has."""
    take({}, "cpu")


def renew() -> None:
    """Put the functions of the last `take` in place, also where the compiler was imported after it."""
    with _lock:
        namespace = getattr(sys.modules.get(_COMPILER), "extern_kernels", None)
        for name in _PRODUCTS:
            present = getattr(namespace, name, None)
            if present is None:
                continue
            if not hasattr(present, _MARK):  # the compiler's, or what another library put there
                _compilers[name] = present
            setattr(namespace, name, _ours.get(name, _compilers[name]))


def _divided(function: Callable[..., Any], name: str, device: str) -> Callable[..., Any]:
    """Return what calls the function on tensors of the device, unless a mode of PyTorch is to see the call."""
    is_there = attrgetter(f"is_{device}")
    dispatch_modes, function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack

    def product(*operands: Any, **named: Any) -> Any:
        ours = not (dispatch_modes() or function_modes()) and is_there(operands[-1])
        return (function if ours else _compilers[name])(*operands, **named)

    setattr(product, _MARK, True)
    return product
