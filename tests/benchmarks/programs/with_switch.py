"""Run one program with PyTorch's products, then with fastsgemm's in each precision."""

from contextlib import nullcontext
from functools import partial

import fastsgemm.torch


def compare(run, steps, difference, device, small):
    """Return what a program gave with each kind of products.

    Parameters
    ----------
    run : callable
        ``run(how, steps)`` runs the program within the context manager `how`, and returns its result and its time.
    steps : int
        One step warms up and compiles the kernels.
    difference : callable
        ``difference(result, plain)`` compares with the result of PyTorch's products.
    device : str
    small : bool
        Leave out fp16x3.

    Returns
    -------
    dict
        ``results`` and ``times`` by kind of products; for those of fastsgemm ``difference``, the ``share`` of FLOPs
        that were replaced, ``calls``, and what was ``passed_on`` and why.
    """
    run(nullcontext(), 1)
    plain, took = run(nullcontext(), steps)
    found = {"results": {"PyTorch": plain}, "times": {"PyTorch": took}}
    found |= {name: {} for name in ("difference", "share", "calls", "passed_on")}
    for precision in ("ieee",) if small else ("ieee", "fp16x3"):
        enabled = partial(fastsgemm.torch.enabled, precision, device=device)
        with enabled() as switch:
            run(nullcontext(), 1)
        report = switch.report()
        result, found["times"][precision] = run(enabled(), steps)
        found["results"][precision] = result
        found["difference"][precision] = difference(result, plain)
        found["share"][precision], found["calls"][precision] = report.share, report.calls
        found["passed_on"][precision] = sorted({f"{line.operator}: {line.reason}" for line in report.passed_on})
        print(f"  {precision} is done", flush=True)
    return found
