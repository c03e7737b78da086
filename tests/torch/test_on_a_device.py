"""The way of a PyTorch product to a device, which is here in host memory, through Python and through the launcher."""

import gc
import threading
from collections import deque
from contextlib import ExitStack

import pytest
import subprocesses

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_products import A3, B3, C3, A, B, C, V, close, counted, enabled  # noqa: E402

import fastsgemm.torch  # noqa: E402
from fastsgemm.request import Request, resolve  # noqa: E402
from fastsgemm.torch import execution, kernel_switch  # noqa: E402
from fastsgemm.torch.overrides import Override  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_host")


def product(a, b):
    return torch.from_numpy(a.numpy() @ b.numpy())


class TestOnADevice:
    """The way of a call to a device, which is here in host memory."""

    @pytest.fixture(params=["python", "launcher"])
    def gpu(self, request, device, monkeypatch):
        """The device, whose calls take the way through Python or, but for the first of a kind, the launcher."""
        if request.param == "launcher":
            request.getfixturevalue("launcher")
        monkeypatch.setattr(execution, "gpu_of", lambda ordinal: device)
        monkeypatch.setattr(execution, "current_stream", lambda ordinal: 5)
        return device

    def test_it_launches_on_the_current_stream(self, gpu):
        with enabled() as turned:
            for _ in range(3):
                close(torch.addmm(C, A, B, beta=2, alpha=0.5), 2 * C + 0.5 * torch.from_numpy(A.numpy() @ B.numpy()))
        assert [handle for handle, _ in gpu.launched] == 3 * [5]
        assert gpu.compiled == ["pipelined"]
        assert counted(turned) == {"addmm": 3}

    def test_a_bias_is_read_where_it_lies(self, gpu):
        with enabled() as turned:
            for bias in (C[0], C[0], C[:, :1], C[0, 0]):
                close(torch.addmm(bias, A, B, beta=2), 2 * bias + torch.from_numpy(A.numpy() @ B.numpy()))
            assert len(gpu.launched) == 4
            out = torch.full((3, 5), torch.nan)
            for beta in (0, 1):
                torch.addmm(C[0], A, B, beta=beta, out=out)
                close(out, beta * C[0] + torch.from_numpy(A.numpy() @ B.numpy()))
        assert counted(turned) == {"addmm": 4, "addmm.out": 2}

    def test_a_batch_is_one_launch(self, gpu):
        with enabled() as turned:
            for _ in range(2):
                close(torch.bmm(A3, B3), torch.from_numpy(A3.numpy() @ B3.numpy()))
        assert len(gpu.launched) == 2
        assert counted(turned) == {"bmm": 2}

    def test_c_that_shares_memory_with_the_output(self, gpu):
        memory, b, passed = torch.randn(7, 4), torch.randn(4, 4), []
        override = Override("addmm.out", Request(), "cpu")
        override.original = lambda *given, **options: passed.append(given)
        for begin in (1, 4, 1, 0):  # 4 makes the plan that the second 1 finds
            override.replacement(memory[:3], A, b, out=memory[begin : begin + 3])
        assert len(passed) == 2
        assert {line.reason: line.calls for line in override.lines()} == {
            "": 2,
            "the output shares memory with an operand": 2,
        }

    def test_an_error_of_pytorch_shows_nothing_of_ours(self, gpu):
        memory = torch.randn(7, 4)
        with enabled() as turned, pytest.raises(RuntimeError, match="single memory location") as error:
            torch.addmm(memory[:3], A, torch.ones(4, 4), out=memory[1:4])
        assert error.value.__context__ is None
        assert counted(turned) == {"addmm.out: the output shares memory with an operand": 1}

    def test_every_alignment_of_an_address(self, gpu):
        memory = torch.randn(4, 200)
        for offset in range(5):
            a, b = memory[:, offset : offset + 8], memory[:, 100 - offset : 108 - offset].t()
            out = torch.full((4, 40), torch.nan)[:, offset : offset + 4]
            wanted = torch.from_numpy(a.numpy() @ b.numpy())
            with enabled():
                close(torch.mm(a, b), wanted)
                close(torch.mm(a, b, out=out), wanted)

    def test_an_output_that_shares_memory(self, gpu):
        both = torch.randn(4, 8)
        a, out = both[:, :4], both[:, 4:]
        with enabled() as turned:
            torch.mm(a, A[:, :4].new_ones(4, 4), out=out)  # between the elements of A, but not on them
            x = torch.ones(4, 4)
            x.addmm_(x, torch.ones(4, 4))
        assert counted(turned) == {"mm.out": 1, "addmm_: the output shares memory with an operand": 1}
        close(out, a.sum(1, keepdim=True).expand(4, 4))

    @pytest.mark.parametrize("which", range(4))
    @pytest.mark.parametrize("offset", [0, 2])
    def test_an_operand_without_memory(self, gpu, which, offset):
        """PyTorch gives a slice of a tensor that was freed an address that is not 0."""
        passed = []
        override = Override("addmm.out", Request(), "cpu")
        override.original = lambda *given, **more: passed.append(more)

        def given():
            return [torch.ones(offset + rows * columns)[offset:].view(rows, columns) for rows, columns in shapes]

        shapes = [(3, 5), (3, 4), (4, 5), (3, 5)]
        *plain, out = given()
        override.replacement(*plain, out=out)
        for _ in range(2):
            operands = given()
            operands[which].untyped_storage().resize_(0)
            assert operands[which].data_ptr() == 4 * offset
            *plain, out = operands
            override.replacement(*plain, out=out)
        assert len(passed) == 2 and len(gpu.launched) == 1
        assert {line.reason: line.calls for line in override.lines()} == {"": 1, "an operand without memory": 2}


