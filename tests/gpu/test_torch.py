"""fastsgemm.torch on a device: values, streams, threads, graphs and compiled code with the switch on."""

import pytest
from in_threads import run_all

torch = pytest.importorskip("torch")

import fastsgemm.torch  # noqa: E402
from fastsgemm import sgemm  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_a_device(torch):
    """Skip where PyTorch sees no device."""


def whole(*shape):
    """Small whole numbers, whose products are exact."""
    return torch.randint(-4, 5, shape, device="cuda").float()


FORMS = {
    "mm": lambda a, b, c: torch.mm(a, b),
    "mm.out": lambda a, b, c: torch.mm(a, b, out=torch.full_like(c, torch.nan)),
    "mm.out, column-major": lambda a, b, c: torch.mm(a, b, out=torch.full_like(c.t().contiguous(), torch.nan).t()),
    "mm, transposed": lambda a, b, c: torch.mm(b.t(), a.t()),
    "addmm": lambda a, b, c: torch.addmm(c, a, b, beta=2, alpha=3),
    "addmm with a row": lambda a, b, c: torch.addmm(c[0], a, b),
    "addmm.out": lambda a, b, c: torch.addmm(c[0], a, b, out=torch.full_like(c, torch.nan)),
    "addmm_": lambda a, b, c: c.clone().addmm_(a, b, beta=-1),
    "linear": lambda a, b, c: torch.nn.functional.linear(a, b.t(), c[0]),
    "bmm of one": lambda a, b, c: torch.bmm(a[None], b[None]),
    "baddbmm of one": lambda a, b, c: torch.baddbmm(c[None], a[None], b[None]),
    "bmm": lambda a, b, c: torch.bmm(a.expand(5, *a.shape), torch.stack([b, 2 * b, b, -b, b])),
    "baddbmm": lambda a, b, c: torch.baddbmm(c[0], torch.stack([a, -a]), b.expand(2, *b.shape), beta=2, alpha=3),
    "baddbmm_": lambda a, b, c: torch.stack([c, -c]).baddbmm_(torch.stack([a, -a]), b.expand(2, *b.shape)),
    "mv": lambda a, b, c: a @ b[:, 0],
    "addmv": lambda a, b, c: torch.addmv(c[:, 0], a, b[:, 0]),
    "dot": lambda a, b, c: torch.dot(a[0], b[:, 0]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form):
    a, b, c = whole(33, 70), whole(70, 45), whole(33, 45)
    wanted = FORMS[form](a.double(), b.double(), c.double())
    with fastsgemm.torch.enabled() as switch:
        found = FORMS[form](a, b, c)
    assert torch.equal(found.double(), wanted)
    report = switch.report()
    assert report.calls == 1 and not report.passed_on


def test_an_operand_at_every_alignment():
    memory = whole(64, 300)
    with fastsgemm.torch.enabled() as switch:
        for offset in range(5):
            a, b = memory[:, offset : offset + 40], memory[:, 100 + offset : 140 + offset].t()
            out = torch.full((64, 72), torch.nan, device="cuda")[:, offset : offset + 64]
            assert torch.equal(torch.mm(a, b, out=out).double(), a.double() @ b.double())
    assert switch.report().calls == 5


def test_gradients_in_the_threads_of_autograd():
    layer = torch.nn.Linear(64, 32, device="cuda")
    x = whole(48, 64)
    wanted = torch.ones(48, 32, device="cuda").t() @ x
    with fastsgemm.torch.enabled() as switch:
        layer(x).sum().backward()
    assert torch.equal(layer.weight.grad, wanted)
    assert {line.operator for line in switch.report().replaced} == {"addmm", "mm"}


def test_another_stream(make_busy):
    a, b = whole(128, 128), whole(128, 128)
    stream = torch.cuda.Stream()
    with fastsgemm.torch.enabled():
        torch.mm(a, b)
        with torch.cuda.stream(stream):
            make_busy(stream.cuda_stream)
            x = a + 1
            found = torch.mm(x, b)
        torch.cuda.current_stream().wait_stream(stream)
        assert torch.equal(found.double(), (a + 1).double() @ b.double())


def test_threads():
    a, b = whole(64, 64), whole(64, 64)
    wanted, found = a.double() @ b.double(), []

    def work(i):
        for _ in range(50):
            found.append(torch.mm(a, b))

    with fastsgemm.torch.enabled() as switch:
        run_all(work, 4)
    assert all(torch.equal(each.double(), wanted) for each in found)
    assert 190 <= switch.report().calls <= 200  # threads that count at the same time may lose one


def test_a_graph():
    a, b, out = whole(64, 64), whole(64, 64), torch.zeros(64, 64, device="cuda")
    with fastsgemm.torch.enabled() as switch:
        torch.mm(a, b, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.mm(a, b, out=out)
        a += 1
        out.zero_()
        graph.replay()
    assert torch.equal(out.double(), a.double() @ b.double())
    assert switch.report().calls == 2


def test_tf32_stays_the_users():
    a, b = whole(64, 64), whole(64, 64)
    before = torch.get_float32_matmul_precision()
    try:
        with fastsgemm.torch.enabled() as switch:
            torch.set_float32_matmul_precision("high")
            torch.mm(a, b)
            torch.set_float32_matmul_precision("highest")
            torch.mm(a, b)
    finally:
        torch.set_float32_matmul_precision(before)
    assert [(line.reason, line.calls) for line in switch.report().lines] == [("", 1), ("TF32 is allowed", 1)]


def test_fp16x3():
    a, b = torch.randn(1024, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda")
    with fastsgemm.torch.enabled("fp16x3"):
        found = a @ b
    wanted = a.double() @ b.double()
    assert (found - wanted).norm() / wanted.norm() < 1e-6


def test_batch_invariance():
    x, weight, bias = torch.randn(300, 1500, device="cuda"), torch.randn(200, 1500, device="cuda"), torch.randn(200)
    bias = bias.cuda()
    with fastsgemm.torch.enabled(batch_invariant=True) as switch:
        among = torch.nn.functional.linear(x, weight, bias)
        for rows in (slice(7, 8), slice(0, 64), slice(100, 233)):
            assert torch.equal(among[rows], torch.nn.functional.linear(x[rows], weight, bias))
        batch = torch.bmm(x.view(3, 100, 1500), weight.t().expand(3, 1500, 200))
        assert torch.equal(batch.flatten(0, 1), x @ weight.t())
    assert not switch.report().passed_on


def test_the_operator_and_sgemm():
    a, b = whole(40, 30).requires_grad_(), torch.nn.Parameter(whole(30, 20))
    torch.ops.fastsgemm.sgemm(a, b).sum().backward()
    wanted = torch.ones(40, 20, device="cuda") @ b.detach().t()
    assert torch.equal(a.grad, wanted)
    a.grad = None
    sgemm(a, b).sum().backward()
    assert torch.equal(a.grad, wanted)
    with torch.no_grad():
        assert torch.equal(sgemm(a, b).double(), a.double() @ b.double())
    compiled = torch.compile(lambda x, y: torch.ops.fastsgemm.sgemm(x, y), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, b).double(), a.double() @ b.double())


def test_compiled_code():
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).cuda()
    compiled = torch.compile(layers)
    x = whole(48, 64)
    wanted = compiled(x)
    with fastsgemm.torch.enabled() as switch:
        torch.testing.assert_close(compiled(x), wanted, rtol=1e-5, atol=1e-5)
    assert switch.report().share == 1.0
