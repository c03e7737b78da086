"""Products of DTensors, on two processes of the host."""

import subprocess
import sys

import pytest
from subprocesses import environment

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")

BEGINNING = """\
import itertools, sys
import torch
import fastsgemm.torch
assert "torch.distributed.tensor" not in sys.modules  # which takes seconds to import
store = torch.distributed.FileStore(sys.argv[1], 2)
torch.distributed.init_process_group("gloo", rank=int(sys.argv[2]), world_size=2, store=store)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh

mesh = init_device_mesh("cpu", (2,))
sgemm, linear_fp32 = torch.ops.fastsgemm.sgemm, fastsgemm.torch.linear_fp32
drawn = torch.Generator().manual_seed(1)
close = lambda found, wanted: torch.testing.assert_close(found.full_tensor(), wanted, rtol=1e-5, atol=1e-5)

def values(*shape):
    return torch.randn(shape, generator=drawn)

def placed(x, placement):
    return distribute_tensor(x.detach(), mesh, [placement]).requires_grad_()
"""

PROGRAMS = {
    "linear_fp32": """
for shape in ((4, 8), (2, 4, 8)):
    places = [Replicate(), *map(Shard, range(len(shape)))], [Replicate(), Shard(0), Shard(1)], [None, Replicate()]
    for of_x, of_w, of_bias in itertools.product(*places):
        whole = [values(*shape).requires_grad_(), values(6, 8).requires_grad_(), values(6).requires_grad_()]
        wanted = torch.nn.functional.linear(*(whole if of_bias else whole[:2]))
        wanted.sin().sum().backward()
        parts = [placed(x, place) for x, place in zip(whole, (of_x, of_w, of_bias)) if place]
        found, plain = linear_fp32(*parts), torch.nn.functional.linear(*parts)
        if of_x != Shard(1) or len(shape) == 2:  # rows of several dimensions are gathered where an inner one is divided
            assert found.placements == plain.placements, (of_x, of_w, found.placements, plain.placements)
        close(found, wanted.detach())
        found.sin().sum().backward()
        for part, one in zip(parts, whole):
            close(part.grad, one.grad)
with torch.inference_mode():
    x, w = (distribute_tensor(values(4, 8), mesh, [Shard(0)]) for _ in range(2))
    close(linear_fp32(x, w), x.full_tensor() @ w.full_tensor().T)
""",
    "first in inference mode": """
with torch.inference_mode():
    x, w = (distribute_tensor(values(4, 8), mesh, [Shard(0)]) for _ in range(2))
    close(linear_fp32(x, w), x.full_tensor() @ w.full_tensor().T)
""",
    "the operator": """
for of_a, of_b, of_c in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=3):
    a, b, c = whole = [values(6, 4).requires_grad_(), values(4, 8).requires_grad_(), values(6, 8).requires_grad_()]
    wanted = 2 * a @ b + 0.5 * c
    wanted.sin().sum().backward()
    parts = [placed(x, place) for x, place in zip(whole, (of_a, of_b, of_c))]
    found = sgemm(*parts[:2], 2.0, 0.5, parts[2])
    close(found, wanted.detach())
    found.sin().sum().backward()
    for part, one in zip(parts, whole):
        close(part.grad, one.grad)
for of_a, of_b in itertools.product([Replicate(), Shard(0), Shard(1), Shard(2)], repeat=2):
    a, b = values(2, 6, 4), values(2, 4, 8)
    close(sgemm(placed(a, of_a), placed(b, of_b)), a @ b)
""",
    "what depends on more than placements": """
import unittest.mock
from fastsgemm.torch import execution
a, b = placed(values(6, 4), Shard(1)), placed(values(4, 6), Shard(0))
assert sgemm(a, b).placements == (Partial(),)
seen = []
with unittest.mock.patch.object(execution, "multiply", lambda A, B, C, alpha, beta, request, out: (
        seen.append((tuple(A.shape), request.batch_invariant)), out.copy_(A @ B))):
    assert Partial() not in sgemm(a, b, batch_invariant=True).placements  # after the same operands without
    assert all(shape[-1] == 4 and in_order for shape, in_order in seen), seen
s = values(6, 6)
s = s + s.T
for place in (Replicate(), Shard(0), Shard(1)):
    found = sgemm(placed(s, place), placed(s @ s, place), symmetric=True)
    close(found, s @ s @ s)
    assert found.placements == (Replicate(),)
x = placed(values(6, 4), Shard(0))
close(sgemm(x, x.mT), x.full_tensor() @ x.full_tensor().T)
""",
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("program", PROGRAMS)
def test_dtensors(program, tmp_path):
    text = BEGINNING + PROGRAMS[program] + "torch.distributed.barrier()\ntorch.distributed.destroy_process_group()\n"
    (tmp_path / "program.py").write_text(text)
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "program.py", "store", str(rank)], cwd=tmp_path, text=True,
            env=environment(FASTSGEMM_DEVICE="host"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        output = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(output)
