"""PyTorch's grouped_mm under the switch: what is replaced and passed on, its gradients, and torch.compile."""

import pytest

torch = pytest.importorskip("torch")
try:
    torch._grouped_mm(torch.zeros(1, 4), torch.zeros(1, 4, 4), offs=torch.ones(1, dtype=torch.int32))
except (AttributeError, NotImplementedError, RuntimeError):
    pytest.skip("this PyTorch has no grouped_mm of float32 on the CPU", allow_module_level=True)

from mixture_of_experts import assert_learns_as_in_float64  # noqa: E402
from torch_products import assert_refused_as_by_pytorch, close, counted, enabled  # noqa: E402

from fastsgemm.torch import execution  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_host")

ENDS = torch.tensor([3, 3, 12], dtype=torch.int32)
OPERANDS = {  # of 12 rows, columns or steps
    "rows": (torch.randn(12, 4), torch.randn(3, 4, 8), ENDS),
    "k": (torch.randn(12, 8).mT, torch.randn(12, 8), ENDS),
    "columns": (torch.randn(3, 8, 4), torch.randn(4, 12), ENDS),
    "a batch": (torch.randn(3, 8, 4), torch.randn(3, 4, 12), None),
}


PADDED = torch.randn(12, 4), torch.randn(3, 8, 4)[:, :5].mT, ENDS  # rows of results are padded to 16 bytes


@pytest.fixture(params=OPERANDS)
def operands(request):
    return OPERANDS[request.param]


def product(a, b, ends):
    return torch._grouped_mm(a, b, offs=ends)


def trained(operands):
    """Return the result and the gradients of the sum of its squares."""
    a, b = (x.detach().requires_grad_() for x in operands[:2])
    result = product(a, b, operands[2])
    return [result, *torch.autograd.grad(result.square().sum(), (a, b))]


def test_result_and_gradients_are_replaced(operands):
    wanted = trained(operands)
    with enabled() as turned:
        found = trained(operands)
    for one, other in zip(found, wanted, strict=True):
        close(one, other)
        assert one.stride() == other.stride()
    assert counted(turned) == {"_grouped_mm": 3}


def test_rows_that_are_padded():
    wanted = product(*PADDED)
    with enabled():
        found = product(*PADDED)
    close(found, wanted)
    assert found.stride() == wanted.stride() == (8, 1)


def test_the_report_names_the_groups():
    with enabled() as turned:
        for _ in range(2):
            product(*OPERANDS["rows"])
        product(*OPERANDS["a batch"])
    first, second = sorted(turned.report().lines, key=lambda line: line.problem)
    assert (first.problem, first.calls, first.flops) == ("(12, 4) x (3, 4, 8) in 3 groups", 2, 2 * 2 * 12 * 4 * 8)
    assert (first.size, second.size) == ("", "8,12,4,x3")
    assert second.flops == 2 * 3 * 8 * 4 * 12


A, B, _ = OPERANDS["rows"]
PASSED_ON = {
    "dtype bfloat16": lambda: torch._grouped_mm(
        A[:, :].bfloat16().repeat(1, 2), B.bfloat16().repeat(1, 2, 1), offs=ENDS
    ),
    "an empty operand": lambda: torch._grouped_mm(A[:0], B, offs=0 * ENDS),
}


@pytest.mark.parametrize("reason", PASSED_ON)
def test_passed_on(reason):
    wanted = PASSED_ON[reason]()
    with enabled() as turned:
        close(PASSED_ON[reason](), wanted)
    assert counted(turned)[f"_grouped_mm: {reason}"] == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch._grouped_mm(A, B),
        lambda: torch._grouped_mm(A, B, offs=ENDS.long()),
        lambda: torch._grouped_mm(A, B, offs=ENDS[None]),
        lambda: torch._grouped_mm(A, B, offs=ENDS[1:]),
        lambda: torch._grouped_mm(A, B, offs=ENDS, bias=torch.ones(8)),
        lambda: torch._grouped_mm(A, B, offs=ENDS, out_dtype=torch.bfloat16),
        lambda: torch._grouped_mm(A, B[:, :3], offs=ENDS),
        lambda: torch._grouped_mm(A[:, :3].contiguous(), B[:, :3], offs=ENDS),
        lambda: torch._grouped_mm(torch.randn(12, 8)[:, ::2], B, offs=ENDS),
        lambda: torch._grouped_mm(B, B, offs=ENDS),
        lambda: torch._grouped_mm(B, B[:1].mT),
        lambda: torch._grouped_mm(A, B.double(), offs=ENDS),
    ],
)
def test_what_pytorch_refuses_gets_its_own_error(call):
    assert_refused_as_by_pytorch(call)


