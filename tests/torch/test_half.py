"""16-bit operands in PyTorch: the operator, its gradients, and `linear_fp32`."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import fastsgemm  # noqa: E402
import fastsgemm.torch  # noqa: E402
from fastsgemm.errors import DTypeError  # noqa: E402
from fastsgemm.request import resolve  # noqa: E402
from fastsgemm.torch import linear_fp32, overrides  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_host")
OPERATOR = torch.ops.fastsgemm.sgemm
HALVES = torch.bfloat16, torch.float16
PAIRS = [(torch.bfloat16, torch.float32), (torch.float32, torch.float16), (torch.bfloat16, torch.bfloat16)]


def values(*shape, dtype=torch.float32, grad=False):
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
@pytest.mark.parametrize(("of_a", "of_b"), PAIRS)
def test_the_result_is_that_of_the_cast_operands(of_a, of_b, precision):
    A, B, C = values(5, 7, dtype=of_a), values(7, 3, dtype=of_b), values(5, 3)
    result = OPERATOR(A, B, 2.0, 0.5, C, precision=precision)
    assert result.dtype is torch.float32
    torch.testing.assert_close(result, 2 * (A.float() @ B.float()) + 0.5 * C)
    batched = OPERATOR(A.expand(4, 5, 7), B.expand(4, 7, 3), precision=precision)
    torch.testing.assert_close(batched[3], A.float() @ B.float())


@pytest.mark.parametrize(("of_a", "of_b"), PAIRS)
def test_gradients_have_the_types_of_the_operands(of_a, of_b):
    """They are those of the cast operands, rounded once."""
    A, B = values(5, 7, dtype=of_a, grad=True), values(7, 3, dtype=of_b, grad=True)
    a, b = (x.detach().float().requires_grad_() for x in (A, B))
    upstream = values(5, 3)
    OPERATOR(A, B, precision="ieee").backward(upstream)
    (a @ b).backward(upstream)
    for half, whole in ((A, a), (B, b)):
        assert half.grad.dtype is half.dtype
        torch.testing.assert_close(half.grad, whole.grad.to(half.dtype))


def test_sgemm_on_tensors_with_gradients_goes_through_the_operator():
    A, B = values(5, 7, dtype=torch.bfloat16, grad=True), values(7, 3)
    result = fastsgemm.sgemm(A, B, precision="ieee")
    assert result.requires_grad and result.dtype is torch.float32
    result.sum().backward()
    assert A.grad.dtype is torch.bfloat16
    with pytest.raises(DTypeError, match="A must be float32, got bfloat16; 16-bit operands need a precision by name"):
        fastsgemm.sgemm(A, B)
    with pytest.raises(DTypeError, match="C must be float32"):
        fastsgemm.sgemm(A, B, 1.0, 1.0, values(5, 3, dtype=torch.bfloat16), precision="ieee")


def test_the_gram_product_has_one_gradient():
    A = values(5, 7, dtype=torch.bfloat16, grad=True)
    a = A.detach().float().requires_grad_()
    OPERATOR(A, A.mT, precision="ieee").square().sum().backward()
    (a @ a.mT).square().sum().backward()
    assert A.grad.dtype is torch.bfloat16
    torch.testing.assert_close(A.grad.float(), a.grad, rtol=2**-7, atol=0.2)


@pytest.mark.parametrize(
    ("A", "B", "C", "how", "message"),
    [
        (torch.bfloat16, torch.float32, None, {}, "A must be torch.float32, got torch.bfloat16; 16-bit operands need"),
        (torch.float32, torch.float16, None, {}, "B must be torch.float32, got torch.float16; 16-bit operands need"),
        (torch.float64, torch.float32, None, {"precision": "ieee"}, "A must be torch.float32, got torch.float64"),
        (torch.bfloat16, torch.float32, torch.bfloat16, {"precision": "ieee"}, "C must be torch.float32"),
    ],
)
def test_what_is_refused(A, B, C, how, message):
    operands = [values(3, 3, dtype=A), values(3, 3, dtype=B), 1.0, 0.0 if C is None else 1.0]
    operands += [] if C is None else [values(3, 3, dtype=C)]
    with pytest.raises(RuntimeError, match=message):
        OPERATOR(*operands, **how)
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(RuntimeError, match=message):
        OPERATOR(*(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in operands), **how)


def test_traced_code_knows_the_type_of_the_result():
    A, B = values(4, 6, dtype=torch.bfloat16), values(6, 5)
    compiled = torch.compile(
        lambda a, b: fastsgemm.sgemm(a, b, precision="ieee") + 1, backend="aot_eager", fullgraph=True
    )
    result = compiled(A, B)
    assert result.dtype is torch.float32
    torch.testing.assert_close(result, A.float() @ B + 1)


def test_pytorchs_compiler_gets_past_what_it_cannot_trace_of_a_16_bit_call():
    A, B = values(5, 7, dtype=torch.bfloat16), values(7, 3)
    with pytest.raises(DTypeError, match="16-bit operands need a precision by name"):
        torch.compile(lambda a, b: fastsgemm.sgemm(a, b), backend="eager")(A, B)
    out = torch.zeros(5, 3)
    written = torch.compile(lambda a, b, out: fastsgemm.sgemm(a, b, out=out, precision="ieee"), backend="eager")
    torch.testing.assert_close(written(A, B, out), A.float() @ B)


def test_vmap_and_jvp():
    A, B = values(3, 4, 6, dtype=torch.bfloat16), values(6, 5)
    result = torch.func.vmap(lambda a: OPERATOR(a, B, precision="ieee"))(A)
    torch.testing.assert_close(result, A.float() @ B)
    _, tangent = torch.func.jvp(lambda a: OPERATOR(a, B, precision="ieee"), (A[0],), (A[1],))
    torch.testing.assert_close(tangent, A[1].float() @ B)


@pytest.mark.parametrize("bias", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6)])
def test_linear_fp32(shape, bias):
    x, weight = values(*shape, dtype=torch.bfloat16, grad=True), values(5, 6, grad=True)
    b = None if bias is None else values(5, dtype=bias, grad=True)
    y = linear_fp32(x, weight, b)
    operands = [None if each is None else each.detach().float().requires_grad_() for each in (x, weight, b)]
    expected = torch.nn.functional.linear(*operands)
    assert y.dtype is torch.float32 and y.shape == expected.shape
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    for given, whole in zip((x, weight, b), operands, strict=True):
        if given is not None:
            assert given.grad.dtype is given.dtype
            torch.testing.assert_close(given.grad, whole.grad.to(given.dtype), rtol=2**-7, atol=0.05)


@pytest.mark.parametrize("shape", [(0,), (4, 0), (0, 6), (2, 0, 6), (2, 3, 0)])
def test_linear_fp32_of_nothing(shape):
    x, weight, bias = values(*shape, dtype=torch.bfloat16), values(5, shape[-1]), values(5)
    expected = torch.nn.functional.linear(x.float(), weight, bias)
    torch.testing.assert_close(linear_fp32(x, weight, bias), expected)


@pytest.mark.parametrize(
    ("bias", "message"),
    [(values(5, dtype=torch.float64), "torch.float64"), (values(4, 5), r"\(4, 5\)"), (values(1), r"\(1,\)")],
)
def test_linear_fp32_refuses_another_bias(bias, message):
    with pytest.raises(RuntimeError, match=f"bias must have shape .5,. .* got .*{message}"):
        linear_fp32(values(4, 6, dtype=torch.bfloat16), values(5, 6), bias)


CALLS = {
    "mm.dtype": lambda s, **how: torch.mm(s.A, s.B, **how),
    "bmm.dtype": lambda s, **how: torch.bmm(s.A3, s.B3, **how),
    "addmm.dtype": lambda s, **how: torch.addmm(s.C, s.A, s.B, beta=2, alpha=0.5, **how),
    "baddbmm.dtype": lambda s, **how: torch.baddbmm(s.C3, s.A3, s.B3, beta=2, alpha=0.5, **how),
}


class TestSwitch:
    """PyTorch has these forms on CUDA only. So kernels of theirs are registered for the CPU here."""

    A, B, C = values(3, 4, dtype=torch.bfloat16), values(4, 5, dtype=torch.bfloat16), values(3, 5)
    A3, B3, C3 = A.expand(2, 3, 4), values(2, 4, 5, dtype=torch.bfloat16), values(2, 3, 5)

    @pytest.fixture(autouse=True)
    def passed_on(self):
        """The forms that PyTorch's kernels were called with."""
        called, library = [], torch.library.Library("aten", "IMPL")
        for operator in ("mm", "bmm", "addmm", "baddbmm"):

            def of_dtype(*given, operator=operator, **how):
                called.append(operator)
                dtype = given[-1]
                return getattr(torch, operator)(*(x.float() for x in given[:-1]), **how).to(dtype)

            def of_out(*given, operator=operator, out, **how):
                called.append(operator)
                return out.copy_(getattr(torch, operator)(*(x.float() for x in given[:-1]), **how))

            library.impl(f"{operator}.dtype", of_dtype, "CPU")
            library.impl(f"{operator}.dtype_out", of_out, "CPU")
        yield called
        library._destroy()

    def report(self, turned):
        return {(line.operator, line.reason) for line in turned.report().lines if ".dtype" in line.operator}

    @pytest.mark.parametrize("form", CALLS)
    def test_ieee_leaves_them_to_tensor_cores(self, form, passed_on):
        with fastsgemm.torch.enabled(device="cpu") as turned:
            CALLS[form](self, out_dtype=torch.float32)
        assert passed_on and not self.report(turned)

    @pytest.mark.parametrize("form", CALLS)
    def test_replaced(self, form, passed_on):
        call = CALLS[form]
        wanted = call(self, out_dtype=torch.float32)
        del passed_on[:]
        out = torch.empty_like(wanted)
        with fastsgemm.torch.enabled("fp16x3", device="cpu") as turned:
            found = [call(self, out_dtype=torch.float32) for _ in range(2)]
            call(self, out_dtype=torch.float32, out=out)
        assert not passed_on and self.report(turned) == {(form, ""), (f"{form}_out", "")}
        for one in (*found, out):
            assert one.dtype is torch.float32
            torch.testing.assert_close(one, wanted)

    @pytest.mark.parametrize(
        ("reason", "call"),
        {
            "out_dtype bfloat16": lambda A, B: torch.mm(A, B, out_dtype=torch.bfloat16),
            "dtype float32": lambda A, B: torch.mm(A.float(), B.float(), out_dtype=torch.float32),
            "factors of two dtypes, which PyTorch refuses": lambda A, B: torch.mm(A, B.half(), out_dtype=torch.float32),
            "an empty operand": lambda A, B: torch.mm(A[:, :0], B[:0], out_dtype=torch.float32),
        }.items(),
    )
    def test_passed_on(self, reason, call, passed_on):
        with fastsgemm.torch.enabled("fp16x3", device="cpu") as turned:
            result = call(self.A, self.B)
        assert passed_on == ["mm"] and self.report(turned) == {("mm.dtype", reason)}
        torch.testing.assert_close(result, call(self.A, self.B))

    def test_a_16_bit_source_is_passed_on(self, passed_on):
        with fastsgemm.torch.enabled("fp16x3", device="cpu") as turned:
            torch.addmm(self.C.bfloat16(), self.A, self.B, out_dtype=torch.float32)
        assert passed_on == ["addmm"] and self.report(turned) == {("addmm.dtype", "dtype bfloat16")}

    def test_the_simulated_device(self, fresh_machine, monkeypatch, passed_on):
        monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
        with fastsgemm.torch.enabled("fp16x3", device="cpu"):
            found = torch.mm(self.A, self.B, out_dtype=torch.float32)
        assert not passed_on
        torch.testing.assert_close(found, self.A.float() @ self.B.float())

    def test_both_16_bit_types_have_their_own_decisions(self):
        with fastsgemm.torch.enabled("fp16x3", device="cpu"):
            found = [torch.mm(self.A.to(dtype), self.B.to(dtype), out_dtype=torch.float32) for dtype in HALVES]
        for result, dtype in zip(found, HALVES, strict=True):
            torch.testing.assert_close(result, self.A.to(dtype).float() @ self.B.to(dtype).float())

    def test_tf32_is_about_float32_factors(self, monkeypatch, passed_on):
        monkeypatch.setattr("fastsgemm.torch.overrides.fp32_precision", lambda: "tf32")
        override = overrides.Override("mm.dtype", resolve(precision="fp16x3"), "cuda")
        found, decision = override.multiply(self.A, self.B, None, None, None, None, torch.float32)
        assert found is not None and not decision.reason