FORMS = {
    "mm": lambda: torch.mm(A, B),
    "mm.out": lambda: torch.mm(A, B, out=torch.full((3, 5), torch.nan)),
    "mm.out, column-major": lambda: torch.mm(A, B, out=torch.full((5, 3), torch.nan).t()),
    "mm, transposed": lambda: torch.mm(B.t(), A.t()),
    "bmm": lambda: torch.bmm(A3, B3),
    "bmm of a shared matrix": lambda: torch.bmm(A3, B.expand(2, 4, 5)),
    "bmm.out": lambda: torch.bmm(A3, B3, out=torch.full((2, 3, 5), torch.nan)),
    "dot": lambda: torch.dot(V, B[:, 0]),
    "addmm": lambda: torch.addmm(C, A, B, beta=2, alpha=0.5),
    "addmm with a row": lambda: torch.addmm(C[0], A, B),
    "addmm with a number": lambda: torch.addmm(C[0, 0], A, B, beta=True),
    "addmm, beta 0": lambda: torch.addmm(torch.full((3, 5), torch.nan), A, B, beta=0),
    "addmm, alpha 0": lambda: torch.addmm(C, torch.full_like(A, torch.nan), B, alpha=0),
    "addmm.out": lambda: torch.addmm(C[0], A, B, out=torch.full((3, 5), torch.nan)),
    "addmm.out in place": lambda: torch.addmm(x := C.clone(), A, B, beta=0.5, out=x),
    "addmm_": lambda: C.clone().addmm_(A, B, beta=3),
    "baddbmm": lambda: torch.baddbmm(C3, A3, B3, beta=2, alpha=0.5),
    "baddbmm.out": lambda: torch.baddbmm(C3, A3, B3, out=torch.full((2, 3, 5), torch.nan)),
    "baddbmm_": lambda: C3.clone().baddbmm_(A3, B3, beta=3),
    "addmv": lambda: torch.addmv(C[:, 0], A, V, beta=2, alpha=3),
    "addmv.out": lambda: torch.mv(A, V, out=torch.full((3,), torch.nan)),
    "addmv_": lambda: C[:, 0].clone().addmv_(A, V),
    "_addmm_activation": lambda: torch._addmm_activation(C[0], A, B, beta=2),
    "_addmm_activation, gelu": lambda: torch._addmm_activation(C[0], A, B, use_gelu=True),
    "_addmm_activation.out": lambda: torch.ops.aten._addmm_activation.out(
        C[0], A, B, out=torch.full((3, 5), torch.nan)
    ),
    "linear": lambda: torch.nn.functional.linear(A, B.t(), C[0]),
}


