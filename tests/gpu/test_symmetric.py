"""Symmetric results on a device: the bits of whole products, exact symmetry, and nothing written elsewhere."""

import numpy as np
import pytest

pytest.importorskip("torch")

import fastsgemm.torch
from fastsgemm import Fp16x3Config, PipelinedConfig, blas, device, sgemm, split
from fastsgemm.config import Fp16x3MmaConfig
from fastsgemm.heuristics import fp16x3_rates

pytestmark = pytest.mark.gpu

SIZES = [(1, 40), (7, 33), (64, 64), (97, 140), (128, 1000), (500, 300), (1000, 4097), (2050, 512)]
PIPELINED = {
    "square tiles": PipelinedConfig(64, 64, 16, 8, 4, 32, 32, 1, CP_ASYNC=2),
    "wide tiles": PipelinedConfig(64, 128, 16, 8, 4, 64, 32, 2, CP_ASYNC=2),
    "high tiles": PipelinedConfig(128, 64, 16, 8, 4, 64, 32, 1, CP_ASYNC=2),
    "split-K": PipelinedConfig(64, 64, 16, 8, 4, 32, 32, 1, CP_ASYNC=2, SPLIT_K=3),
    "sliced-K": PipelinedConfig(64, 64, 16, 8, 4, 32, 32, 1, CP_ASYNC=2, SLICED_K=2),
}
WGMMA = [Fp16x3Config(), Fp16x3Config(BM=64, BN=64, STAGES=4, SPLIT_K=2), Fp16x3Config(BN=128, STAGES=7)]
MMA = [Fp16x3MmaConfig(), Fp16x3MmaConfig(64, 64, 32, 32, STAGES=4, SPLIT_K=2)]
ORDERS = ["N", "T"]


def drawn(torch, *shape, order="N", seed=1):
    """Return a matrix with rows (N), columns (T) or neither (S) in one piece."""
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(*shape, device="cuda", generator=generator)
    if order == "T":
        return x.mT.contiguous().mT
    return torch.repeat_interleave(x, 2, dim=-1)[..., ::2] if order == "S" else x


def result(torch, n, order, *batch, fill=float("nan")):
    return torch.full((*batch, n, n), fill, device="cuda").contiguous() if order == "N" else torch.full(
        (*batch, n, n), fill, device="cuda"
    ).contiguous().mT  # fmt: skip


@pytest.fixture(scope="module")
def tiles():
    """The configs of rung 11 that this device runs."""
    gpu = device.open_gpu(0)
    kinds = fp16x3_rates.kinds_of(gpu.arch)
    return [one for one in WGMMA + MMA if type(one) in kinds and one.shared_bytes <= gpu.shared_limit]


@pytest.mark.parametrize("order_c", ORDERS)
@pytest.mark.parametrize("order_a", [*ORDERS, "S"])
@pytest.mark.parametrize("name", PIPELINED)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_the_bits_of_the_whole_product(torch, n, k, name, order_a, order_c):
    config = PIPELINED[name]
    a = drawn(torch, n, k, order=order_a)
    other = a.clone(memory_format=torch.preserve_format)
    whole, one = result(torch, n, order_c), result(torch, n, order_c)
    sgemm(a, other.mT, 1.5, C=whole, config=config)
    sgemm(a, a.mT, 1.5, C=one, config=config)
    assert torch.equal(one, whole) and torch.equal(one, one.mT)
    old = drawn(torch, n, n, seed=2)
    whole.copy_(old), one.copy_(old)
    sgemm(a, other.mT, 1.5, -0.5, whole, config=config)
    sgemm(a, a.mT, 1.5, -0.5, one, config=config)
    assert torch.equal(one, whole)


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_what_is_chosen_is_symmetric(torch, n, k, batch_invariant):
    a = drawn(torch, n, k)
    c = sgemm(a, a.T, batch_invariant=batch_invariant)
    assert torch.equal(c, c.T)
    exact = a.double() @ a.T.double()
    assert (c - exact).norm() <= 1e-6 * exact.norm()
    if batch_invariant:
        assert torch.equal(c, sgemm(a, a.clone().T, batch_invariant=True))


