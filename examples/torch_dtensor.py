"""Multiply distributed tensors: PyTorch moves the parts, fastsgemm multiplies them.

    torchrun --nproc-per-node 2 examples/torch_dtensor.py --size 16384

Each product of two DTensors is checked, and timed beside the product on one device. Without a GPU it runs on CPU
tensors with gloo.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import fastsgemm.torch

# How A and B are placed on a row of devices. The last one sums the parts of K: that is an all-reduce of C.
PLACEMENTS = {
    "rows of A x all of B": (Shard(0), Replicate()),
    "all of A x columns of B": (Replicate(), Shard(1)),
    "columns of A x rows of B": (Shard(1), Shard(0)),
}


def whole_numbers(size, device, seed):
    """Small whole numbers: every sum is exact, so all orders of addition give the same bits."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(-4, 5, (size, size), generator=generator, device=device).float()


def milliseconds(function, device, repeats=5):
    """The shortest time of a call, from the start of the first process to the end of the last."""
    best = float("inf")
    for _ in range(repeats):
        dist.barrier()
        times = torch.zeros(1, dtype=torch.float64, device=device)
        times[0] = _clock(function, device)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        best = min(best, times.item())
    return best


def _clock(function, device):
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    function()
    wait()
    return 1e3 * (time.perf_counter() - started)


def run(size, device):
    """Return the times in ms, and whether each result has the bits of one device."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    A, B = whole_numbers(size, device, 1), whole_numbers(size, device, 2)
    C = A @ B
    found = {"size": size, "devices": dist.get_world_size(), "ms": {"one device": milliseconds(lambda: A @ B, device)}}
    found["same bits"] = {}
    for name, (of_a, of_b) in PLACEMENTS.items():
        a, b = distribute_tensor(A, mesh, [of_a]), distribute_tensor(B, mesh, [of_b])
        product = _summed if of_a == Shard(1) else _plain
        found["same bits"][name] = torch.equal(product(a, b).full_tensor(), C)
        found["ms"][name] = milliseconds(lambda p=product, a=a, b=b: p(a, b), device)
    if dist.get_world_size() % 2 == 0:
        found["same bits"] |= on_a_square(A, B, C, device)
    return found


def _plain(a, b):
    return a @ b


def _summed(a, b):
    return (a @ b).redistribute(placements=[Replicate()])


def on_a_square(A, B, C, device):
    """The same on a mesh of two dimensions: blocks of A and of B."""
    mesh = init_device_mesh(device, (2, dist.get_world_size() // 2))
    found = {}
    for of_a, of_b in (
        ((Shard(0), Replicate()), (Replicate(), Shard(1))),
        ((Shard(0), Shard(1)), (Replicate(), Shard(0))),
        ((Shard(0), Shard(1)), (Shard(0), Shard(1))),
    ):
        a, b = distribute_tensor(A, mesh, of_a), distribute_tensor(B, mesh, of_b)
        found[f"2-D mesh: {_shown(of_a)} x {_shown(of_b)}"] = torch.equal((a @ b).full_tensor(), C)
    return found


def _shown(placements):
    return "(" + ", ".join("all" if p.is_replicate() else f"shard {p.dim}" for p in placements) + ")"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        with fastsgemm.torch.enabled(device=device) as switch:
            found = run(given.size, device)
        found["share"] = switch.report().share
        if dist.get_rank() == 0:
            print(json.dumps(found, indent=1))
            if given.json:
                given.json.write_text(json.dumps(found, indent=1) + "\n")
        assert all(found["same bits"].values()), found["same bits"]
        assert switch.report().calls
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