# A kernel in Python below ours is taken back. The next call that is passed on drops it, in its own thread, which runs
# its `__del__`; the main thread then turns the switch.
ENDING = """
import faulthandler, threading, time
import torch
import fastsgemm.torch
from fastsgemm.torch import cpp_launcher, kernel_switch

kernel_switch._LAUNCHER_DEVICES = ("cpu",)
assert cpp_launcher.load()
faulthandler.dump_traceback_later(20, exit=True)
ends = threading.Event()

class Kernel:
    def __call__(self, a, b):
        return a.clone()
    def __del__(self):
        ends.set()
        time.sleep(0.2)  # lets the main thread have the GIL

library = torch.library.Library("aten", "IMPL")
library.impl("mm", Kernel(), "CPU", allow_override=True)
x = torch.eye(2, dtype=torch.float64)
with fastsgemm.torch.enabled(device="cpu", only="mm"):
    assert kernel_switch.periods.current._launched
    assert torch.mm(x, 2 * x) is not None
    library._destroy()
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", torch.ones_like, "CPU", allow_override=True)  # PyTorch forgets the function of the last one
    library._destroy()
    thread = threading.Thread(target=torch.mm, args=(x, x))
    thread.start()
    assert ends.wait(10)
    with fastsgemm.torch.enabled(device="cpu", only=["mm", "bmm"]):
        assert torch.equal(torch.mm(x, 2 * x), 2 * x)
    thread.join()
print("done")
"""


