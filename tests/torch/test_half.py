"""16-bit operands in PyTorch: the operator, its gradients, and `linear_fp32`."""

import pytest
import torch

import fastsgemm
from fastsgemm.errors import DTypeError
from fastsgemm.torch import linear_fp32

pytestmark = pytest.mark.usefixtures("on_host")
OPERATOR = torch.ops.fastsgemm.sgemm
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
