"""One work on some devices: its time with PyTorch's products and with fastsgemm's, what takes the time, and the bits.

    torchrun --nproc-per-node 4 tests/benchmarks/programs/scaling.py --json found.json

`several_gpus.py` runs this with 1, 2, 4 and 8 processes and compares. Strong scaling divides one work, weak scaling
gives each device as much as one had. Without a GPU it runs on CPU tensors with gloo, in sizes that check it only.
"""

import hashlib
import json
import statistics
import sys
import time
from argparse import ArgumentParser
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "examples")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from harness import PRECISIONS, products, turns  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch_processes import processes  # noqa: E402

import fastsgemm.torch  # noqa: E402

TURNS = 5
PRODUCTS = ("PyTorch", *PRECISIONS)
DECODER = ("model", "layers", "heads", "vocabulary", "sequences", "tokens")
LOSSES = 3  # steps of training whose losses are kept
_LARGE = {
    "product": 16384, "rows": 8192, "width": 8192, "batch": 8192, "layers": 20, "model": 2048, "heads": 16,
    "vocabulary": 32768, "sequences": 8, "tokens": 512,
}  # fmt: skip
_SMALL = {
    "product": 64, "rows": 32, "width": 32, "batch": 16, "layers": 1, "model": 32, "heads": 2, "vocabulary": 64,
    "sequences": 8, "tokens": 8,
}  # fmt: skip


class Place:
    """Where this process stands: its device, its number and how many there are."""

    def __init__(self, device):
        self.device, self.world, self.rank = device, dist.get_world_size(), dist.get_rank()
        self.mesh = init_device_mesh(device, (self.world,))
        self._hosts = dist.new_group(backend="gloo")

    def random(self, *shape):
        """Return the same normal numbers in every process."""
        generator = torch.Generator(self.device).manual_seed(sum(shape))
        return torch.randn(shape, generator=generator, device=self.device)

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def meet(self):
        """Wait for this device and for all processes, without a kernel."""
        self.wait()
        dist.barrier(self._hosts)


def product(place, n, of_a, of_b, rows=0):
    """C = A B of n x n matrices, or with `rows` rows of A per device; parts of a sum are added up."""
    A, B = place.random(rows * place.world or n, n), place.random(n, n)
    a, b = distribute_tensor(A, place.mesh, [of_a]), distribute_tensor(B, place.mesh, [of_b])
    if of_a != Shard(1):
        return lambda: a @ b
    return lambda: (a @ b).redistribute(placements=[Replicate()])


def mlp(place, width, batch):
    """The two products of a transformer's MLP, by columns and rows of the weights, forward and backward."""
    torch.manual_seed(0)
    with torch.device(place.device):
        layers = [torch.nn.Linear(width, 4 * width), torch.nn.ReLU(), torch.nn.Linear(4 * width, width)]
        model = torch.nn.Sequential(*layers)
    parallelize_module(model, place.mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = place.random(batch, width).requires_grad_()

    def step():
        model.zero_grad()
        model(x).square().mean().backward()

    return step


class Decoder(torch.nn.Module):
    """A decoder of PyTorch's own layers, that looks at earlier tokens only."""

    def __init__(self, model, layers, heads, vocabulary):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, model)
        block = partial(torch.nn.TransformerEncoderLayer, model, heads, 4 * model, 0.0, "gelu", batch_first=True)
        self.blocks = torch.nn.ModuleList(block(norm_first=True) for _ in range(layers))
        self.head = torch.nn.Linear(model, vocabulary)

    def forward(self, ids):
        x = self.embedding(ids)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(ids.shape[1], x.device)
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return self.head(x)


