"""The MLP of a transformer spread over the devices: its first product by columns of the weight, its second by rows.

    torchrun --nproc-per-node 2 examples/torch_tensor_parallel.py --width 8192 --batch 8192

PyTorch splits the weights and adds up the parts; fastsgemm multiplies, forward and backward. The result is compared
with that of one device, and both are timed. Without a GPU it runs on CPU tensors with gloo.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_processes import milliseconds, options, processes, show

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


def run(width, batch, device):
    """Return the times in ms of one device and of all, and the largest differences relative to the largest element."""
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
    given = options(__doc__, width=64, batch=32)
    with processes() as device:
        with fastsgemm.torch.enabled(device=device) as switch:
            found = run(given.width, given.batch, device)
        show(found | {"share": switch.report().share}, given.json)
    assert max(found["difference"].values()) < 1e-5, found["difference"]
    assert switch.report().calls


if __name__ == "__main__":
    main()