class TestLauncher:
    """What the launcher does without Python."""

    @pytest.mark.parametrize("form", FORMS)
    def test_a_known_call_never_enters_python(self, launcher, device, monkeypatch, form):
        wanted = FORMS[form]()
        with enabled() as turned:
            close(FORMS[form](), wanted)
            close(FORMS[form](), wanted)  # its result may lie at another alignment than the first one
            launches = device.by_launcher
            monkeypatch.setattr(Override, "multiply", None)
            for _ in range(3):
                found = FORMS[form]()
                close(found, wanted)
                assert found.stride() == wanted.stride()
        assert device.by_launcher >= launches + 3
        assert list(counted(turned).values()) == [5]

    def test_operands_of_another_kind_are_another_problem(self, launcher):
        square = torch.randn(8, 8)
        kinds = [
            (square, square), (square, square.clone()), (square.t(), square), (square, square.t()),
            (square[:, :6], square[:6]), (square[::2], square), (square[:, ::2], square[:4]),
            (torch.randn(9, 9)[1:, 1:], square), (square[:1], square), (square, square[:, :1]),
            (torch.randn(65)[1:].view(8, 8), square), (square[:1].expand(8, 8), square),
        ]  # fmt: skip
        with enabled():
            for _ in range(3):
                for a, b in kinds:
                    close(torch.mm(a, b), product(a, b))

    def test_workspace(self, launcher, device):
        """An operand without a unit stride is packed into memory that PyTorch allocates."""
        a = torch.randn(6, 8)[::2, ::2]
        with enabled():
            for _ in range(3):
                close(torch.mm(a, B), product(a, B))
        assert device.by_launcher == 4

    def test_what_is_passed_on_never_enters_python(self, launcher, monkeypatch):
        calls = [
            lambda: torch.mm(A.double(), B.double()),
            lambda: torch.mm(A, B, out=torch.empty(0)),
            lambda: torch.addmm(C.double(), A.double(), B.double()),
            lambda: torch.bmm(A3[:, :, :0], B3[:, :0]),
        ]
        wanted = [call() for call in calls]
        with enabled() as turned:
            for call in calls:
                call()
            monkeypatch.setattr(Override, "multiply", None)
            for call, value in zip(calls, wanted, strict=True):
                assert torch.equal(call(), value)
        assert set(counted(turned).values()) == {2}
        assert all(": " in key for key in counted(turned))

    def test_pytorchs_errors_are_its_own(self, launcher):
        for _ in range(2):
            with enabled(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                torch.mm(A, A)

    def test_an_error_of_ours(self, launcher, device):
        with enabled():
            torch.mm(A, B)
            device.refusal = 700
            with pytest.raises(
                RuntimeError, match=r"launching fastsgemm_\w+ with .* blocks .* failed: CUDA_ERROR_FAKE"
            ):
                torch.mm(A, B)

    def test_an_error_of_python(self, launcher, monkeypatch):
        def fail(*rest):
            raise KeyError("something")

        monkeypatch.setattr(Override, "multiply", fail)
        with enabled(), pytest.raises(KeyError, match="something"):
            torch.mm(A, B)

    def test_an_operand_without_memory(self, launcher):
        with enabled() as turned:
            torch.mm(A, B)
            freed = torch.ones(3, 4)
            freed.untyped_storage().resize_(0)
            with pytest.raises(RuntimeError):
                torch.mm(freed, B)
        assert counted(turned)["mm: an operand without memory"] == 1

    def test_an_output_that_shares_memory(self, launcher):
        memory, b = torch.randn(7, 4), torch.randn(4, 4)
        with enabled() as turned:
            torch.mm(memory[:3], b, out=memory[4:])
            torch.mm(memory[:3], b, out=memory[2:5])  # what that computes is PyTorch's business
        assert counted(turned) == {"mm.out": 1, "mm.out: the output shares memory with an operand": 1}

    @pytest.mark.parametrize("number", [1e39, float("inf"), float("nan"), -0.0, 2**60, True])
    def test_numbers(self, launcher, number):
        def call():
            return torch.addmm(C, A, B, alpha=number)

        with enabled():
            for _ in range(3):
                try:
                    found = call()
                except RuntimeError as error:
                    found = str(error)
        if isinstance(found, str):
            with pytest.raises(RuntimeError) as wanted:
                call()
            assert str(wanted.value) == found
        else:
            torch.testing.assert_close(found, call(), equal_nan=True)

    def test_counts_survive_a_full_table(self, launcher, monkeypatch):
        from fastsgemm.torch import overrides

        monkeypatch.setattr(overrides, "_MOST_DECISIONS", 2)
        with enabled() as turned:
            for _ in range(2):
                for rows in (1, 2, 3, 3, 4, 1):
                    torch.ones(rows, 4) @ B
        assert turned.report().calls == 12

    def test_blocks_of_two_settings(self, launcher):
        with enabled(only=["mm", "bmm"]) as outer:
            torch.mm(A, B)
            with enabled(only=["mm", "addmm"]) as inner:
                torch.mm(A, B)
                torch.mm(A, B)
                torch.addmm(C, A, B)
                torch.bmm(A3, B3)
            torch.mm(A, B)
            torch.bmm(A3, B3)
            torch.addmm(C, A, B)
        torch.mm(A, B)
        assert counted(outer) == {"mm": 2, "bmm": 1}
        assert counted(inner) == {"mm": 2, "addmm": 1}

    def test_what_settings_decide_that_hold_no_more_is_not_remembered(self, launcher, monkeypatch):
        multiply = Override.multiply

        def turned_meanwhile(override, *operands):
            decided = multiply(override, *operands)
            if override is outer._overrides[0]:
                blocks.enter_context(enabled(only="mm", batch_invariant=True))
            return decided

        with ExitStack() as blocks:
            outer = blocks.enter_context(enabled(only="mm"))
            monkeypatch.setattr(Override, "multiply", turned_meanwhile)
            torch.mm(A, B)
            torch.mm(A, B)
            inner = fastsgemm.torch.kernel_switch.periods.current
            assert inner.batch_invariant and counted(inner) == {"mm": 1}
        assert counted(outer) == {"mm": 1}

    def test_calls_of_forgotten_decisions_count_for_no_other(self):
        override = Override("mm", Request(), "cpu")
        _, forgotten = override.multiply(A, B, None, None, None, None, None)
        override.release()
        override.multiply(B.T, A.T, None, None, None, None, None)
        override.count([(forgotten.number, 10, 0)])
        assert sum(line.calls for line in override.lines()) == 2

    def test_tuning_lets_every_problem_be_prepared_again(self, launcher, device):
        with enabled():
            torch.mm(A, B)
            torch.mm(A, B)
            launches = device.by_launcher
            device.forget_problems()
            torch.mm(A, B)
        assert device.by_launcher == launches

    def test_a_kernel_of_python_ends_while_another_thread_turns_the_switch(self):
        """Its end needs the GIL: no thread may hold that and wait for the one that ends it."""
        done = subprocesses.run(ENDING, timeout=120)
        assert done.stdout == "done\n", done.stderr

    def test_gradients_in_their_thread(self, launcher, device):
        weight = torch.randn(4, 5, requires_grad=True)
        wanted = torch.autograd.grad((A @ weight).square().sum(), weight)
        with enabled() as turned:
            for _ in range(4):
                found = torch.autograd.grad((A @ weight).square().sum(), weight)
                close(found[0], wanted[0])
        assert counted(turned) == {"mm": 8} and device.by_launcher == 6

    def test_threads(self, launcher, device):
        """Four threads multiply while a fifth turns the switch; every result is right, and nothing is left over."""
        operands = [(torch.randn(m, 8), torch.randn(8, n)) for m in range(1, 6) for n in range(1, 6)]
        wanted = [product(a, b) for a, b in operands]
        wrong, stop = [], threading.Event()

        def multiply():
            try:
                for _ in range(20):
                    for (a, b), value in zip(operands, wanted, strict=True):
                        if not torch.allclose(torch.mm(a, b), value, rtol=1e-5, atol=1e-5):
                            wrong.append(a.shape)
            finally:
                stop.set()

        threads = [threading.Thread(target=multiply) for _ in range(4)]
        for thread in threads:
            thread.start()
        while not stop.is_set():
            with enabled(), enabled(only="mm"):
                pass
        for thread in threads:
            thread.join()
        assert not wrong

    def test_nothing_is_left_over(self, launcher, monkeypatch):
        """But for Python's last kernels."""
        monkeypatch.setattr(kernel_switch, "_outliving", deque(maxlen=4))
        for _ in range(2):
            with enabled():
                torch.mm(A, B)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(50):
            with enabled():
                torch.mm(A, B)
        gc.collect()
        assert len(gc.get_objects()) < before + 500

    def test_a_context_of_another_device_is_changed_for_the_launch(self, launcher, fake_driver):
        import ctypes

        context, current = (ctypes.c_int.in_dll(fake_driver, name) for name in ("fake_context", "fake_device"))
        pushed = ctypes.c_int.in_dll(fake_driver, "fake_pushed")
        with enabled():
            torch.mm(A, B)
            for value, ordinal in ((1, 0), (2, 0), (2, 3), (0, 0)):  # primary, green, of another device, none
                context.value, current.value = value, ordinal
                close(torch.mm(A, B), product(A, B))
        context.value, current.value = 1, 0
        assert pushed.value == 0


class TestOperator:
    """``torch.ops.fastsgemm.sgemm``; the launcher's kernel of it is for CUDA, so here only what comes before it."""

    def test_a_plan_without_c_is_not_for_calls_that_read_it(self, launcher):
        """1e-60 is 0 in float32, so that C is not read. A later call with C may have another beta."""
        from fastsgemm.torch.operator import _product_and_plan

        for beta, has_plan in ((1.0, True), (1e-60, False)):
            found, plan = _product_and_plan(A, B, 1.0, beta, C)
            close(found, product(A, B) + beta * C)
            assert (plan is not None) is has_plan

    def test_gradients_and_transforms(self, launcher):
        a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
        torch.ops.fastsgemm.sgemm(a, b).sum().backward()
        close(a.grad, torch.ones(3, 5) @ B.t())
        close(torch.func.vmap(torch.ops.fastsgemm.sgemm)(A3, B3), torch.bmm(A3, B3))
        dual = torch.func.jvp(torch.ops.fastsgemm.sgemm, (A, B), (A, B))
        close(dual[1], 2 * (A @ B))


class TestSgemm:
    """What `fastsgemm.sgemm` does with tensors that a plan is known for."""

    def test_it_multiplies(self, launcher, device):
        request = resolve()
        quick = launcher._module.sgemm
        assert quick(request, A, B, C, 1.0, 1.0) is None
        views = [execution.view(x) for x in (A, B, C)]
        loaded = execution.on_device(device, views, 1.0, 1.0, request)
        launcher.learn(request, A, B, C, loaded, C.shape, launcher.epoch())
        out = torch.full((3, 5), 2.0)
        version = out._version
        assert quick(request, A, B, out, 2.0, 0.5) is out and out._version == version + 1
        close(out, 2 * product(A, B) + 1)
        assert quick(request, A.clone().requires_grad_(), B, out, 1.0, 1.0) is None
        assert quick(request, A, B, out.t().contiguous().t(), 1.0, 1.0) is None
        assert quick(resolve(precision="ieee"), A, B, out, 1.0, 1.0) is None
        with torch.inference_mode():
            assert quick(request, A, B, torch.ones(3, 5), 1.0, 0.0) is not None
        assert quick(request, torch.nn.Parameter(A, requires_grad=False), B, out, 1.0, 0.0) is out

    def test_what_it_leaves_to_python(self, launcher, device):
        class Subclass(torch.Tensor):
            pass

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))

        request, quick, out = resolve(), launcher._module.sgemm, C.clone()
        views = [execution.view(x) for x in (A, B, out)]
        epoch = launcher.epoch()
        launcher.learn(request, A, B, None, execution.on_device(device, views, 1.0, 0.0, request), C.shape, epoch)
        assert quick(request, A, B, None, 1.0, 0.0) is not None
        for a in (A.as_subclass(Subclass), "A", A.numpy(), A._neg_view(), A.to_sparse(), A.to("meta")):
            assert quick(request, a, B, None, 1.0, 0.0) is None
        with Mode():
            assert quick(request, A, B, None, 1.0, 0.0) is None
        assert quick(request, A, B, None, 1, 0.0) is None
        with pytest.raises(TypeError):
            quick(request, A)
