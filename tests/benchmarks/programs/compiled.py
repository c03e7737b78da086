"""A model of three layers under torch.compile: ms of a forward and backward pass, by batch."""

import statistics
import time
from contextlib import nullcontext

import torch
from calls import wait

import fastsgemm.torch


def measure(device="cuda", small=False):
    torch.manual_seed(0)
    width = 64 if small else 1024
    layers = [torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)]
    model = torch.compile(
        torch.nn.Sequential(*layers).to(device), backend="eager" if small else "inductor", dynamic=False
    )
    found = {"ms": {}}
    for batch in (16,) if small else (64, 2048):
        x = torch.randn(batch, width, device=device)
        row = {}
        for name in ("PyTorch", "fastsgemm") * 2:
            with fastsgemm.torch.enabled(device=device) if name == "fastsgemm" else nullcontext():
                times = []
                for _ in range(30):
                    wait(device)
                    started = time.perf_counter()
                    model(x).sum().backward()
                    wait(device)
                    times.append(1e3 * (time.perf_counter() - started))
            row[name] = min(row.get(name, 1e9), statistics.median(times[5:]))
        found["ms"][str(batch)] = row
    return found
