"""torch.ops.fastsgemm.sgemm: its values, its derivatives, and that PyTorch's transforms and compilers accept it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradient_reversal import Reversed  # noqa: E402

import fastsgemm.torch  # noqa: F401, E402  (registers the operator)
from fastsgemm import (  # noqa: E402
    DeviceMismatchError,
    DTypeError,
    OperandError,
    OverlapError,
    ScalarError,
    ScalarRangeError,
    ShapeError,
    sgemm,
)
from fastsgemm.call import arrays  # noqa: E402

OPERATOR = torch.ops.fastsgemm.sgemm

# The product is linear in each operand, so central differences have no truncation error, however large the step.
DIFFERENCES = {"eps": 0.25, "atol": 1e-3, "rtol": 1e-3}

pytestmark = [
    pytest.mark.usefixtures("on_host"),
    pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double precision"),
]


def values(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


def learned(*shape):
    return values(*shape).requires_grad_()


def both(A, B, C=None, alpha=2.0, beta=0.5):
    """Return the operator and what it stands for, as functions of A, B and C."""
    return (
        lambda a, b, c: OPERATOR(a, b, alpha, beta if c is not None else 0.0, c),
        lambda a, b, c: alpha * (a @ b) + (beta * c if c is not None else 0.0),
    )


def equal(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


class TestValues:
    @pytest.mark.parametrize("transposed", [(), (0,), (1,), (0, 1)])
    def test_layouts(self, transposed):
        A, B = values(3, 4), values(4, 5)
        A = values(4, 3).t() if 0 in transposed else A
        B = values(5, 4).t() if 1 in transposed else B
        equal(OPERATOR(A, B), A @ B)

    def test_c_is_read_and_left(self):
        A, B, C = values(3, 4), values(4, 5), values(3, 5)
        old = C.clone()
        equal(OPERATOR(A, B, 2.0, 0.5, C), 2 * A @ B + 0.5 * C)
        assert torch.equal(C, old)

    def test_beta_zero_does_not_read_c(self):
        assert not OPERATOR(values(3, 4), values(4, 5), 1.0, 0.0, torch.full((3, 5), torch.nan)).isnan().any()

    def test_a_batch(self):
        A, B, C = values(2, 6, 3, 4), values(2, 6, 4, 5), values(2, 6, 3, 5)
        equal(OPERATOR(A, B), A @ B)
        equal(OPERATOR(A, B, 2.0, 0.5, C), 2 * A @ B + 0.5 * C)
        equal(OPERATOR(A, B[:, :1].expand(2, 6, 4, 5)), A @ B[:, :1])

    def test_one_order_of_summation(self, fresh_machine, monkeypatch):
        monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
        A, B = learned(5, 1100), values(1100, 6)
        result = OPERATOR(A, B, batch_invariant=True)
        assert torch.equal(result[2:3], OPERATOR(A[2:3], B, batch_invariant=True))
        assert torch.equal(result, sgemm(A, B, batch_invariant=True))
        result.sum().backward()
        equal(A.grad, torch.ones(5, 6) @ B.T)
        how = {"precision": "fp16x3", "batch_invariant": True}
        assert torch.equal(OPERATOR(A, B, **how)[2:3], OPERATOR(A[2:3], B, **how))

    def test_nothing_to_sum(self):
        C = values(3, 5)
        assert torch.equal(OPERATOR(values(3, 0), values(0, 5)), torch.zeros(3, 5))
        assert torch.equal(OPERATOR(values(3, 0), values(0, 5), 1.0, 2.0, C), 2 * C)
        assert OPERATOR(values(0, 4), values(4, 5)).shape == (0, 5)

    def test_the_result_is_new_and_row_major(self):
        A, B, C = values(4, 4), values(4, 4), values(4, 4).t()
        result = OPERATOR(A, B, 1.0, 1.0, C)
        assert result.is_contiguous() and result.data_ptr() not in (A.data_ptr(), B.data_ptr(), C.data_ptr())


class TestRefusals:
    """What torch.mm refuses is refused, with its kind of error."""

    @pytest.mark.parametrize(
        ("A", "B", "more", "message"),
        [
            ((3, 4), (3, 4), (), "A's columns must equal B's rows, got A \\(3, 4\\) and B \\(3, 4\\)"),
            ((4,), (4, 5), (), "A must have at least 2 dimensions, got 1"),
            ((2, 3, 4), (4, 5), (), "dimensions \\(2,\\) of A before the last two, B has \\(\\)"),
            ((2, 3, 4), (1, 4, 5), (), "dimensions \\(2,\\) of A before the last two, B has \\(1,\\)"),
            ((3, 4), (4, 5), (1.0, 1.0), "beta must be 0 when C is not given, got 1.0"),
            ((3, 4), (4, 5), (1.0, 1.0, torch.ones(3, 6)), "C must have 5 columns, got \\(3, 6\\)"),
            ((3, 4), (4, 5), (1.0, 1.0, torch.ones(2, 5)), "C must have 3 rows, got \\(2, 5\\)"),
        ],
    )
    def test_shapes(self, A, B, more, message):
        for device in ("cpu", "meta"):
            given = [x.to(device) if isinstance(x, torch.Tensor) else x for x in more]
            with pytest.raises(RuntimeError, match=message):
                OPERATOR(torch.ones(A, device=device), torch.ones(B, device=device), *given)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, torch.complex64])
    def test_dtypes_are_not_cast(self, dtype):
        with pytest.raises(RuntimeError, match=f"B must be torch.float32, got {dtype}"):
            OPERATOR(torch.ones(3, 3), torch.ones(3, 3, dtype=dtype))

    def test_devices(self):
        with pytest.raises((RuntimeError, NotImplementedError)):
            OPERATOR(torch.ones(3, 3), torch.ones(3, 3, device="meta"))

    def test_precision(self):
        with pytest.raises(ValueError, match="precision"):
            OPERATOR(torch.ones(3, 3), torch.ones(3, 3), precision="fp8")

    @pytest.mark.parametrize("name", ["alpha", "beta"])
    def test_a_factor_that_is_a_tensor_would_lose_its_gradient(self, name):
        A, B, C, factor = values(3, 4), values(4, 5), values(3, 5), torch.tensor(2.0)

        def product(factor):
            return OPERATOR(A, B, C=C, **{name: factor}).sum()

        message = f"value of type 'number' for argument '{name}' but instead found type '(Tensor|Parameter)'"
        with pytest.raises(RuntimeError, match=message):
            product(factor)
        with pytest.raises(RuntimeError, match=message):
            product(torch.nn.Parameter(factor))
        for transformed in (torch.func.grad(product), torch.func.jacfwd(product)):
            with pytest.raises(RuntimeError, match=message):
                transformed(factor)
        with pytest.raises(TypeError, match=f"{name} must be a real number, got complex"):
            product(2j)


class TestDerivatives:
    def test_first(self):
        function = both(0, 0)[0]
        given = learned(3, 4), learned(4, 5), learned(3, 5)
        more = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
        assert torch.autograd.gradcheck(function, given, **more, **DIFFERENCES)

    def test_second(self):
        given = learned(3, 4), learned(4, 5), learned(3, 5)
        assert torch.autograd.gradgradcheck(both(0, 0)[0], given, check_fwd_over_rev=True, **DIFFERENCES)

    def test_of_a_batch(self):
        given = learned(2, 3, 4), learned(2, 4, 2), learned(2, 3, 2)
        more = {"check_forward_ad": True, "check_batched_grad": True}
        assert torch.autograd.gradcheck(both(0, 0)[0], given, **more, **DIFFERENCES)
        assert torch.autograd.gradgradcheck(both(0, 0)[0], given, **DIFFERENCES)

    def test_gradcheck_would_notice(self, monkeypatch):
        from fastsgemm.torch import operator

        real = operator._Differentiable.backward
        wrong = staticmethod(lambda ctx, gradient: real(ctx, 1.01 * gradient))
        monkeypatch.setattr(operator._Differentiable, "backward", wrong)
        with pytest.raises(torch.autograd.gradcheck.__globals__["GradcheckError"]):
            torch.autograd.gradcheck(both(0, 0)[0], (learned(3, 4), learned(4, 5), learned(3, 5)), **DIFFERENCES)

    def test_only_what_is_asked_for(self):
        A, B = learned(3, 4), values(4, 5)
        OPERATOR(A, B).sum().backward()
        equal(A.grad, torch.ones(3, 5) @ B.T)
        assert B.grad is None

    def test_no_gradient_without_need(self):
        assert not OPERATOR(values(3, 4), values(4, 5)).requires_grad
        with torch.no_grad():
            assert not OPERATOR(learned(3, 4), values(4, 5)).requires_grad
        with torch.inference_mode():
            assert OPERATOR(values(3, 4), values(4, 5)).is_inference()

    def test_a_parameter(self):
        weight = torch.nn.Parameter(values(4, 5))
        OPERATOR(values(3, 4), weight).square().sum().backward()
        assert weight.grad.shape == (4, 5)

    def test_torch_func(self):
        ours, plain = both(0, 0)
        A, B, C = values(3, 4), values(4, 5), values(3, 5)
        jacrev, jacfwd = torch.func.jacrev, torch.func.jacfwd
        for outer in (jacrev, jacfwd):
            equal(*(outer(lambda a, f=f: f(a, B, C))(A) for f in (ours, plain)))
            for inner in (jacrev, jacfwd):
                equal(*(outer(inner(lambda a, f=f: f(a, B, C).pow(3).sum()))(A) for f in (ours, plain)))
        equal(*(torch.func.jvp(lambda a, b, f=f: f(a, b, C), (A, B), (A + 1, B))[1] for f in (ours, plain)))


BATCHES = [(0, None, None), (None, 0, None), (0, 0, None), (0, 0, 0), (None, 0, 0), (2, 1, 0), (None, None, 0)]


@pytest.mark.parametrize("dims", BATCHES)
class TestVmap:
    def operands(self, dims, size=6):
        shapes = ((3, 4), (4, 5), (3, 5))
        return [
            values(*shape) if dim is None else values(size, *shape).movedim(0, dim)
            for shape, dim in zip(shapes, dims, strict=True)
        ]

    def test_values(self, dims):
        given = self.operands(dims)
        equal(*(torch.func.vmap(function, dims)(*given) for function in both(0, 0)))

    def test_an_empty_batch(self, dims):
        given = self.operands(dims, 0)
        for outer in (lambda f: f, lambda f: torch.func.grad(lambda *x: f(*x).square().sum())):
            found, wanted = (torch.func.vmap(outer(function), dims)(*given) for function in both(0, 0))
            assert found.shape == wanted.shape and found.numel() == 0

    def test_a_batch_within(self, dims):
        shapes = ((2, 3, 4), (2, 4, 5), (2, 3, 5))
        given = [
            values(*shape) if dim is None else values(6, *shape).movedim(0, dim)
            for shape, dim in zip(shapes, dims, strict=True)
        ]
        equal(*(torch.func.vmap(function, dims)(*given) for function in both(0, 0)))

    def test_gradient_of_a_batch(self, dims):
        A, B, C = self.operands(dims)
        for argnum in range(3):
            equal(*(
                torch.func.grad(lambda *x, f=f: torch.func.vmap(f, dims)(*x).square().sum(), argnum)(A, B, C)
                for f in both(0, 0)
            ))  # fmt: skip

    def test_batch_of_gradients(self, dims):
        given = self.operands(dims)
        equal(*(
            torch.func.vmap(torch.func.grad(lambda *x, f=f: f(*x).square().sum()), dims)(*given) for f in both(0, 0)
        ))  # fmt: skip


@pytest.mark.parametrize(
    ("A", "B", "dims", "message"),
    [
        ((6, 3, 7), (4, 5), (0, None), r"A's columns must equal B's rows, got A \(3, 7\) and B \(4, 5\)"),
        ((4, 3), (6, 4, 5), (None, 0), r"A's columns must equal B's rows, got A \(4, 3\) and B \(4, 5\)"),
        ((3, 4), (6, 4), (None, 0), "B must have at least 2 dimensions, got 1"),
        ((6, 4), (4, 5), (0, None), "A must have at least 2 dimensions, got 1"),
        ((6, 2, 3, 4), (4, 5), (0, None), r"dimensions \(2,\) of A before the last two, B has \(\)"),
    ],
)
def test_errors_under_vmap_show_the_shapes_of_one_product(A, B, dims, message):
    with pytest.raises(RuntimeError, match=message):
        torch.func.vmap(OPERATOR, dims)(torch.ones(A), torch.ones(B))


def test_two_batches_are_one_product(monkeypatch):
    from fastsgemm.torch import execution

    real, shapes = execution.multiply, []
    monkeypatch.setattr(execution, "multiply", lambda *given: (shapes.append(given[-1].shape), real(*given)))
    A, B = values(7, 6, 3, 4), values(7, 6, 4, 5)
    equal(torch.func.vmap(OPERATOR)(A[0], B[0]), A[0] @ B[0])
    equal(torch.func.vmap(torch.func.vmap(OPERATOR), (0, 0))(A, B), A @ B)
    assert shapes == [(6, 3, 5), (7, 6, 3, 5)]


def by_products(monkeypatch):
    """Return a list to which the shapes of A and B of every product are added."""
    from fastsgemm.torch import execution

    real, shapes = execution.multiply, []
    monkeypatch.setattr(
        execution, "multiply", lambda A, B, *more: (shapes.append((tuple(A.shape), tuple(B.shape))), real(A, B, *more))
    )
    return shapes


class ReversedView(Reversed):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)


class ReversedTranspose(Reversed):
    @staticmethod
    def forward(ctx, x):
        return x.mT

    @staticmethod
    def backward(ctx, gradient):
        return -0.3 * gradient.mT


class TestSymmetry:
    GRAMS = {  # noqa: RUF012
        "A A^T": lambda X: (X, X.mT),
        "A^T A": lambda X: (X.mT, X),
        "no leaf": lambda X: (lambda Y: (Y, Y.mT))(2 * X),
        "T": lambda X: (X[0], X[0].T),
    }

    @pytest.mark.parametrize("name", GRAMS)
    def test_the_gradient_of_a_matrix_by_its_transpose_is_one_product(self, name, monkeypatch):
        shapes = by_products(monkeypatch)
        X, Y = learned(2, 5, 7), learned(2, 5, 7)
        (A, B), (C, D) = self.GRAMS[name](X), self.GRAMS[name](Y)
        bias = learned(*A.shape[:-1], B.shape[-1])
        found, wanted = OPERATOR(A, B, 1.5, 0.5, bias), 1.5 * (C @ D) + 0.5 * bias
        gradient = values(*found.shape)
        equal(found, wanted)
        del A, B  # as long as the view is there, its gradient may be asked for
        for one, other in zip(
            torch.autograd.grad(found, (X, bias), gradient),
            torch.autograd.grad(wanted, (Y, bias), gradient), strict=True,
        ):  # fmt: skip
            equal(one, other)
        assert len(shapes) == 2 or name == "T"  # a view of a view is not told

    def test_second_derivatives(self):
        X = learned(3, 4)
        torch.autograd.gradgradcheck(lambda x: OPERATOR(x, x.mT, 0.5), (X,), **DIFFERENCES | {"atol": 1e-2})

    OTHERS = {  # noqa: RUF012
        "its own leaf": lambda X: X.detach().mT.requires_grad_(),
        "a hook": lambda X: (lambda Y: (Y.register_hook(lambda g: 2 * g), Y)[1])(X.mT),
        "kept gradient": lambda X: (lambda Y: (Y.retain_grad(), Y)[1])(X.mT),
        "other strides": lambda X: X.mT.clone(),
        "gradient reversal": lambda X: Reversed.apply(X).mT,
        "gradient reversal of a view": lambda X: ReversedView.apply(X).mT,
        "gradient reversal after it": lambda X: Reversed.apply(X.mT),
        "gradient reversal of a transpose": lambda X: ReversedTranspose.apply(X),
        "a hook of a view between": lambda X: (lambda Y: (Y.register_hook(lambda g: 2 * g), Y.mT)[1])(X.view_as(X)),
        "negated": lambda X: torch._neg_view(X.mT),
        "not tracked": lambda X: X.detach().mT,
    }

    @pytest.mark.parametrize("matrix", [lambda: learned(3, 4), lambda: 2 * learned(3, 4)], ids=["leaf", "node"])
    @pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
    def test_a_transpose_with_a_part_of_its_own_has_its_own_gradient(self, other, matrix):
        X, Y = matrix(), matrix()
        X.retain_grad(), Y.retain_grad()
        for one, multiply in ((X, OPERATOR), (Y, torch.matmul)):
            view = other(one)
            for A, B in ((one, view), (view, one)):
                multiply(A, B).sin().sum().backward(retain_graph=True)
            one.kept = view.grad if view.is_leaf or view.retains_grad else None
        equal(X.grad, Y.grad)
        assert X.kept is Y.kept is None or torch.allclose(X.kept, Y.kept)

    WATCHERS = {  # noqa: RUF012
        "a hook": lambda V, see: V.register_hook(see),
        "a hook of its node": lambda V, see: V.grad_fn.register_hook(lambda inputs, _: (see(inputs[0]),)),
        "a hook before its node": lambda V, see: V.grad_fn.register_prehook(lambda outputs: (see(outputs[0]),)),
        "a hook of several": lambda V, see: torch.autograd.graph.register_multi_grad_hook([V], lambda g: see(g[0])),
    }

    @pytest.mark.parametrize("gone", [False, True])
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("watch", WATCHERS.values(), ids=WATCHERS)
    def test_what_watches_a_transpose_sees_its_gradient(self, watch, when, gone):
        X, Y = learned(3, 4), learned(3, 4)
        seen = {}
        for one, multiply in ((X, OPERATOR), (Y, torch.matmul)):
            view, gradients = one.mT, seen.setdefault(multiply, [])

            def see(gradient, gradients=gradients):
                gradients.append(gradient.clone())
                return 3 * gradient

            if when == "before":
                watch(view, see)
            result = multiply(one, view).cos().sum()
            if when == "after":
                watch(view, see)
            if gone:
                del view
            result.backward()
        equal(X.grad, Y.grad)
        [found], [wanted] = seen.values()
        equal(found, wanted)

    def test_the_gradient_of_a_transpose_can_be_asked_for_after_the_product(self):
        X = learned(3, 4)
        view = X.mT
        result = OPERATOR(X, view).sum()
        ones = torch.ones(3, 3)
        of_x, of_view = torch.autograd.grad(result, (X, view), retain_graph=True)
        equal(of_x, 2 * ones @ X)
        equal(of_view, X.mT @ ones)
        equal(torch.autograd.grad(result, view, retain_graph=True)[0], X.mT @ ones)
        view.retain_grad()
        result.backward(retain_graph=True)
        equal(view.grad, X.mT @ ones)
        del view
        equal(torch.autograd.grad(result, X)[0], 2 * ones @ X)

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_matrix_whose_memory_is_another_one_since_it_was_transposed(self, when):
        X, Y = learned(3, 4), learned(3, 4)
        for one, multiply in ((X, OPERATOR), (Y, torch.matmul)):
            view = one.mT
            if when == "before":
                one.data = values(4, 3).mT.contiguous() + 1
            result = multiply(one, view)
            del view
            if when == "after":
                one.data = values(4, 3).mT.contiguous() + 1
            (result * torch.arange(9.0).reshape(3, 3)).sum().backward()
            one.product = result.detach()
        equal(X.product, Y.product)
        equal(X.grad, Y.grad)

    def test_a_matrix_that_was_changed_since_is_noticed(self):
        X = 2 * learned(3, 4)
        result = OPERATOR(X, X.mT)
        X.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()

    def test_saved_tensors_that_are_kept_elsewhere(self):
        X, Y = learned(3, 4), learned(3, 4)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy(force=True).copy(), torch.from_numpy):
            for one, multiply in ((X, OPERATOR), (Y, torch.matmul)):
                multiply(one, one.mT).cos().sum().backward()
        equal(X.grad, Y.grad)

    def test_second_derivatives_of_a_transpose_that_is_watched(self):
        X, Y = learned(3, 4), learned(3, 4)
        for one, multiply in ((X, OPERATOR), (Y, torch.matmul)):
            view = one.mT
            view.register_hook(lambda g: -g)
            [first] = torch.autograd.grad(multiply(one, view).pow(3).sum(), one, create_graph=True)
            first.square().sum().backward()
        equal(X.grad / 1000, Y.grad / 1000)

    def test_a_declared_result(self):
        S = values(5, 5)
        S = S + S.T
        P, Q = (S @ S).requires_grad_(), (S @ S @ S).requires_grad_()
        found = OPERATOR(P, Q, symmetric=True)
        torch.testing.assert_close(found, P @ Q, rtol=1e-3, atol=1e-2)
        assert torch.equal(found, found.T)
        gradient = values(5, 5)
        equal(torch.autograd.grad(found, P, gradient)[0], gradient @ Q.T)
        equal(sgemm(P, Q, symmetric=True), found)
        with pytest.raises(RuntimeError, match=r"symmetric=True needs a square result, got \(3, 5\)"):
            OPERATOR(values(3, 4), values(4, 5), symmetric=True)

    def test_vmap_of_a_declared_result_is_a_batch(self):
        S = values(4, 3, 3)
        S = S + S.mT
        found = torch.func.vmap(lambda s: OPERATOR(s, S[0], symmetric=True))(S)
        assert torch.equal(found, found.mT) and found.shape == (4, 3, 3)

    @pytest.mark.parametrize("backend", ["host", "sim"])
    @pytest.mark.parametrize("needs", [True, False])
    @pytest.mark.parametrize("how", [{}, {"precision": "fp16x3"}, {"batch_invariant": True}], ids=str)
    @pytest.mark.parametrize("n", [1, 20])
    def test_a_declared_batch_that_shares_a_factor(self, n, how, needs, backend, monkeypatch):
        """Each of its results is symmetric; those of one product of more rows would not be."""
        if backend == "host" and "batch_invariant" in how:
            pytest.skip("NumPy promises no order")
        monkeypatch.setenv("FASTSGEMM_DEVICE", backend)
        S = values(n, n) / n
        S = S + S.T
        many = torch.stack([k * S @ S + torch.eye(n) for k in range(3)]).requires_grad_(needs)
        for A, B in ((many, S), (S, many), (many, S[None]), (S.expand(3, n, n), many)):
            found = sgemm(A, B, symmetric=True, **how)
            equal(found, A @ B)
            assert torch.equal(found, found.mT)
            by_vmap = torch.func.vmap(
                lambda a, b: OPERATOR(a, b, symmetric=True, **how),
                tuple(0 if x.dim() > 2 and len(x) > 1 else None for x in (A, B)),
            )(*[x[0] if len(x) == 1 < x.dim() == 3 else x for x in (A, B)])
            assert torch.equal(by_vmap, found)
        if needs:
            equal(*(torch.autograd.grad(f(many, S).sin().sum(), many)[0]
                    for f in (lambda a, b: sgemm(a, b, symmetric=True, **how), torch.matmul)))  # fmt: skip

    def test_results_that_are_not_square_are_refused_whatever_one_product_would_be(self):
        for A, B in (((3, 2, 5), (5, 6)), ((3, 3, 5), (5,)), ((5,), (2, 5, 2))):
            for make in (values, learned):
                with pytest.raises(ShapeError, match="as many rows of A as columns of B"):
                    sgemm(make(*A), make(*B), symmetric=True)
        torch._dynamo.reset()  # else the recompilations of other tests count, after which it is not traced
        with pytest.raises(RuntimeError, match="symmetric=True needs a square result"):
            torch.compile(lambda a, b: sgemm(a, b, symmetric=True), backend="eager")(values(3, 2, 5), values(5, 6))


class TestCompilers:
    @pytest.mark.parametrize("case", ["plain", "batch", "alpha, beta and C", "gradients"])
    def test_opcheck(self, case):
        make = learned if case == "gradients" else values
        given = (make(3, 4), make(4, 5)) if case == "plain" else (make(3, 4), make(4, 5), 2.0, 0.5, make(3, 5))
        if case == "batch":
            given = learned(2, 3, 4), learned(2, 4, 5)
        outcome = torch.library.opcheck(OPERATOR.default, given)
        assert set(outcome.values()) == {"SUCCESS"}

    def test_compile(self):
        compiled = torch.compile(lambda a, b: OPERATOR(a, b).relu(), fullgraph=True, dynamic=True, backend="aot_eager")
        for rows in (3, 7, 1):
            A, B = learned(rows, 4), values(4, 5)
            result = compiled(A, B)
            equal(result, (A @ B).relu())
            result.sum().backward()
            equal(A.grad, (A.detach() @ B > 0).float() @ B.T)

    def test_compile_does_not_repeat_for_a_new_size(self):
        from torch._dynamo import testing

        counter = testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(lambda a, b: OPERATOR(a, b), fullgraph=True, dynamic=True, backend=counter)
        for rows in (3, 7, 9):
            compiled(values(rows, 4), values(4, 5))
        assert counter.frame_count == 1

    def test_compile_with_a_factor_that_changes(self):
        compiled = torch.compile(
            lambda a, b, c, alpha, beta: OPERATOR(a, b, alpha, beta, c), fullgraph=True, backend="aot_eager"
        )
        A, B, C = learned(3, 4), values(4, 5), values(3, 5)
        for alpha, beta in ((1.0, 1.0), (0.5, 2.0), (3, 0), (0.25, -1.5)):
            result = compiled(A, B, C, alpha, beta)
            equal(result, alpha * (A @ B) + beta * C)
            [gradient] = torch.autograd.grad(result.sum(), A)
            equal(gradient, alpha * torch.ones(3, 5) @ B.T)

    @pytest.mark.parametrize("outer", [(), (2,)])
    def test_compile_with_batches_whose_sizes_depend_on_data(self, outer):
        """As torch.bmm, it takes them to be equal, and says so if they are not."""

        def product(x, y):
            return OPERATOR(torch.ones(*outer, x.sum().item(), 3, 4), torch.ones(*outer, y.sum().item(), 4, 5))

        compiled = torch.compile(product, fullgraph=True, backend="aot_eager")
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            result = compiled(torch.ones(3, dtype=int), torch.ones(3, dtype=int))
            equal(result, torch.full((*outer, 3, 3, 5), 4.0))
            with pytest.raises(RuntimeError, match="assertion failed"):
                compiled(torch.ones(3, dtype=int), torch.tensor([1, 1, 0]))

    def test_export(self):
        class Module(torch.nn.Module):
            def forward(self, a, b):
                return OPERATOR(a, b)

        sizes = ({0: torch.export.Dim("rows")}, None)
        program = torch.export.export(Module(), (values(3, 4), values(4, 5)), dynamic_shapes=sizes)
        A, B = values(9, 4), values(4, 5)
        equal(program.module()(A, B), A @ B)
        assert "fastsgemm.sgemm" in str(program.graph)

    def test_fake_tensors(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            made = OPERATOR(torch.empty(3, 4, device="cuda"), torch.empty(4, 5, device="cuda"))
        assert (made.shape, made.device.type, made.dtype) == ((3, 5), "cuda", torch.float32)

    @pytest.mark.parametrize("which", range(3))
    @pytest.mark.parametrize("first", [0, 1])
    def test_an_operand_without_memory(self, which, first):
        A, B, C = (values(rows + first, columns)[first:] for rows, columns in ((3, 4), (4, 5), (3, 5)))
        (A, B, C)[which].untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=f"{'ABC'[which]} has no memory"):
            OPERATOR(A, B, 1.0, 1.0, C)

    def test_autocast_is_left_alone(self):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert OPERATOR(values(3, 4), values(4, 5)).dtype is torch.float32


def test_numpy_sees_the_same(random):
    A, B = random(3, 4), random(4, 5)
    np.testing.assert_array_equal(OPERATOR(torch.from_numpy(A), torch.from_numpy(B)).numpy(), A @ B)


COMPILED = {
    "new": lambda a, b, c: sgemm(a, b).relu(),
    "alpha": lambda a, b, c: sgemm(a, b, 0.5),
    "C": lambda a, b, c: sgemm(a, b, 2.0, 0.5, c * 1.0),
    "C in place": lambda a, b, c: sgemm(a, b, 2.0, 0.5, c) + c,
    "batch": lambda a, b, c: sgemm(torch.stack([a, -a]), b),
    "vector": lambda a, b, c: sgemm(a, b[:, 0]),
}


# With what C shares memory, if anything, and a call whose operands are parts of a matrix of 8 x 8.
OVERLAPPING = {
    "C is A": ("with A", lambda x: sgemm(x, values(8, 8), 1.0, 0.0, x)),
    "C is B": ("with B", lambda x: sgemm(values(8, 8), x, 1.0, 1.0, x)),
    "C is a row of A": ("with A", lambda x: sgemm(x[:4], values(8, 8), C=x[3:7])),
    "C is A transposed": ("with A", lambda x: sgemm(x, values(8, 8), C=x.t())),
    "C overlaps itself": ("elements of C", lambda x: sgemm(values(8, 8), values(8, 8), C=x[:1].expand(8, 8))),
    "C lies beside A": ("", lambda x: sgemm(x[:4], values(8, 8), C=x[4:])),
    "C lies between the columns of A": ("", lambda x: sgemm(x[:, ::2], values(4, 4), C=x[:, 1::2])),
}


class TestSgemmItself:
    """`fastsgemm.sgemm` on tensors that have gradients, tangents, or no memory."""

    def test_gradients(self):
        A, B = learned(3, 4), learned(4, 5)
        assert torch.autograd.gradcheck(lambda a, b: sgemm(a, b, 2.0), (A, B), **DIFFERENCES)

    @pytest.mark.parametrize(
        ("a", "b"),
        [((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5)),
         ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5))],
    )  # fmt: skip
    def test_gradients_of_batches_and_vectors(self, a, b):
        A, B = learned(*a), learned(*b)
        result, wanted = sgemm(A, B), torch.matmul(A, B)
        equal(result, wanted)
        weights = torch.randn(wanted.shape)
        for found, expected in zip(*(torch.autograd.grad(x, (A, B), weights) for x in (result, wanted)), strict=True):
            equal(found, expected)

    def test_c_is_updated_and_has_a_gradient(self):
        A, B, old = values(3, 4), learned(4, 5), learned(3, 5)
        C = old.clone()
        result = sgemm(A, B, 2.0, 0.5, C)
        assert result is C
        equal(C, 2 * A @ B + 0.5 * old)
        C.sum().backward()
        equal(B.grad, 2 * A.T @ torch.ones(3, 5))
        equal(old.grad, torch.full((3, 5), 0.5))

    def test_c_that_is_learned_itself_is_refused_by_pytorch(self):
        C = learned(3, 5)
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            sgemm(values(3, 4), values(4, 5), C=C)

    def test_parameters_under_no_grad(self):
        weight = torch.nn.Parameter(values(4, 5))
        with torch.no_grad():
            result = sgemm(values(3, 4), weight)
            assert sgemm(values(4, 4), values(4, 5), C=weight) is weight
        assert not result.requires_grad

    def test_transforms(self):
        A, B = values(6, 3, 4), values(4, 5)
        equal(torch.vmap(lambda a: sgemm(a, B))(A), A @ B)
        equal(torch.func.grad(lambda a: sgemm(a, B).sum())(A[0]), torch.ones(3, 5) @ B.T)
        equal(torch.func.jvp(lambda a: sgemm(a, B), (A[0],), (A[1],))[1], A[1] @ B)
        equal(torch.func.functionalize(lambda a: sgemm(a, B))(A[0]), A[0] @ B)
        equal(torch.func.functionalize(lambda a: sgemm(a[1:], B))(A[0]), A[0, 1:] @ B)

    @pytest.mark.sampled(every=3)  # of 24: each call
    @pytest.mark.parametrize("seen", [True, False])
    @pytest.mark.parametrize("dynamic", [None, True])
    @pytest.mark.parametrize("call", COMPILED)
    def test_compiled(self, call, dynamic, seen, monkeypatch):
        """It is one node of the graph, whether or not a call outside of compiled code came before."""
        torch._dynamo.reset()
        if not seen:
            monkeypatch.setattr(arrays, "by_type", {})
        compiled = torch.compile(COMPILED[call], fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for rows in (3, 6):
            A, B, C = learned(rows, 4), torch.nn.Parameter(values(4, 5)), values(rows, 5)
            result = compiled(A, B, C.clone())
            found = torch.autograd.grad(result.sum(), (A, B))
            wanted = COMPILED[call](A, B, C.clone())
            equal(result, wanted)
            for one, other in zip(found, torch.autograd.grad(wanted.sum(), (A, B)), strict=True):
                equal(one, other)

    def test_compiled_in_inference_mode(self):
        torch._dynamo.reset()
        A, B = values(3, 4), values(4, 5)
        with torch.inference_mode():
            equal(torch.compile(lambda a: sgemm(a, B), fullgraph=True, backend="aot_eager")(A), A @ B)

    @pytest.mark.parametrize("values_of_s", [(0.5, 2.0, 0.25, 3.0), (2, 3, 5, 7), (True, False)])
    @pytest.mark.parametrize("which", ["alpha", "beta"])
    def test_compiled_with_numbers_that_change(self, which, values_of_s):
        torch._dynamo.reset()
        compiled = torch.compile(lambda a, b, c, s: sgemm(a, b, C=c, **{which: s}), fullgraph=True, backend="aot_eager")
        A, B, C = values(3, 4), values(4, 5), values(3, 5)
        for s in values_of_s:
            equal(compiled(A, B, C.clone(), s), (s if which == "alpha" else 1) * (A @ B) + (which == "beta") * s * C)

    @pytest.mark.parametrize("function", [lambda a, b: sgemm(a, b, 1.0 / a.shape[0]), lambda a, b: sgemm(a, b, len(a))])
    def test_compiled_with_numbers_that_depend_on_shapes(self, function):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
        for rows in (3, 5, 1, 7):
            A, B = values(rows, 4), values(4, 5)
            equal(compiled(A, B), function(A, B))

    @pytest.mark.parametrize("numbers", [(0.5, 2.0, 0.0), (2, 3, 0)])
    def test_compiled_with_numbers_that_depend_on_data(self, numbers):
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda a, b, c, t: sgemm(a, b, t.item(), t.item(), c * 1.0), fullgraph=True, backend="aot_eager"
        )
        A, B, C = learned(3, 4), values(4, 5), learned(3, 5)
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            for number in numbers:
                result = compiled(A, B, C, torch.tensor(number))
                equal(result, number * (A @ B) + number * C)
                of_a, of_c = torch.autograd.grad(result.sum(), (A, C))
                equal(of_a, number * torch.ones(3, 5) @ B.T)
                equal(of_c, torch.full((3, 5), float(number)))

    def test_numbers_that_no_product_can_have_are_refused_in_compiled_code(self):
        torch._dynamo.reset()
        compiled = torch.compile(lambda a, b, s: sgemm(a, b, s), backend="aot_eager")
        with pytest.raises(ScalarRangeError):
            compiled(values(3, 4), values(4, 5), 1e40)
        with pytest.raises(ScalarError):
            compiled(values(3, 4), values(4, 5), torch.tensor(2.0))

    @pytest.mark.parametrize("shape", [(1, 3, 5), (5, 3), (15,), (5,)])
    def test_c_of_another_shape_is_refused_in_compiled_code(self, shape):
        torch._dynamo.reset()
        compiled = torch.compile(lambda a, b, c: sgemm(a, b, C=c), dynamic=True, backend="aot_eager")
        with pytest.raises((RuntimeError, ShapeError), match="C must have"):
            compiled(values(3, 4), values(4, 5), values(*shape))

    @pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (3, 4, 4)])
    @pytest.mark.parametrize("strict", [True, False])
    def test_exported_for_any_number_of_rows(self, strict, shape):
        """No limit of ours becomes a guard; it is checked when the program runs."""

        class Module(torch.nn.Module):
            def forward(self, a, b):
                return sgemm(a, b)

        sizes = ({0: torch.export.Dim("b")}, None)
        program = torch.export.export(Module(), (values(*shape), values(4, 5)), dynamic_shapes=sizes, strict=strict)
        A, B = values(9, *shape[1:]), values(4, 5)
        equal(program.module()(A, B), A @ B)
        if len(shape) == 2:
            with pytest.raises(ShapeError, match="must each be at most 2147418112, got 2147483648"):
                program.module()(torch.ones(1).expand(2**31, 4), B)

    @pytest.mark.parametrize("strict", [True, False])
    def test_exported(self, strict):
        class Module(torch.nn.Module):
            def forward(self, a, b):
                return sgemm(a, b)

        program = torch.export.export(Module(), (values(3, 4), values(4, 5)), strict=strict)
        A, B = values(3, 4), values(4, 5)
        equal(program.module()(A, B), A @ B)
        assert "fastsgemm.sgemm" in str(program.graph)

    @pytest.mark.parametrize(
        ("b", "c", "error"),
        [
            (values(5, 4), None, ShapeError),
            (values(4, 5), values(3, 6), ShapeError),
            (values(4, 5).double(), None, DTypeError),
            (values(4, 5), values(3, 5).half(), DTypeError),
            (values(4, 5).to("meta"), None, DeviceMismatchError),
            (values(2, 4, 5), values(3, 5), ShapeError),
        ],
    )
    def test_the_errors_are_those_of_tensors_without_gradients(self, b, c, error):
        with pytest.raises(error):
            sgemm(values(3, 4), b, C=c)
        with pytest.raises(error):
            sgemm(learned(3, 4), b, C=c)

    @pytest.mark.parametrize("case", OVERLAPPING)
    @pytest.mark.parametrize("needs", ["nothing", "a gradient", "a tangent"])
    def test_c_shares_memory_as_without_gradients(self, case, needs):
        shared, call = OVERLAPPING[case]
        memory = values(8, 8)
        if needs == "a gradient":
            memory = memory.requires_grad_() * 1.0
        with torch.autograd.forward_ad.dual_level():
            if needs == "a tangent":
                memory = torch.autograd.forward_ad.make_dual(memory, values(8, 8))
            before = memory.detach().clone()
            if shared:
                with pytest.raises(OverlapError, match=shared):
                    call(memory)
                assert torch.equal(memory.detach(), before)
            else:
                call(memory)

    def test_c_that_is_an_operand_is_refused_in_traced_code_and_transforms(self):
        torch._dynamo.reset()
        with pytest.raises(OverlapError, match="C shares memory with A"):
            torch.compile(lambda a: sgemm(a, a, 1.0, 0.0, a), backend="aot_eager")(values(4, 4))
        with pytest.raises(OverlapError, match="C shares memory with A"):
            torch.func.grad(lambda a: sgemm(a, a, 1.0, 0.0, a).sum())(values(4, 4))

    def test_what_has_no_gradient_is_refused(self, random):
        for more in ({"rung": "naive"}, {"stream": object()}):
            with pytest.raises((OperandError, TypeError)):
                sgemm(learned(3, 4), values(4, 5), **more)
        with pytest.raises(OperandError, match="B requires grad; then all operands must be tensors"):
            sgemm(random(3, 4), learned(4, 5))