def test_one_order_of_summation(fresh_machine, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    a, b, ends = OPERANDS["rows"]
    with enabled(batch_invariant=True) as turned:
        assert torch.equal(product(a, b, ends)[:3], a[:3] @ b[0])
    assert counted(turned) == {"_grouped_mm": 1, "mm": 1}
    with enabled(precision="fp16x3", batch_invariant=True) as turned:
        assert torch.equal(product(a, b, ends)[:3], a[:3] @ b[0])
    reason = "_grouped_mm: the order on tensor cores, which the products of single groups have"
    assert counted(turned)[reason] == 1 and counted(turned)["mm.out"] == 2  # one is empty


def test_only_some_operators():
    with enabled(only="grouped_mm") as turned:
        product(*OPERANDS["rows"])
        torch.mm(A, B[0])
    assert counted(turned) == {"_grouped_mm": 1}


def test_every_layout_has_a_kernel_of_its_own_on_a_device(device, monkeypatch):
    monkeypatch.setattr(execution, "gpu_of", lambda ordinal: device)
    monkeypatch.setattr(execution, "current_stream", lambda ordinal: 5)
    for operands in (*OPERANDS.values(), PADDED):
        wanted = product(*operands)
        with enabled() as turned:
            close(product(*operands), wanted)
            close(product(*operands), wanted)
        assert counted(turned) == {"_grouped_mm": 2}
    assert [handle for handle, _ in device.launched] == 10 * [5]


def test_beside_the_launcher(launcher, device):
    with enabled() as outer:
        close(product(*OPERANDS["rows"]), A.new_tensor(0) + torch.cat([A[:3] @ B[0], A[3:] @ B[2]]))
        with enabled() as inner:
            for _ in range(2):
                product(*OPERANDS["rows"])
                torch.mm(A, B[0])
        product(*OPERANDS["rows"])
    product(*OPERANDS["rows"])
    assert counted(inner) == {"_grouped_mm": 2, "mm": 2}
    assert counted(outer)["_grouped_mm"] == 2


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_whole_with_gradients(backend, operands):
    if backend == "inductor":
        pytest.importorskip("torch._inductor.kernel.mm_grouped")
    torch.compiler.reset()
    wanted = trained(operands)
    with enabled() as turned:
        a, b = (x.detach().requires_grad_() for x in operands[:2])
        compiled = torch.compile(
            lambda a, b: product(a, b, operands[2]).square().sum(), fullgraph=True, backend=backend
        )
        found = torch.autograd.grad(compiled(a, b), (a, b))
    for one, other in zip(found, wanted[1:], strict=True):
        close(one, other)
    assert counted(turned) == {"_grouped_mm": 3}
    close(compiled(a, b), wanted[0].square().sum())  # with the switch off
    assert counted(turned) == {"_grouped_mm": 3}


def test_other_types_are_compiled_as_before():
    a, b = torch.randn(12, 8).bfloat16(), torch.randn(3, 8, 8).bfloat16()
    wanted = product(a, b, ENDS)
    with enabled() as turned:
        close(torch.compile(lambda a: product(a, b, ENDS), fullgraph=True, backend="aot_eager")(a), wanted)
        with pytest.raises(RuntimeError, match="Bias tensor"):
            torch._grouped_mm(a.to("meta"), b.to("meta"), offs=ENDS.to("meta"), bias=b[0].to("meta"))
    assert counted(turned)["_grouped_mm: dtype bfloat16"] == 1


def test_a_layer_of_experts_learns_as_in_float64():
    with enabled() as turned:
        assert_learns_as_in_float64(product)
    assert counted(turned)["_grouped_mm"] == 5 * 5  # the tokens have no gradient
    assert not any(": " in key and "float64" not in key for key in counted(turned))


@pytest.mark.skipif(not hasattr(torch, "_foreach_mm"), reason="this PyTorch has no _foreach_mm")
def test_a_list_of_products():
    """PyTorch computes it by products and grouped products, which are replaced."""
    left, right = [A, A[:5], B[0].mT], [B[0], B[1], A.mT]
    wanted = torch._foreach_mm(left, right)
    with enabled() as turned:
        for one, other in zip(torch._foreach_mm(left, right), wanted, strict=True):
            close(one, other)
    assert sum(counted(turned).values()) == 3 and set(counted(turned)) <= {"mm", "mm.out"}