SHAPES = {"A": (3, 4), "B": (4, 5), "C": (3, 5)}
IN_ORDER = {"precision": "fp16x3", "batch_invariant": True, "device": "cpu"}
ROUNDED = {
    "mm": lambda s, **how: torch.mm(s.A, s.B, **how),
    "bmm": lambda s, **how: torch.bmm(s.A3, s.B3, **how),
    "addmm": lambda s, **how: torch.addmm(s.C, s.A, s.B, beta=2, alpha=0.5, **how),
    "baddbmm": lambda s, **how: torch.baddbmm(s.C3, s.A3, s.B3, beta=2, alpha=0.5, **how),
    "addmm of a linear layer": lambda s, **how: torch.nn.functional.linear(s.A, s.B.mT, s.C[0]),
}


@pytest.fixture(params=["python", "launcher"])
def gpu(request, device, monkeypatch):
    """The device, whose calls take the way through Python or, but for the first of a kind, the launcher."""
    if request.param == "launcher":
        request.getfixturevalue("launcher")
    monkeypatch.setattr("fastsgemm.torch.execution.gpu_of", lambda ordinal: device)
    monkeypatch.setattr("fastsgemm.torch.execution.current_stream", lambda ordinal: 5)
    return device


class TestRounded:
    """The products of a 16-bit model, which one order of summation on tensor cores replaces."""

    @pytest.fixture(params=HALVES, ids=str)
    def factors(self, request):
        of = {name: values(*shape, dtype=request.param) for name, shape in SHAPES.items()}
        return SimpleNamespace(**of, **{f"{name}3": x.expand(2, *x.shape) for name, x in of.items()})

    @pytest.mark.parametrize("form", ROUNDED)
    def test_replaced(self, form, factors, gpu):
        call = ROUNDED[form]
        wanted = call(SimpleNamespace(**{name: x.float() for name, x in vars(factors).items()}))
        with fastsgemm.torch.enabled(**IN_ORDER) as turned:
            found = [call(factors) for _ in range(2)]
            out = torch.empty_like(found[0])
            if "layer" not in form:
                found.append(call(factors, out=out))
        assert not [line for line in turned.report().lines if line.reason]
        for result in found:
            assert result.dtype is factors.A.dtype
            torch.testing.assert_close(result, wanted.to(result.dtype))

    def test_in_place(self, factors, gpu):
        wanted = (factors.C.float() + factors.A.float() @ factors.B.float()).to(factors.A.dtype)
        with fastsgemm.torch.enabled(**IN_ORDER):
            for _ in range(2):
                c = factors.C.clone()
                assert c.addmm_(factors.A, factors.B) is c
                torch.testing.assert_close(c, wanted)

    def test_tf32_does_not_matter(self, factors, gpu, monkeypatch):
        monkeypatch.setattr("fastsgemm.torch.overrides.fp32_precision", lambda: "tf32")
        override = overrides.Override("mm", resolve(precision="fp16x3", batch_invariant=True), "cuda")
        found, _ = override.multiply(factors.A, factors.B, None, None, None, None, None)
        assert found is not None

    @pytest.mark.parametrize("how", [{"precision": "fp16x3"}, {"batch_invariant": True}, {}], ids=str)
    def test_one_without_the_other_leaves_them_to_pytorch(self, how, factors, gpu):
        name = str(factors.A.dtype).removeprefix("torch.")
        with fastsgemm.torch.enabled(**how, device="cpu") as turned:
            for _ in range(2):
                torch.mm(factors.A, factors.B)
        assert {(line.operator, line.reason, line.calls) for line in turned.report().lines} == {
            ("mm", f"dtype {name}", 2)
        }

    def test_factors_and_sums_of_two_types_are_passed_on(self, factors, gpu):
        with fastsgemm.torch.enabled(**IN_ORDER) as turned, pytest.raises(RuntimeError):
            torch.mm(factors.A, factors.B.float())
        with fastsgemm.torch.enabled(**IN_ORDER) as other, pytest.raises(RuntimeError):
            torch.addmm(factors.C.float(), factors.A, factors.B)
        reasons = [line.reason for turn in (turned, other) for line in turn.report().lines]
        assert reasons == ["factors of two dtypes, which PyTorch refuses", "dtype float32"]

    def test_gradients_are_replaced_too(self, factors, gpu):
        A, B = factors.A.clone().requires_grad_(), factors.B.clone().requires_grad_()
        with fastsgemm.torch.enabled(**IN_ORDER) as turned:
            torch.mm(A, B).sum().backward()
        assert sum(line.calls for line in turned.report().lines if not line.reason) == 3
        torch.testing.assert_close(A.grad, B.detach().sum(1).expand(3, 4), rtol=0.02, atol=0.02)
        assert B.grad.dtype is B.dtype


def test_forms_that_pytorch_has_no_kernel_of_are_left_out():
    with fastsgemm.torch.enabled("fp16x3", device="cpu") as turned:
        assert not [each.name for each in turned._overrides if ".dtype" in each.name]
    with pytest.raises(NotImplementedError):
        torch.mm(TestSwitch.A, TestSwitch.B, out_dtype=torch.float32)
