"""The MLP of a transformer spread over the devices: its first product by columns of the weight, its second by rows.

    torchrun --nproc-per-node 2 examples/torch_tensor_parallel.py --width 8192 --batch 8192

PyTorch splits the weights and adds up the parts; fastsgemm multiplies, forward and backward. The result is compared
with that of one device, and both are timed. Without a GPU it runs on CPU tensors with gloo.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import fastsgemm.torch


def mlp(width, device):
    torch.manual_seed(0)  # every process makes the same weights
    with torch.device(device):
        layers = [torch.nn.Linear(width, 4 * width), torch.nn.ReLU(), torch.nn.Linear(4 * width, width)]
        return torch.nn.Sequential(*layers)


def step(model, x):
    """Forward and backward; return the result and the gradient of the input."""
    x = x.detach().requires_grad_()
    y = model(x)
    y.square().mean().backward()
    return y.detach(), x.grad


def milliseconds(function, device, repeats=5):
    """The shortest time of a call, of the slowest process."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    best = float("inf")
    for _ in range(repeats):
        dist.barrier()
        wait()
        started = time.perf_counter()
        function()
        wait()
        taken = torch.tensor([1e3 * (time.perf_counter() - started)], dtype=torch.float64, device=device)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        best = min(best, taken.item())
    return best


def run(width, batch, device):
    x = torch.randn(batch, width, generator=torch.Generator().manual_seed(1)).to(device)
    model = mlp(width, device)
    alone = step(model, x)
    found = {"width": width, "batch": batch, "devices": dist.get_world_size()}
    found["ms"] = {"one device": milliseconds(lambda: step(model, x), device)}
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    together = step(model, x)
    found["ms"]["all devices"] = milliseconds(lambda: step(model, x), device)
    found["difference"] = {
        name: float((b - a).abs().max() / a.abs().max())
        for name, a, b in zip(("result", "gradient"), alone, together, strict=True)
    }
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        with fastsgemm.torch.enabled(device=device) as switch:
            found = run(given.width, given.batch, device)
        found["share"] = switch.report().share
        if dist.get_rank() == 0:
            print(json.dumps(found, indent=1))
            if given.json:
                given.json.write_text(json.dumps(found, indent=1) + "\n")
        assert max(found["difference"].values()) < 1e-5, found["difference"]
        assert switch.report().calls
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
