"""Grouped products on a device beside float64, and their replay in a CUDA graph with other offsets."""

import itertools

import numpy as np
import pytest

from fastsgemm import grouped_mm, sgemm
from fastsgemm.errors import DTypeError, OperandError

pytestmark = pytest.mark.gpu

KINDS = ("rows", "k", "columns")
SIZES = {  # groups, ragged extent, and the two others
    "one group": (1, 500, 130, 70),
    "few": (7, 1000, 257, 129),
    "aligned": (8, 2048, 256, 512),
    "many": (300, 2000, 64, 96),
    "thousands": (5000, 3000, 33, 40),
    "more groups than rows": (200, 50, 64, 64),
}


def shapes(kind, groups, extent, one, two):
    """Return the shapes of A, B and the result."""
    if kind == "rows":
        return (extent, one), (groups, one, two), (extent, two)
    if kind == "columns":
        return (groups, one, two), (two, extent), (one, extent)
    return (one, extent), (extent, two), (groups, one, two)


def matrix(torch, shape, order, pad):
    *batch, rows, columns = shape
    lines, length = (columns, rows) if order == "T" else (rows, columns)
    x = torch.randn(*batch, lines, length + pad, device="cuda")[..., pad:]
    return x.transpose(-1, -2) if order == "T" else x


def uneven(groups, extent, seed):
    """Return ascending ends, of which some are equal, that leave a part of the extent to nobody."""
    return np.sort(np.random.default_rng(seed).integers(0, extent + 1, groups))


def parts(offsets, extent):
    ends = np.minimum(np.maximum.accumulate(np.maximum(offsets, 0)), extent).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def expected(kind, A, B, offsets, extent, alpha, beta, C):
    """Return C after the product, and the sums of magnitudes to which an error is relative, both in float64."""
    result, size = C.double().clone(), C.double().abs() * abs(beta)
    A, B = A.double(), B.double()
    for g, (begin, end) in enumerate(parts(offsets, extent)):
        if kind == "rows":
            where, a, b = np.s_[begin:end], A[begin:end], B[g]
        elif kind == "columns":
            where, a, b = np.s_[:, begin:end], A[g], B[:, begin:end]
        else:
            where, a, b = g, A[:, begin:end], B[begin:end]
        result[where] = alpha * (a @ b) + beta * C[where].double()
        size[where] += abs(alpha) * (a.abs() @ b.abs())
    return result, size


def check(found, right):
    result, size = right
    assert ((found.double() - result).abs() <= 1e-6 * size + 1e-30).all()


@pytest.mark.parametrize("kind", KINDS)
def test_host_arrays_have_the_bits_of_the_device(torch, kind):
    random = np.random.default_rng(5)
    A, B, C = (random.standard_normal(shape, dtype=np.float32) for shape in shapes(kind, 7, 1000, 257, 129))
    ends = uneven(7, 1000, 5)
    a, b, c, offsets = (torch.tensor(x, device="cuda") for x in (A, B, C, ends))
    grouped_mm(a, b, offsets, 1.5, c, -0.5, batch_invariant=True)
    assert grouped_mm(A, B, ends, 1.5, C, -0.5, batch_invariant=True) is C
    assert (c.cpu().numpy() == C).all()


