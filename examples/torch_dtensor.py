"""Multiply distributed tensors: PyTorch moves the parts, fastsgemm multiplies them.

    torchrun --nproc-per-node 2 examples/torch_dtensor.py --size 16384

Each product of two DTensors is checked, and timed beside the product on one device. Without a GPU it runs on CPU
tensors with gloo.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch_processes import milliseconds, options, processes, show

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


def run(size, device):
    """Return the times in ms, and whether each result has the bits of one device."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    A, B = whole_numbers(size, device, 1), whole_numbers(size, device, 2)
    C = A @ B
    found = {"size": size, "devices": dist.get_world_size(), "ms": {}, "same bits": {}}
    found["ms"]["one device"] = milliseconds(lambda: A @ B, device)
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
    given = options(__doc__, size=256)
    with processes() as device:
        with fastsgemm.torch.enabled(device=device) as switch:
            found = run(given.size, device)
        show(found | {"share": switch.report().share}, given.json)
    assert all(found["same bits"].values()), found["same bits"]
    assert switch.report().calls


if __name__ == "__main__":
    main()
