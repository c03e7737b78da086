"""Train with FSDP2: PyTorch shards the parameters and gathers them for each layer, fastsgemm multiplies.

    torchrun --nproc-per-node 2 examples/torch_fsdp.py --width 4096 --batch 4096

The losses are compared with those of one device that has the whole batch. Without a GPU it runs on CPU tensors with
gloo.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_processes import options, processes, show

import fastsgemm.torch

STEPS = 3


def model_of(width, device):
    torch.manual_seed(0)  # every process makes the same weights
    with torch.device(device):
        layers = [torch.nn.Linear(width, 2 * width), torch.nn.ReLU(), torch.nn.Linear(2 * width, width)]
        return torch.nn.Sequential(*layers)


def train(model, x, share):
    """Return the losses of some steps; `share` is the part of the batch that this process has."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        loss = (model(x[share]) - x[share]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def run(width, batch, device):
    """Return the losses of one device and of all, and the largest relative difference of the two."""
    world, rank = dist.get_world_size(), dist.get_rank()
    if batch % world:
        sys.exit(f"--batch must be a multiple of the number of processes, {world}; it is {batch}")
    x = torch.randn(batch, width, generator=torch.Generator().manual_seed(1)).to(device)
    alone = train(model_of(width, device), x, slice(None))
    model = model_of(width, device)
    mesh = init_device_mesh(device, (world,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(model, x, slice(rank * batch // world, (rank + 1) * batch // world))
    dist.all_reduce(losses)
    losses /= world
    return {
        "width": width,
        "batch": batch,
        "devices": world,
        "losses": {"one device": alone.tolist(), "all devices": losses.tolist()},
        "difference": float(((losses - alone) / alone).abs().max()),
    }


def main():
    given = options(__doc__, width=64, batch=32)
    with processes() as device:
        with fastsgemm.torch.enabled(device=device) as switch:
            found = run(given.width, given.batch, device)
        show(found | {"share": switch.report().share}, given.json)
    assert found["difference"] < 1e-5, found
    assert switch.report().calls


if __name__ == "__main__":
    main()
