"""torch.ops.fastsgemm.grouped_mm: its derivatives against float64, and that PyTorch's transforms accept it."""

import pytest

torch = pytest.importorskip("torch")

from mixture_of_experts import assert_learns_as_in_float64  # noqa: E402

import fastsgemm.torch  # noqa: F401, E402  (registers the operator)
from fastsgemm import grouped_mm, sgemm  # noqa: E402
from fastsgemm.errors import DTypeError, OverlapError  # noqa: E402

OPERATOR = torch.ops.fastsgemm.grouped_mm
ENDS = torch.tensor([3, 2, 8], dtype=torch.int32)  # groups of 3, 0 and 5; of 10 rows, columns or steps
GROUPS = [(0, 3), (3, 3), (3, 8)]
SHAPES = {  # of A, B and C
    "rows": ((10, 4), (3, 4, 5), (10, 5)),
    "k": ((6, 10), (10, 5), (3, 6, 5)),
    "columns": ((3, 6, 4), (4, 10), (6, 10)),
}
DIFFERENCES = {"eps": 0.25, "atol": 1e-3, "rtol": 1e-3}  # exact for what is linear in each operand

pytestmark = [
    pytest.mark.usefixtures("on_host"),
    pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double precision"),
]


@pytest.fixture(params=SHAPES)
def kind(request):
    return request.param


def values(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def learned(kind):
    return [values(*shape).requires_grad_() for shape in SHAPES[kind]]


def reference(kind, A, B, C, alpha=2.0, beta=0.5):
    """Return the result group by group, in the type of the operands."""
    if kind == "k":
        return alpha * torch.stack([A[:, i:j] @ B[i:j] for i, j in GROUPS]) + beta * C
    if kind == "columns":
        return reference("rows", B.mT, A.mT, C.mT, alpha, beta).mT
    parts = [alpha * A[i:j] @ B[g] + beta * C[i:j] for g, (i, j) in enumerate(GROUPS)]
    return torch.cat([*parts, C[8:]])


def equal(found, wanted):
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-4)


def in_float64(kind, operands, alpha=2.0, beta=0.5):
    """Return the result and the gradients of the sum of its cubes, in float64."""
    doubles = [x.detach().double().requires_grad_() for x in operands]
    wanted = reference(kind, *doubles, alpha, beta)
    return [wanted, *torch.autograd.grad(wanted.pow(3).sum(), doubles)]


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (2.0, 0.5), (1.0, 0.0)])
def test_derivatives(kind, alpha, beta):
    operands = A, B, C = learned(kind)
    result = OPERATOR(A, B, ENDS, alpha, beta, C)
    found = [result, *torch.autograd.grad(result.pow(3).sum(), operands)]
    for one, other in zip(found, in_float64(kind, operands, alpha, beta), strict=True):
        equal(one, other)


def test_what_belongs_to_no_group_is_zero_and_its_gradient_is_not_read(kind):
    A, B, C = learned(kind)
    result = OPERATOR(A, B, ENDS)
    equal(result, reference(kind, A, B, torch.zeros_like(C), 1.0))
    gradient = values(*result.shape)
    if kind != "k":
        gradient[(slice(8, None),) if kind == "rows" else (slice(None), slice(8, None))] = torch.nan
    assert all(x.isfinite().all() for x in torch.autograd.grad(result, (A, B), gradient))


def test_derivatives_of_every_order_and_in_forward_mode(kind):
    def function(a, b, c):
        return OPERATOR(a, b, ENDS, 2.0, 0.5, c)

    more = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(function, learned(kind), **more, **DIFFERENCES)
    assert torch.autograd.gradgradcheck(function, learned(kind), check_fwd_over_rev=True, **DIFFERENCES)


def test_torch_func(kind):
    A, B, C = (x.detach() for x in learned(kind))

    def ours(a, b):
        return OPERATOR(a, b, ENDS, 2.0, 0.5, C).pow(3).sum()

    def wanted(a, b):
        return reference(kind, a, b, C).pow(3).sum()

    for outer in (torch.func.jacrev, torch.func.jacfwd):
        equal(*(outer(torch.func.grad(f))(A, B) for f in (ours, wanted)))
    for size in (2, 0):
        batch = torch.stack([A, 2 * A])[:size]
        of_a, of_b = (torch.func.vmap(torch.func.grad(f, (0, 1)), (0, None))(batch, B) for f in (ours, wanted))
        for one, other in zip(of_a, of_b, strict=True):
            equal(one, other)


def test_without_anything_to_multiply(kind):
    A, B, C = learned(kind)
    none = ENDS[:0]
    if kind != "k":
        empty = (A, B[:0]) if kind == "rows" else (A[:0], B)
        equal(OPERATOR(*empty, none, 1.0, 0.5, C), C)
        no_k = (A[:, :0], B[:, :0]) if kind == "rows" else (A[:, :, :0], B[:0])
        equal(OPERATOR(*no_k, ENDS, 1.0, 0.5, C), reference(kind, A, B, C, 0.0))
    else:
        assert OPERATOR(A, B, none).shape == (0, 6, 5)
        equal(OPERATOR(A[:, :0], B[:0], ENDS, 1.0, 0.5, C), 0.5 * C)


