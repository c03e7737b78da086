"""Steps of a program with PyTorch's own products and with those of each precision, in turns in one process.

The speed of a host drifts by a half within a minute, so times that were not taken in turns do not compare.
"""

import math
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import fastsgemm.torch
from fastsgemm.torch.switch import OPERATORS

PRODUCTS = ("PyTorch", "ieee", "fp16x3")
TOLERANCE = 1e-4  # of results and gradients, relative to their norm
WARM_UP = 2  # steps at the begin of a turn, because a switch that was just turned on has yet to meet each call
TIMED = 4  # steps of a turn that are timed
TURNS = (3, 25)  # at least and at most
CYCLES_PER_MS = 2_000_000  # as many as the clock of a fast device makes
WARMED = 3  # steps after the first: torch.compile(mode="reduce-overhead") captures its graphs in them


@contextmanager
def products(name, device):
    """Give a program these products.

    To turn the switch on is some milliseconds of Python, after which the host's caches hold nothing of the program. So
    that the first steps are as slow for PyTorch's own products, the switch goes on and off before them.
    """
    with fastsgemm.torch.enabled("ieee" if name == "PyTorch" else name, device=device) as switch:
        if name != "PyTorch":
            yield switch
    if name == "PyTorch":
        yield None


def in_order(turn):
    """Return the kinds of products in the order of a turn: each is the first in every third turn."""
    first = turn % len(PRODUCTS)
    return PRODUCTS[first:] + PRODUCTS[:first]


def training(model, loss, lr=1e-4):
    """Return a training step, a function that returns the model with its gradients.

    Parameters
    ----------
    model : torch.nn.Module
    loss : callable
        Computes the loss, without arguments.
    lr : float
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        return model

    return step


def measure(cases, device, seconds, tolerance=TOLERANCE, apart=False):
    """Measure every case of a program.

    Parameters
    ----------
    cases : dict
        By what it is: a function of the device that builds the case and returns its step. A step returns a tensor, or a
        model that has gradients; those of the first step are compared.
    device : str
        ``cuda`` or ``cpu``.
    seconds : float
        To spend on timing all cases together. A few turns are taken even if they need more.
    tolerance : float
    apart : bool
        Time each kind of products on a build of its own, because what torch.compile makes depends on the switch. Else
        all are timed on the first build: two builds of one program differ by up to a tenth where the host is the limit.

    Returns
    -------
    dict
        ``cases``, each with ``what``, ``steps`` that were timed, and by kind of products the medians of a step's wall
        time ``ms`` and of ``device_ms``, for those of fastsgemm the ``difference`` of the results, the ``share`` of
        FLOPs that were replaced in the first step, ``calls``, and what was ``passed_on`` and why.

    Raises
    ------
    ValueError
        Results differ by more than the tolerance.
    """
    share = seconds / len(cases)
    return {"cases": [_case(what, build, device, share, tolerance, apart) for what, build in cases.items()]}


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def _case(what, build, device, seconds, tolerance, apart):
    began = time.perf_counter()
    measured = {"what": what, "difference": {}, "share": {}, "calls": {}, "passed_on": {}}
    steps = {}
    for name in PRODUCTS:
        torch.manual_seed(0)
        step = build(device)
        if name == "PyTorch":
            with torch.compiler.set_stance("force_eager"), _Recorder() as met:
                plain = _tensors(step())
        else:
            met.prepare(name, device)
            with products(name, device) as switch:
                difference = _difference(_tensors(step()), plain)
            if not difference <= tolerance:
                raise ValueError(f"{what}: {name} differs by {difference:.1e}, more than {tolerance:.1e}")
            report = switch.report()
            measured["difference"][name], measured["share"][name] = difference, report.share
            measured["calls"][name] = report.calls
            measured["passed_on"][name] = sorted({f"{line.operator}: {line.reason}" for line in report.passed_on})
        steps[name] = step if apart else steps.get("PyTorch", step)
        with products(name, device):
            for _ in range(WARMED):
                steps[name]()
    del plain, step
    ready = time.perf_counter()
    measured |= _in_turns(steps, device, seconds)
    ms = ", ".join(f"{name} {t:.2f} ms" for name, t in measured["ms"].items())
    print(f"  {what}: {ms}; set-up {ready - began:.0f} s, timing {time.perf_counter() - ready:.0f} s", flush=True)
    return measured


def _in_turns(steps, device, seconds):
    """Time the steps in turns; return the medians."""
    wall, busy = {name: [] for name in steps}, {name: [] for name in steps}
    least, most = TURNS
    end = time.perf_counter() + seconds
    for turn in range(most):
        if turn >= least and time.perf_counter() > end:
            break
        for name in in_order(turn):
            step = steps[name]
            with products(name, device):
                for _ in range(WARM_UP):
                    step()
                for _ in range(TIMED):
                    wall[name].append(_wall_ms(step, device))
                if device == "cuda":
                    busy[name].append(_device_ms(step, wall[name][-1]))
    return {
        "steps": len(wall["PyTorch"]),
        "ms": {name: statistics.median(times) for name, times in wall.items()},
        "device_ms": {name: statistics.median(times) for name, times in busy.items() if times},
    }


def _wall_ms(step, device):
    wait(device)
    began = time.perf_counter()
    step()
    wait(device)
    return 1e3 * (time.perf_counter() - began)


def _device_ms(step, wall_ms):
    """Return the time between two events around a step.

    The device sleeps until the host has launched the step, so the host's time is not in it: but for a program that
    itself waits for the device, or launches more than its queue holds.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(int(CYCLES_PER_MS * (wall_ms + 1)))
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def _tensors(result):
    """Return copies of what is compared: later steps overwrite it."""
    if isinstance(result, torch.nn.Module):
        return [p.grad.clone() for p in result.parameters() if p.grad is not None]
    return [result.clone()]


def _difference(tensors, plain):
    """Return the norm of the difference of all tensors together, relative to that of the plain ones."""
    pairs = zip(tensors, plain, strict=True)
    squares = [
        ((ours.double() - theirs.double()).square().sum(), theirs.double().square().sum()) for ours, theirs in pairs
    ]
    different, whole = (float(sum(column)) for column in zip(*squares, strict=True))
    return math.sqrt(different / whole)


class _Recorder(TorchDispatchMode):
    """Meets the products of a program, to compile the kernels of all of them on all cores, not one after the other."""

    def __init__(self):
        super().__init__()
        self._calls = {}

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        given = arguments, named or {}
        if function._schema.name.removeprefix("aten::").removesuffix("_") in OPERATORS:
            shown = tree_map_only(torch.Tensor, lambda x: (x.shape, x.stride(), x.dtype), given)
            self._calls.setdefault(repr((function, shown)), (function, tree_map_only(torch.Tensor, _on_meta, given)))
        return function(*given[0], **given[1])

    def prepare(self, precision, device):
        """Call each product once, on operands of the same shapes and strides."""

        def call(function, given):
            arguments, named = tree_map_only(torch.Tensor, partial(_alike, device=device), given)
            function(*arguments, **named)

        with products(precision, device), ThreadPoolExecutor() as pool:
            for done in [pool.submit(call, *recorded) for recorded in self._calls.values()]:
                done.result()


def _alike(x, device):
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


_on_meta = partial(_alike, device="meta")