@pytest.mark.parametrize("layout", map("".join, itertools.product("NT", repeat=3)))
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_any_layout_and_number_of_groups(torch, kind, name, layout):
    groups, extent, *others = SIZES[name]
    pad = 0 if name == "aligned" else 1
    A, B, C = (
        matrix(torch, shape, order, pad)
        for shape, order in zip(shapes(kind, groups, extent, *others), layout, strict=True)
    )
    offsets = uneven(groups, extent, seed=groups)
    right = expected(kind, A, B, offsets, extent, 1.5, -0.5, C)
    assert grouped_mm(A, B, torch.tensor(offsets, dtype=torch.int32, device="cuda"), 1.5, C, -0.5) is C
    check(C, right)


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_that_do_not_ascend_or_are_past_the_end_touch_nothing_outside(torch, kind):
    groups, extent, *others = SIZES["few"]
    A, B, C = (torch.randn(shape, device="cuda") for shape in shapes(kind, groups, extent, *others))
    guard = torch.full((C.numel() + 2048,), 7.0, device="cuda")
    inside = guard[1024:-1024].view(C.shape)
    inside.copy_(C)
    offsets = np.array([300, 100, -9, 2**31 - 1, 50, 900, 2**30])
    right = expected(kind, A, B, offsets, extent, 1.0, 0.0, C)
    grouped_mm(A, B, torch.tensor(offsets, device="cuda"), out=inside)
    check(inside, right)
    assert (guard[:1024] == 7).all() and (guard[-1024:] == 7).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_replays_with_other_offsets(torch, kind):
    groups, extent, *others = SIZES["few"]
    A, B, C = (torch.randn(shape, device="cuda") for shape in shapes(kind, groups, extent, *others))
    offsets = torch.zeros(groups, dtype=torch.int32, device="cuda")
    grouped_mm(A, B, offsets, C=C)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_mm(A, B, offsets, 1.0, C, 1.0)
    for seed in range(4):
        ends = uneven(groups, extent, seed)
        offsets.copy_(torch.tensor(ends, dtype=torch.int32))
        C.normal_()
        right = expected(kind, A, B, ends, extent, 1.0, 1.0, C)
        graph.replay()
        torch.cuda.synchronize()
        check(C, right)


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_call_can_be_captured_and_makes_a_new_result(torch, kind):
    groups, extent, *others = SIZES["aligned"]
    A, B, C = (torch.randn(shape, device="cuda") for shape in shapes(kind, groups, extent, *others))
    ends = np.arange(1, groups + 1) * (extent // groups)
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = grouped_mm(A, B, offsets)
    graph.replay()
    torch.cuda.synchronize()
    check(result, expected(kind, A, B, ends, extent, 1.0, 0.0, torch.zeros_like(C)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_order_gives_the_bits_of_sgemm(torch, kind, name, dtype):
    groups, extent, *others = SIZES[name]
    A, B, C = (torch.randn(shape, device="cuda") for shape in shapes(kind, groups, extent, *others))
    A, ends = A.to(getattr(torch, dtype)), uneven(groups, extent, seed=groups)
    C = grouped_mm(A, B, torch.tensor(ends, device="cuda"), batch_invariant=True)
    for g, (begin, end) in enumerate(parts(ends, extent)[:40]):
        if kind == "rows":
            found, a, b = C[begin:end], A[begin:end], B[g]
        elif kind == "columns":
            found, a, b = C[:, begin:end], A[g], B[:, begin:end]
        else:
            found, a, b = C[g], A[:, begin:end], B[begin:end]
        alone = sgemm(a, b, batch_invariant=True)
        assert (found.contiguous().view(torch.int32) == alone.view(torch.int32)).all(), g


@pytest.mark.parametrize("kind", KINDS)
def test_the_results_are_those_of_pytorch(torch, kind):
    theirs = getattr(torch.nn.functional, "grouped_mm", None)
    if theirs is None:
        pytest.skip("this PyTorch has no torch.nn.functional.grouped_mm")
    groups, extent, *others = SIZES["aligned"]
    A, B, _ = (torch.randn(shape, device="cuda") for shape in shapes(kind, groups, extent, *others))
    offsets = torch.arange(1, groups + 1, dtype=torch.int32, device="cuda") * (extent // groups)
    try:
        found = theirs(A, B, offs=offsets)
    except (RuntimeError, ValueError) as error:
        pytest.skip(f"PyTorch computes no such product in float32: {str(error).splitlines()[0]}")
    torch.testing.assert_close(grouped_mm(A, B, offsets), found, rtol=1e-3, atol=1e-3)


def test_another_stream_waits_for_the_offsets(torch):
    groups, extent, *others = SIZES["few"]
    A, B, C = (torch.randn(shape, device="cuda") for shape in shapes("rows", groups, extent, *others))
    stream, ends = torch.cuda.Stream(), uneven(groups, extent, seed=3)
    right = expected("rows", A, B, ends, extent, 1.0, 0.0, C)
    offsets = torch.zeros(groups, dtype=torch.int64, device="cuda")
    torch.cuda._sleep(20_000_000)
    offsets.copy_(torch.tensor(ends))
    grouped_mm(A, B, offsets, C=C, stream=_Protocol(stream))
    del offsets
    stream.synchronize()
    check(C, right)


class _Protocol:
    def __init__(self, stream):
        self._handle = stream.cuda_stream

    def __cuda_stream__(self):
        return 0, self._handle


def test_cupy_arrays():
    cupy = pytest.importorskip("cupy")
    A, B = cupy.ones((12, 4), cupy.float32), cupy.ones((3, 4, 5), cupy.float32)
    result = grouped_mm(A, B, cupy.array([3, 3, 12], cupy.int64))
    assert isinstance(result, cupy.ndarray) and (result == 4).all()


def test_what_is_refused(torch):
    A, B = torch.ones(12, 4, device="cuda"), torch.ones(3, 4, 5, device="cuda")
    ends = torch.tensor([3, 3, 12], dtype=torch.int32, device="cuda")
    with pytest.raises(DTypeError, match=r"offsets must be int32 or int64, got torch\.float32"):
        grouped_mm(A, B, ends.float())
    with pytest.raises(OperandError, match="A requires grad"):
        grouped_mm(A.requires_grad_(), B, ends, out=torch.empty(12, 5, device="cuda"))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(torch, kind):
    """Of what belongs to no group they are zero, whatever lay there before."""
    groups, extent, *others = SIZES["few"]
    A, B, C = (torch.randint(-4, 5, shape, device="cuda").float() for shape in shapes(kind, groups, extent, *others))
    ends = uneven(groups, extent, seed=4)
    doubles = [x.double().requires_grad_() for x in (A, B, C)]
    weights = torch.randint(-4, 5, C.shape, device="cuda").float()
    result = torch.zeros_like(doubles[2])
    for g, (begin, end) in enumerate(parts(ends, extent)):
        a = doubles[0][:, begin:end] if kind == "k" else doubles[0][g] if kind == "columns" else doubles[0][begin:end]
        b = (
            doubles[1][g]
            if kind == "rows"
            else doubles[1][:, begin:end]
            if kind == "columns"
            else doubles[1][begin:end]
        )
        where = {"rows": np.s_[begin:end], "k": g, "columns": np.s_[:, begin:end]}[kind]
        result[where] = a @ b
    wanted = torch.autograd.grad(result, doubles[:2], weights.double())
    torch.full((1 << 24,), torch.nan, device="cuda")  # memory that the results may get
    A.requires_grad_(), B.requires_grad_()
    found = grouped_mm(A, B, torch.tensor(ends, device="cuda"))
    for one, other in zip(torch.autograd.grad(found, (A, B), weights), wanted, strict=True):
        assert torch.equal(one.double(), other)
    assert torch.equal(found.double(), result)


def test_a_layer_of_experts_learns_as_in_float64(torch):
    """By the function, and unedited by the switch, which a CUDA graph can capture."""
    from mixture_of_experts import assert_learns_as_in_float64

    import fastsgemm.torch

    assert_learns_as_in_float64(grouped_mm, "cuda")
    theirs = getattr(torch, "_grouped_mm", None)
    if theirs is None:
        pytest.skip("this PyTorch has no grouped_mm")
    with fastsgemm.torch.enabled() as switch:
        assert_learns_as_in_float64(lambda a, b, ends: theirs(a, b, offs=ends), "cuda")
    assert {line.operator: line.calls for line in switch.report().replaced}["_grouped_mm"] > 0
    A, B = torch.ones(64, 8, device="cuda"), torch.ones(3, 8, 16, device="cuda")
    ends = torch.tensor([10, 10, 64], dtype=torch.int32, device="cuda")
    with fastsgemm.torch.enabled():
        theirs(A, B, offs=ends)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = theirs(A, B, offs=ends)
        A *= 2
        graph.replay()
    assert (result == 16).all()
