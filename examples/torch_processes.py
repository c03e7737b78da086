"""What the three programs for several devices share: one process per device, options, times, and the printed result."""

import argparse
import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist


def options(text, **sizes):
    """Return the options of a program: one for each of `sizes`, whose value is the default, and --json FILE."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result to this file")
    return parser.parse_args()


@contextmanager
def processes():
    """Join the processes that torchrun has started, and give the type of device that each of them has one of."""
    if "LOCAL_RANK" not in os.environ:
        sys.exit("torchrun starts this program, as its first lines say")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()
        # A thread of gloo may still drop a tensor, and Python aborts it at its end: pytorch/pytorch#179291.
        time.sleep(0.1)


def show(found, path):
    """Print the result as JSON, once for all processes, and write it to `path` unless that is None."""
    if dist.get_rank() == 0:
        text = json.dumps(found, indent=1)
        print(text)
        if path:
            path.write_text(text + "\n")


def milliseconds(function, device, repeats=5):
    """Return the time of a call in ms: that of the slowest process, and of several calls the shortest."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    best = float("inf")
    for _ in range(repeats):
        dist.barrier()
        wait()
        started = time.perf_counter()
        function()
        wait()
        taken = torch.tensor(1e3 * (time.perf_counter() - started), dtype=torch.float64, device=device)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        best = min(best, taken.item())
    return best