REFUSED = {
    "dimensions": (lambda A, B: (B, B, ENDS), "not both 3, got 3 and 3"),
    "K": (lambda A, B: (A[:, 1:], B, ENDS), "A's columns must equal B's rows"),
    "groups": (lambda A, B: (A, B[1:], ENDS), "B must have a matrix for each of the 3 groups"),
    "offsets": (lambda A, B: (A, B, ENDS[None]), "offsets must have 1 dimension, got 2"),
    "float offsets": (lambda A, B: (A, B, ENDS.float()), "offsets must be int32 or int64, got torch.float32"),
    "dtype": (lambda A, B: (A, B.double(), ENDS), "B must be torch.float32, got torch.float64"),
    "beta": (lambda A, B: (A, B, ENDS, 1.0, 1.0), "beta must be 0 when C is not given"),
    "C": (lambda A, B: (A, B, ENDS, 1.0, 1.0, A), "C must have shape"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    make, message = REFUSED[name]
    A, B, _ = (x.detach() for x in learned("rows"))
    for device in ("cpu", "meta"):
        given = [x.to(device) if isinstance(x, torch.Tensor) else x for x in make(A, B)]
        with pytest.raises(RuntimeError, match=message):
            OPERATOR(*given)


def test_opcheck(kind):
    assert set(torch.library.opcheck(OPERATOR.default, (*learned(kind)[:2], ENDS)).values()) == {"SUCCESS"}
    A, B, C = learned(kind)
    assert set(torch.library.opcheck(OPERATOR.default, (A, B, ENDS, 2.0, 0.5, C)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_a_result_is_row_major_where_nothing_is_multiplied(kind, beta):
    A, B, C = (x.detach() for x in learned(kind))
    column_major = C.mT.contiguous().mT
    assert OPERATOR(A[..., :0], B[..., :0, :], ENDS, 1.0, beta, column_major).is_contiguous()


def test_the_function_is_compiled_whole(kind):
    """With its gradients; a size that changes does not compile it again."""
    from torch._dynamo import testing

    counter = testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda a, b, c: grouped_mm(a, b, ENDS, 2.0, c.clone(), 0.5), fullgraph=True, dynamic=True, backend=counter
    )
    operands = A, B, C = learned(kind)
    grouped_mm(A, B, ENDS)  # the first array of the process would be seen as a change
    result = compiled(A, B, C)
    found = [result, *torch.autograd.grad(result.pow(3).sum(), operands)]
    for one, other in zip(found, in_float64(kind, operands), strict=True):
        equal(one, other)
    if kind != "columns":
        wider = [torch.cat([x, x, x], -1) for x in (B, C)]
        equal(compiled(A, *wider)[..., -5:], found[0])
    assert counter.frame_count == 1


def test_c_is_updated_in_place(kind):
    A, B, C = learned(kind)
    wanted = reference(kind, A, B, C)
    updated = C.clone()
    assert grouped_mm(A, B, ENDS, 2.0, updated, 0.5) is updated
    equal(updated, wanted)
    square = torch.zeros(10, 10, requires_grad=True)
    with pytest.raises(OverlapError, match="C shares memory with A"):
        grouped_mm(square, torch.zeros(3, 10, 10), ENDS, 1.0, square.detach(), 1.0)


def test_a_layer_of_experts_learns_as_in_float64():
    assert_learns_as_in_float64(grouped_mm)


def test_the_simulated_device(fresh_machine, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    A, B, C = learned("rows")
    found = grouped_mm(A, B, ENDS)
    equal(found, reference("rows", A, B, torch.zeros_like(C), 1.0))
    weights = values(10, 5)
    wanted = torch.autograd.grad(reference("rows", A, B, torch.zeros_like(C), 1.0), (A, B), weights)
    for one, other in zip(torch.autograd.grad(found, (A, B), weights), wanted, strict=True):
        equal(one, other)


def test_gradients_of_16_bit_operands_have_their_types():
    A, B, C = (x.detach() for x in learned("rows"))
    a, b = A.bfloat16().requires_grad_(), B.half().requires_grad_()
    found = grouped_mm(a, b, ENDS, precision="ieee")
    wanted = reference("rows", a.float(), b.float(), torch.zeros_like(C), 1.0)
    equal(found, wanted)
    assert found.dtype is torch.float32
    compiled = torch.compile(lambda a, b: grouped_mm(a, b, ENDS, precision="ieee"), fullgraph=True, backend="aot_eager")
    equal(compiled(a, b), wanted)
    weights = values(10, 5)
    for one, other, x in zip(*(torch.autograd.grad(y, (a, b), weights) for y in (found, wanted)), (a, b), strict=True):
        assert one.dtype is x.dtype
        torch.testing.assert_close(one, other)
    with pytest.raises(DTypeError, match="A must be float32, got bfloat16; 16-bit"):
        grouped_mm(a, b, ENDS)


def test_one_order_of_summation_holds_for_gradients(fresh_machine, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    A, B, _ = learned("rows")
    result = grouped_mm(A, B, ENDS, batch_invariant=True)
    assert torch.equal(result[:3], sgemm(A.detach()[:3], B.detach()[0], batch_invariant=True))
    weights = values(10, 5)
    of_a, of_b = torch.autograd.grad(result, (A, B), weights)
    assert torch.equal(of_a[:3], sgemm(weights[:3], B.detach()[0].T, batch_invariant=True))
    assert torch.equal(of_b[2], sgemm(A.detach()[3:8].T, weights[3:8], batch_invariant=True))