@pytest.mark.parametrize("order_c", ORDERS)
@pytest.mark.parametrize("order_a", ORDERS)
@pytest.mark.parametrize(("n", "k"), SIZES[2:])
def test_fp16x3(torch, tiles, n, k, order_a, order_c):
    a = drawn(torch, n, k, order=order_a)
    a[3, 5], a[n - 4, :9], a[n // 2, 2] = 1e-20, 1e-15, 1e-18  # what the guard repairs
    exact = 0.5 * (a.double() @ a.mT.double())
    for config in [None, *tiles]:
        c = result(torch, n, order_c)
        sgemm(a, a.mT, 0.5, C=c, precision="fp16x3", rung="fp16x3", config=config)
        assert torch.equal(c, c.mT), config
        assert (c - exact).norm() <= 1e-6 * exact.norm(), config
        old = drawn(torch, n, n, seed=2)
        c.copy_(old)
        sgemm(a, a.mT, 0.5, -2.0, c, precision="fp16x3", rung="fp16x3", config=config)
        assert (c - (exact - 2.0 * old)).norm() <= 1e-6 * (exact.norm() + 2 * old.norm()), config


def test_split_operands_serve_for_both_sides(torch):
    a = drawn(torch, 1000, 600)
    c = sgemm(a, a.T, precision="fp16x3", rung="fp16x3")
    for given in ((split(a, "A"), a.T), (a, split(a.T, "B"))):
        assert torch.equal(sgemm(*given, precision="fp16x3", rung="fp16x3"), c)


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
@pytest.mark.parametrize("batch", [(1,), (5,), (2, 3)])
def test_batches_with_beta_and_out(torch, batch, precision):
    a, s = drawn(torch, *batch, 300, 200), drawn(torch, *batch, 300, 300, seed=2)
    out = torch.full_like(s, float("nan"))
    sgemm(a, a.mT, 0.5, 2.0, s, out=out, precision=precision)
    exact = 0.5 * (a.double() @ a.mT.double()) + 2.0 * s
    assert (out - exact).norm() <= 1e-6 * exact.norm()
    sgemm(a, a.mT, C=out, precision=precision)
    assert torch.equal(out, out.mT)


@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("order_c", ORDERS)
@pytest.mark.parametrize(("n", "k"), SIZES[1:])
def test_the_other_triangle_is_untouched(torch, n, k, order_c, trans, lower):
    a = drawn(torch, k, n) if trans else drawn(torch, n, k)
    room = torch.full((n + 2, n + 3), 99.0, device="cuda")
    c = room[1:-1, 1 : n + 1]
    c = c.mT if order_c == "T" else c
    old = drawn(torch, n, n, seed=2)
    c.copy_(old)
    kept = torch.ones(n, n, device="cuda").tril().bool()
    kept = kept if lower else kept.mT
    assert blas.ssyrk(1.5, a, -0.5, c, trans, lower, overwrite_c=1) is c
    product = (a.T @ a if trans else a @ a.T).double()
    assert torch.equal(c[~kept], old[~kept])
    exact = 1.5 * product - 0.5 * old
    assert (c - exact)[kept].norm() <= 1e-5 * exact.norm()
    room[1:-1, 1 : n + 1] = 99.0
    assert (room == 99.0).all()


def test_streams_and_graphs(torch):
    """The keys of known calls know whether A and B are one buffer; replays read new values."""
    a, b = drawn(torch, 1024, 512), drawn(torch, 1024, 512, seed=2)
    for one, other in ((a, a), (a, b), (b, b), (b, a), (a, a)):
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                c = sgemm(one, other.T)
            stream.synchronize()
            torch.testing.assert_close(c, one @ other.T, rtol=1e-4, atol=1e-2)
    c = torch.empty(1024, 1024, device="cuda")
    sgemm(a, a.T, C=c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sgemm(a, a.T, C=c)
    a.copy_(b)
    graph.replay()
    assert torch.equal(c, sgemm(b, b.T))


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
def test_the_switch(torch, precision):
    x, s = drawn(torch, 1500, 700), drawn(torch, 4, 300, 200)
    bias = drawn(torch, 1500, 1500, seed=3)
    with fastsgemm.torch.enabled(precision=precision):
        for c in (x @ x.mT, x.mT @ x, torch.mm(x, x.T), torch.bmm(s, s.mT), torch.einsum("ik,jk->ij", x, x)):
            assert torch.equal(c, c.mT)
        found = torch.addmm(bias, x, x.T, beta=0.5, alpha=2.0)
        y = x + 1
        other = x @ y.mT
    torch.testing.assert_close(found, 0.5 * bias + 2.0 * (x @ x.T), rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(other, x @ y.mT, rtol=1e-4, atol=1e-2)


def test_a_declared_result_and_its_gradient(torch):
    s = drawn(torch, 900, 900)
    s = (s + s.T) / 60
    p, q = s @ s + s, s @ s - 3 * s
    c = sgemm(p, q, symmetric=True)
    assert torch.equal(c, c.T)
    torch.testing.assert_close(c, p @ q, rtol=1e-4, atol=1e-3)
    x = drawn(torch, 300, 200).requires_grad_()
    g = drawn(torch, 300, 300, seed=2)
    sgemm(x, x.mT).backward(g)
    torch.testing.assert_close(x.grad, (g + g.T) @ x.detach(), rtol=1e-4, atol=1e-2)


SHARED = {
    "B, a matrix": lambda one, many: (many, one),
    "B, broadcast": lambda one, many: (many, one[None]),
    "B, stride 0": lambda one, many: (many, one.expand(many.shape)),
    "A, a matrix": lambda one, many: (one, many),
    "A, broadcast": lambda one, many: (one[None], many),
    "A, stride 0": lambda one, many: (one.expand(many.shape), many),
    "both, stride 0": lambda one, many: (one.expand(many.shape), many[1].expand(many.shape)),
}
HOW = [{}, {"precision": "fp16x3"}, {"batch_invariant": True}]


def polynomials(torch, n, count):
    """Return a symmetric matrix and polynomials of it, any two of which have a symmetric product."""
    one = drawn(torch, n, n) / (4 * n**0.5)
    one = one + one.mT
    eye = torch.eye(n, device="cuda")
    return one, torch.stack([(one.double() @ one.double() * k + eye + one * k).float() for k in range(count)])


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("n", [1, 7, 130, 300])
@pytest.mark.parametrize("shared", SHARED)
def test_a_declared_batch_that_shares_an_operand(torch, shared, n, how, side_by_side):
    """Each of its results is whole and symmetric; one product of more rows or columns would not be."""
    one, many = polynomials(torch, n, 3)
    if side_by_side:
        many = many.transpose(0, 1).contiguous().transpose(0, 1)
    A, B = SHARED[shared](one, many)
    exact = A.double() @ B.double()
    out = torch.full((n, 3, n), float("nan"), device="cuda").transpose(0, 1)
    out = out if side_by_side else out.contiguous()
    sgemm(A, B, C=out, symmetric=True, **how)
    new = sgemm(A, B, symmetric=True, **how)
    by_operator = sgemm(A.clone().requires_grad_(), B, symmetric=True, **how).detach()
    for found in (out, new, by_operator):
        assert torch.equal(found, found.mT)
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [(0, None), (None, 0)])
@pytest.mark.parametrize("n", [1, 130])
def test_vmap_of_declared_results(torch, n, dims):
    one, many = polynomials(torch, n, 3)
    given = [one if dim is None else many for dim in dims]
    found = torch.func.vmap(lambda a, b: torch.ops.fastsgemm.sgemm(a, b, symmetric=True), dims)(*given)
    assert torch.equal(found, found.mT)
    torch.testing.assert_close(found.double(), given[0].double() @ given[1].double(), rtol=1e-5, atol=1e-5)


def test_a_transpose_that_something_lies_before_or_watches(torch):
    """Its gradient goes its own way: a reversal, a hook, new memory by .data=, the negative bit."""
    from gradient_reversal import Reversed

    def hooked(x):
        view = x.mT
        view.register_hook(lambda gradient: 3 * gradient)
        return view

    def moved(x):
        view = x.mT
        x.data = x.data + 1
        return view

    alternatives = lambda x: x.mT, lambda x: Reversed.apply(x).mT, hooked, moved, lambda x: torch._neg_view(x.mT)
    gradient = drawn(torch, 130, 130, seed=3)
    for way in alternatives:
        x, y = (drawn(torch, 130, 70).requires_grad_() for _ in range(2))
        view = way(x)
        found = sgemm(x, view)
        del view
        other = way(y)
        wanted = y.double() @ other.double()
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-3)
        found.backward(gradient)
        wanted.backward(gradient.double())
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-3)


def test_host_arrays():
    a = np.random.default_rng(1).standard_normal((500, 300)).astype(np.float32)
    c = sgemm(a, a.T)
    np.testing.assert_array_equal(c, c.T)
    found = blas.ssyrk(1.0, a, 1.0, c, lower=1)
    np.testing.assert_allclose(np.tril(found), np.tril(2 * c), rtol=1e-5, atol=1e-4)  # some sums of 300 nearly cancel
    np.testing.assert_array_equal(np.triu(found, 1), np.triu(c, 1))