def training(place, model, layers, heads, vocabulary, sequences, tokens):
    """Return a step of FSDP2 training, which returns the loss of all devices, and the number of parameters."""
    torch.manual_seed(0)
    with torch.device(place.device):
        decoder = Decoder(model, layers, heads, vocabulary)
    parameters = sum(each.numel() for each in decoder.parameters())
    for block in decoder.blocks:
        fully_shard(block, mesh=place.mesh)
    fully_shard(decoder, mesh=place.mesh)
    optimizer = torch.optim.SGD(decoder.parameters(), lr=0.1)
    ids = torch.randint(vocabulary, (sequences, tokens + 1), generator=torch.Generator().manual_seed(1))
    own = ids.to(place.device).chunk(place.world)[place.rank]

    def step():
        logits = decoder(own[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), own[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        every = loss.detach().clone()
        dist.all_reduce(every)
        return every / place.world

    return step, parameters


def works(place, size):
    """Return every work by its name, as a function that builds it and returns its step."""
    n, rows = size["product"], size["rows"]
    decoder = [size[name] for name in DECODER]
    return {
        f"{n}^3, rows": partial(product, place, n, Shard(0), Replicate()),
        f"{n}^3, columns": partial(product, place, n, Replicate(), Shard(1)),
        f"{n}^3, K": partial(product, place, n, Shard(1), Shard(0)),
        f"{rows} rows per device, {n} columns and steps of K": partial(
            product, place, n, Shard(0), Replicate(), rows=rows
        ),
        f"MLP, width {size['width']}, batch {size['batch']}": partial(mlp, place, size["width"], size["batch"]),
        "FSDP2 training of a decoder": lambda: training(place, *decoder)[0],
    }


def in_turns(place, step):
    """Return the median time of a step in ms with each kind of products: that of the slowest process."""
    times = {name: [] for name in PRODUCTS}
    for number, turn in enumerate(turns(TURNS + 1, PRODUCTS)):
        for name in turn:
            with products(name, place.device):
                step()
                place.meet()
                started = time.perf_counter()
                step()
                place.wait()
                taken = torch.tensor(1e3 * (time.perf_counter() - started), dtype=torch.float64, device=place.device)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if number:
                times[name].append(taken.item())
    return {name: statistics.median(each) for name, each in times.items()}


def shares(place, step):
    """Return which share of a step's time NCCL, products and other kernels take, and when the device waits.

    Kernels of two kinds at the same time count for products, then for NCCL. On the CPU there is nothing to tell apart.
    The processes meet once each has started its profiler, else NCCL waits for the last one, which looks like work.
    """
    if place.device != "cuda":
        return {}
    step()
    place.wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        place.meet()
        started = time.perf_counter()
        step()
        place.wait()
        taken = 1e6 * (time.perf_counter() - started)
    kernels = [
        (_kind(event.name), event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    found, covered = {}, []
    for kind in ("products", "NCCL", "others"):
        own = _union(covered + [(start, end) for each, start, end in kernels if each == kind])
        found[kind] = (_length(own) - _length(covered)) / taken
        covered = own
    return found | {"waiting": 1 - _length(covered) / taken}


def _kind(name):
    lower = name.lower()
    if "nccl" in lower:
        return "NCCL"
    return "products" if any(word in lower for word in ("fastsgemm", "gemm", "cutlass")) else "others"


def _union(spans):
    """Return the same time without overlaps."""
    joined = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _length(spans):
    return sum(end - start for start, end in spans)


def bits(place, n):
    """Return a digest of one product in one order of summation, with rows divided and with columns.

    One order is promised by kernels only, so there is none on the CPU.
    """
    found = {}
    if place.device == "cpu":
        return found
    with fastsgemm.torch.enabled(batch_invariant=True, device=place.device):
        for name, of_a, of_b in (("rows", Shard(0), Replicate()), ("columns", Replicate(), Shard(1))):
            whole = product(place, n, of_a, of_b)().full_tensor()
            found[name] = hashlib.sha256(whole.cpu().numpy().tobytes()).hexdigest()
    return found


def losses(place, sizes):
    """Return the losses of the first steps of training with each kind of products, and the number of parameters."""
    found = {}
    for name in PRODUCTS:
        with products(name, place.device):
            step, parameters = training(place, *sizes)
            found[name] = [float(step()) for _ in range(LOSSES)]
    return found, parameters


def main():
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    given = parser.parse_args()
    with processes() as device:
        place, size = Place(device), _SMALL if given.small or device == "cpu" else _LARGE
        found = {"devices": place.world, "works": {}}
        for name, build in works(place, size).items():
            step = build()
            found["works"][name] = {"ms": in_turns(place, step), "shares": {}}
            for kind in PRODUCTS:
                with products(kind, device):
                    found["works"][name]["shares"][kind] = shares(place, step)
            del step
            if place.rank == 0:
                ms = ", ".join(f"{kind} {each:.1f}" for kind, each in found["works"][name]["ms"].items())
                print(f"  {place.world} devices, {name}, ms: {ms}", flush=True)
        found["bits"] = bits(place, size["product"] // 4)
        found["losses"], found["parameters"] = losses(place, [size[name] for name in DECODER])
        if place.rank == 0:
            given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
