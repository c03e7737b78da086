"""The switch: what it replaces, what it passes on and why, and that everything else is as PyTorch has it."""

import gc
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import subprocesses
from cuda.bindings import driver
from in_threads import run_all

torch = pytest.importorskip("torch")

from torch_products import (  # noqa: E402
    A3,
    B3,
    C3,
    A,
    B,
    C,
    V,
    assert_refused_as_by_pytorch,
    close,
    counted,
    enabled,
)

import fastsgemm.torch  # noqa: E402
from fastsgemm.errors import (  # noqa: E402
    ArgumentError,
    CompileError,
    DeviceError,
    DeviceMemoryError,
    MissingExtraError,
)
from fastsgemm.torch import execution, kernel_switch  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_host")

CALLS = {
    "matmul": ("mm", lambda: A @ B),
    "mm.out": ("mm.out", lambda: torch.mm(A, B, out=torch.empty(3, 5))),
    "mm.out, column-major": ("mm.out", lambda: torch.mm(A, B, out=torch.empty(5, 3).t())),
    "mm, transposed": ("mm", lambda: B.t() @ A.t()),
    "addmm": ("addmm", lambda: torch.addmm(C, A, B, beta=2, alpha=0.5)),
    "addmm with a row": ("addmm", lambda: torch.addmm(C[0], A, B)),
    "addmm with a column": ("addmm", lambda: torch.addmm(C[:, :1], A, B)),
    "addmm with a number": ("addmm", lambda: torch.addmm(C[0, 0], A, B)),
    "addmm.out": ("addmm.out", lambda: torch.addmm(C[0], A, B, out=torch.empty(3, 5))),
    "addmm.out in place": ("addmm.out", lambda: torch.addmm(x := C.clone(), A, B, beta=0.5, out=x)),
    "addmm_": ("addmm_", lambda: C.clone().addmm_(A, B, beta=3)),
    "addmm, beta 0": ("addmm", lambda: torch.addmm(torch.full((3, 5), torch.nan), A, B, beta=0)),
    "linear": ("addmm", lambda: torch.nn.functional.linear(A, B.t(), C[0])),
    "linear in three dimensions": ("addmm", lambda: torch.nn.functional.linear(A.view(1, 3, 4), B.t(), C[0])),
    "linear without bias": ("mm", lambda: torch.nn.functional.linear(A, B.t())),
    "bmm of one": ("bmm", lambda: torch.bmm(A[None], B[None])),
    "baddbmm of one": ("baddbmm", lambda: torch.baddbmm(C[None], A[None], B[None], beta=2)),
    "baddbmm_ of one": ("baddbmm_", lambda: C[None].clone().baddbmm_(A[None], B[None])),
    "bmm": ("bmm", lambda: torch.bmm(A3, B3)),
    "bmm, transposed": ("bmm", lambda: torch.bmm(B3.mT, A3.mT)),
    "bmm of a shared matrix": ("bmm", lambda: torch.bmm(A3, B.expand(2, 4, 5))),
    "bmm.out": ("bmm.out", lambda: torch.bmm(A3, B3, out=torch.empty(2, 3, 5))),
    "baddbmm": ("baddbmm", lambda: torch.baddbmm(C3, A3, B3, beta=2, alpha=0.5)),
    "baddbmm with a row": ("baddbmm", lambda: torch.baddbmm(C[0], A3, B3)),
    "baddbmm with a row for each product": ("baddbmm", lambda: torch.baddbmm(C3[:, :1], A3, B3)),
    "baddbmm, beta 0": ("baddbmm", lambda: torch.baddbmm(torch.full((2, 3, 5), torch.nan), A3, B3, beta=0)),
    "baddbmm.out": ("baddbmm.out", lambda: torch.baddbmm(C3, A3, B3, out=torch.empty(2, 3, 5))),
    "baddbmm.out in place": ("baddbmm.out", lambda: torch.baddbmm(x := C3.clone(), A3, B3, beta=3, out=x)),
    "baddbmm_": ("baddbmm_", lambda: C3.clone().baddbmm_(A3, B3, beta=3)),
    "matmul that broadcasts": ("bmm", lambda: torch.matmul(A3[:, None], torch.stack([B, 2 * B, 3 * B]))),
    "einsum of batches": ("bmm", lambda: torch.einsum("bij,bjk->bik", A3, B3)),
    "einsum": ("bmm", lambda: torch.einsum("ij,jk->ki", A, B)),
    "matrix times vector": ("addmv_|addmv.out", lambda: A @ V),
    "vector times matrix": ("mm|addmv_|addmv.out", lambda: V @ B),
    "addmv": ("addmv", lambda: torch.addmv(C[:, 0], A, V, beta=2, alpha=3)),
    "addmv_": ("addmv_", lambda: C[:, 0].clone().addmv_(A, V)),
    "mv.out": ("addmv.out", lambda: torch.mv(A, V, out=torch.empty(3))),
    "dot": ("dot", lambda: torch.dot(V, B[:, 0])),
    "vdot": ("dot", lambda: torch.vdot(V, V)),
    "tensordot": ("mm", lambda: torch.tensordot(A, B, 1)),
    "multi_dot": ("mm|mm.out", lambda: torch.linalg.multi_dot([A, B, C.t()])),
}


@pytest.mark.parametrize("call", CALLS)
def test_replaced(call):
    operators, function = CALLS[call]
    wanted = function()
    with enabled() as turned:
        found = function()
    close(found, wanted)
    assert found.stride() == wanted.stride()
    assert set(counted(turned)) <= set(operators.split("|")) and counted(turned)


PASSED_ON = {
    "dtype float64": lambda: torch.mm(A.double(), B.double()),
    "dtype float16": lambda: torch.mm(A.half(), B.half()),
    "dtype int64": lambda: torch.mm(A.long(), B.long()),
    "an empty operand": lambda: torch.mm(A[:, :0], B[:0]),
    "the output must be resized": lambda: torch.mm(A, B, out=torch.empty(0)),
    "the output shares memory with an operand": lambda: (x := torch.ones(4, 4)).addmm_(x, torch.ones(4, 4)),
}


@pytest.mark.parametrize("reason", PASSED_ON)
def test_passed_on(reason):
    wanted = PASSED_ON[reason]()
    with enabled() as turned:
        found = PASSED_ON[reason]()
    close(found, wanted)
    assert [key.split(": ")[1] for key in counted(turned)] == [reason]


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.mm(A, A),
        lambda: torch.mm(A, V),
        lambda: torch.mm(A, B.double()),
        lambda: torch.mm(A, B, out=torch.empty(3, 5, dtype=torch.float64)),
        lambda: torch.addmm(C[:2], A, B),
        lambda: torch.addmm(C, A, B, alpha=1e40),
        lambda: C.clone()[:2].addmm_(A, B),
        lambda: torch.addmm(C.long(), A, B),
        lambda: torch.dot(V, V[:2]),
        lambda: torch.addmv(V, A, V),
        lambda: torch.bmm(A3, B3[:1]),
        lambda: torch.bmm(A3, B),
        lambda: torch.baddbmm(C3.expand(2, 2, 3, 5), A3, B3),
    ],
)
def test_what_pytorch_refuses_gets_its_own_error(call):
    assert_refused_as_by_pytorch(call)


@pytest.mark.parametrize("product", [lambda: A @ B, torch.nn.Linear(4, 5).requires_grad_(False).forward])
def test_the_warning_of_the_host_points_at_the_program(no_driver, monkeypatch, product):
    monkeypatch.setattr("fastsgemm.host._warned", False)
    with enabled(), pytest.warns(RuntimeWarning, match="found no NVIDIA GPU") as seen:
        product(*[A] * (product.__name__ == "forward"))
    assert [one.filename for one in seen] == [__file__]


def test_gradients():
    layer = torch.nn.Linear(4, 5)
    layer(A).square().sum().backward()
    wanted = layer.weight.grad.clone(), layer.bias.grad.clone()
    layer.zero_grad()
    with enabled() as turned:
        layer(A).square().sum().backward()
    close(layer.weight.grad, wanted[0])
    close(layer.bias.grad, wanted[1])
    assert counted(turned) == {"addmm": 1, "mm": 1}


def test_the_version_of_an_output_goes_up():
    x = C.clone().requires_grad_().exp()
    x.square().sum()  # saves x
    y = x.square()
    with enabled(), torch.no_grad():
        torch.mm(A, B, out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_compiled_code_that_was_made_before():
    compiled = torch.compile(lambda a, b: (a @ b).relu(), backend="aot_eager", fullgraph=True)
    wanted = compiled(A, B)
    with enabled() as turned:
        close(compiled(A, B), wanted)
    assert counted(turned) == {"mm": 1}


def test_generated_code():
    """Whether it was compiled before the switch was turned on or after, and only while it is on."""
    pytest.importorskip("torch._inductor.kernel.bmm")
    function = torch.compile(lambda a, b: a @ b, fullgraph=True)
    function(A, B)
    with enabled() as turned:
        close(function(A, B), A @ B)
    function(A, B)
    assert counted(turned)["mm.out"] == 1


def test_vmap_and_autocast():
    with enabled() as turned:
        close(torch.func.vmap(torch.mm, (None, 0))(A, B.expand(2, 4, 5)), (A @ B).expand(2, 3, 5))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (A @ B).dtype is torch.bfloat16
    assert "mm: dtype bfloat16" in counted(turned)


@pytest.fixture
def wish(monkeypatch):
    """What the program wishes float32 products to have; PyTorch asks that for CUDA only."""
    from fastsgemm.torch import overrides

    wished = [""]
    monkeypatch.setattr(overrides, "_default_precision", lambda: wished[0])
    return wished


def test_tf32_stays_the_users(wish):
    wish[0] = "tf32"
    with enabled() as turned:
        torch.mm(A, B)
        wish[0] = ""
        torch.mm(A, B)
    assert counted(turned) == {"mm": 1, "mm: TF32 is allowed": 1}


@pytest.mark.parametrize("capability", [(10, 0), (10, 3)])
def test_emulation_stays_the_users_where_there_is_any(wish, monkeypatch, capability):
    from fastsgemm.torch import decisions

    decisions._emulates.cache_clear()
    monkeypatch.setattr(decisions, "HOST", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda ordinal: capability)
    wish[0] = "bfx9"
    with enabled() as turned:
        torch.mm(A, B)
        torch.mm(A.double(), B.double())
    decisions._emulates.cache_clear()
    assert counted(turned) == {"mm: fp32_precision is 'bfx9'": 1, "mm: dtype float64": 1}


@pytest.mark.parametrize("precision", ["ieee", "fp16x3"])
def test_the_report_says_what_became_of_a_wish_for_emulation(wish, precision):
    with enabled(precision=precision) as turned:
        torch.mm(A, B)
        wish[0] = "bfx9"
        torch.mm(A, B)
        torch.mm(A, B)
    note = f"fp32_precision 'bfx9' needs compute capability 10.x; computed with precision {precision!r}"
    assert {(line.calls, line.reason, line.note) for line in turned.report().lines} == {(1, "", ""), (2, "", note)}
    assert turned.report().calls == 3 and turned.report().share == 1
    assert f"  mm          2 calls      240 FLOP  {note}" in repr(turned.report()).splitlines()


def test_what_a_later_pytorch_may_offer_stays_the_users(wish):
    wish[0] = "fp8"
    with enabled() as turned:
        torch.mm(A, B)
    assert counted(turned) == {"mm: fp32_precision is 'fp8'": 1}


def test_how_tf32_is_read():
    """In another process, because PyTorch does not let a program mix its three spellings as it likes."""
    program = """
import torch
from fastsgemm.torch.overrides import fp32_precision

def allowed():
    return {"": False, "tf32": True}[fp32_precision()]

matmul = torch.backends.cuda.matmul
assert not allowed()
torch.set_float32_matmul_precision("high")
assert allowed()
torch.set_float32_matmul_precision("highest")
assert not allowed()
matmul.allow_tf32 = True
assert allowed()
matmul.allow_tf32 = False
assert not allowed()
if hasattr(matmul, "fp32_precision"):
    matmul.fp32_precision = "tf32"
    assert allowed()
    matmul.fp32_precision = "ieee"
    assert not allowed()
"""
    subprocesses.run(program)


class TestTurning:
    def test_off_again(self):
        with enabled() as turned:
            A @ B
        A @ B
        assert counted(turned) == {"mm": 1}
        assert fastsgemm.torch.report().calls == 1

    def test_nested(self):
        with enabled(only=["mm"]) as outer:
            with enabled(only=["addmm"]) as inner:
                A @ B
                torch.addmm(C, A, B)
            A @ B
        assert (counted(outer), counted(inner)) == ({"mm": 1}, {"addmm": 1})

    def test_off_after_an_error(self):
        with pytest.raises(ZeroDivisionError), enabled() as turned:
            raise ZeroDivisionError
        A @ B
        assert not counted(turned)

    def test_enable_and_disable(self):
        turned = fastsgemm.torch.enable(device="cpu", only="mm")
        try:
            A @ B
            assert "on: mm on cpu" in repr(turned)
        finally:
            fastsgemm.torch.disable()
        fastsgemm.torch.disable()
        A @ B
        assert counted(turned) == {"mm": 1}
        assert "off: mm on cpu" in repr(turned)

    def test_a_failed_enable_changes_nothing(self):
        with enabled() as turned:
            with pytest.raises(ArgumentError, match=r"only must name operators of mm, .*, got 'gemm'"):
                fastsgemm.torch.enable(only=["gemm"], device="cpu")
            A @ B
        assert counted(turned) == {"mm": 1}

    def test_wrong_settings(self):
        with pytest.raises(ArgumentError, match="device must be one of cuda, cpu, got 'tpu'"):
            fastsgemm.torch.enable(device="tpu")
        with pytest.raises(ValueError, match="precision"):
            fastsgemm.torch.enable("fp8", device="cpu")

    def test_no_device(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        with pytest.raises(DeviceError, match=r"sees no CUDA device.*choose device 'cpu'.*--device cpu"):
            fastsgemm.torch.enable()

    def test_an_old_pytorch(self, monkeypatch):
        monkeypatch.delattr(torch.library, "get_kernel")
        with pytest.raises(MissingExtraError, match=r"needs PyTorch 2.9 or later"):
            fastsgemm.torch.enable(device="cpu")

    def test_all_threads(self):
        with enabled() as turned:
            run_all(lambda i: A @ B, 4)
        assert turned.report().calls == 4


class InThread:
    """Another thread, which does what it is told and has done it when `do` returns."""

    def __init__(self, executor):
        self._executor = executor

    def do(self, function, *arguments):
        return self._executor.submit(function, *arguments).result(timeout=60)


@pytest.fixture
def threads():
    """Two threads, each of which does one thing after the other."""
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        yield InThread(first), InThread(second)
    assert kernel_switch.periods.current is None and not kernel_switch.periods.blocks, "the switch is still on"


def product_is_counted_by(turned):
    before = turned.report().calls
    torch.mm(A, B)
    return turned.report().calls == before + 1


class TestThreads:
    """Threads turn the switch at the same time; which of them does what next is fixed."""

    @pytest.mark.parametrize("ends_first", [0, 1])
    def test_blocks_that_overlap(self, threads, ends_first):
        blocks = [enabled(), enabled()]
        turned = [thread.do(block.__enter__) for thread, block in zip(threads, blocks, strict=True)]
        assert product_is_counted_by(turned[1])
        threads[ends_first].do(blocks[ends_first].__exit__, None, None, None)
        assert product_is_counted_by(turned[1 - ends_first])
        threads[1 - ends_first].do(blocks[1 - ends_first].__exit__, None, None, None)
        assert not any(map(product_is_counted_by, turned))

    def test_blocks_above_enable(self, threads):
        one, other = threads
        process = one.do(lambda: fastsgemm.torch.enable(device="cpu"))
        block = enabled()
        turned = other.do(block.__enter__)
        assert product_is_counted_by(turned)
        other.do(block.__exit__, None, None, None)
        assert product_is_counted_by(process)
        one.do(fastsgemm.torch.disable)
        assert not product_is_counted_by(process)

    def test_disable_while_another_thread_is_in_a_block(self, threads):
        one, other = threads
        process = one.do(lambda: fastsgemm.torch.enable(device="cpu"))
        block = enabled()
        turned = other.do(block.__enter__)
        one.do(fastsgemm.torch.disable)
        assert product_is_counted_by(turned)  # the block goes on
        other.do(block.__exit__, None, None, None)
        assert not product_is_counted_by(process)  # and does not bring back what was taken away meanwhile

    def test_enable_while_another_thread_is_in_a_block(self, threads):
        one, other = threads
        block = enabled()
        turned = other.do(block.__enter__)
        process = one.do(lambda: fastsgemm.torch.enable(device="cpu"))
        assert product_is_counted_by(turned)
        other.do(block.__exit__, None, None, None)
        assert product_is_counted_by(process)
        one.do(fastsgemm.torch.disable)

    def test_disable_and_enable_within_a_block(self):
        with enabled() as outer:
            with enabled() as turned:
                fastsgemm.torch.disable()
                assert not product_is_counted_by(turned) and not product_is_counted_by(outer)
                again = fastsgemm.torch.enable(device="cpu")
                assert product_is_counted_by(again)
            assert product_is_counted_by(outer)
        assert not product_is_counted_by(outer)

    @pytest.mark.parametrize("failing", range(1, 4))
    def test_a_failure_half_way_changes_nothing(self, monkeypatch, failing):
        real, made = torch.library.Library.impl, []

        def fail(*given, **options):
            made.append(given)
            if len(made) == failing:
                raise MemoryError
            return real(*given, **options)

        with enabled() as turned:
            monkeypatch.setattr(torch.library.Library, "impl", fail)
            for turn in (lambda: enabled().__enter__(), lambda: fastsgemm.torch.enable(device="cpu")):
                made.clear()
                with pytest.raises(MemoryError):
                    turn()
                assert product_is_counted_by(turned)
                torch.addmm(C, A, B)
                assert counted(turned)["addmm"]
        assert not product_is_counted_by(turned)

    def test_what_is_kept_of_switches_that_are_off(self, monkeypatch):
        monkeypatch.setattr(kernel_switch, "_outliving", deque(maxlen=5))
        with enabled(only="mm") as turned:
            torch.mm(A, B)
        assert not any(override.decisions for override in turned._overrides) and turned.report().calls == 1
        alive = weakref.ref(turned._overrides[0])
        del turned
        for _ in range(5):
            with enabled(only="mm"):
                pass
        gc.collect()
        assert alive() is None


def test_a_block_decorates_a_function():
    turned = []

    @enabled(only="mm")
    def multiply(times):
        turned.append(kernel_switch.periods.current)
        torch.mm(A, B)
        return multiply(times - 1) if times else "done"

    assert multiply(2) == "done"
    assert [each.report().calls for each in turned] == [1, 1, 1]
    assert kernel_switch.periods.current is None


class TestFailures:
    def test_memory_that_pytorch_keeps_is_used(self, device, monkeypatch):
        """The first attempt finds no workspace, in which an operand without a unit stride is packed."""
        emptied = []

        def empty_cache():
            emptied.append(True)
            device.room = 1 << 20

        monkeypatch.setattr(driver, "cuMemGetInfo", lambda: (0, 100, 2000))
        monkeypatch.setattr(execution, "gpu_of", lambda ordinal: device)
        monkeypatch.setattr(execution, "current_stream", lambda ordinal: 5)
        monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
        a = torch.randn(6, 8)[::2, ::2]
        wanted = a @ B
        with enabled() as turned:
            for known in (False, True):
                for product in (torch.mm, torch.ops.fastsgemm.sgemm):
                    device.room = 0
                    close(product(a, B), wanted)
                assert len(emptied) == (4 if known else 2)
        assert counted(turned) == {"mm": 2}

    def test_no_memory_is_an_error_of_pytorchs_kind(self, device, monkeypatch):
        monkeypatch.setattr(driver, "cuMemGetInfo", lambda: (0, 100, 2000))
        monkeypatch.setattr(execution, "gpu_of", lambda ordinal: device)
        monkeypatch.setattr(execution, "current_stream", lambda ordinal: 5)
        monkeypatch.setattr(device, "room", 0)
        a, out = torch.randn(6, 8)[::2, ::2], torch.full((3, 5), 7.0)
        with (
            enabled(),
            pytest.raises(torch.OutOfMemoryError, match=r"mm.out of \(3, 4\) x \(4, 5\).*100 of 2000 are free"),
        ):
            torch.mm(a, B, out=out)
        with pytest.raises(
            torch.OutOfMemoryError, match=r"sgemm of \(3, 4\) and \(4, 5\).*100 of 2000 are free"
        ) as error:
            torch.ops.fastsgemm.sgemm(a, B)
        assert isinstance(error.value, DeviceMemoryError)
        # what accelerate's find_executable_batch_size and Lightning's tuner look for
        assert isinstance(error.value, RuntimeError) and len(error.value.args) == 1
        assert "CUDA out of memory." in error.value.args[0]
        assert (out == 7).all()

    def test_nothing_is_freed_while_the_stream_is_captured(self, device, monkeypatch):
        emptied = []
        monkeypatch.setattr(execution, "current_stream", lambda ordinal: 5)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
        device.capturing.add(5)
        execution.empty_cache(0)
        assert not emptied
        device.capturing.clear()
        execution.empty_cache(0)
        assert emptied

    def test_a_failure_names_the_operands(self, monkeypatch):
        def fail(*rest):
            raise CompileError("no")

        monkeypatch.setattr(execution, "on_host", fail)
        out = torch.full((3, 5), 7.0)
        with enabled(), pytest.raises(RuntimeError, match=r"mm.out of \(3, 4\) x \(4, 5\) on cpu: no"):
            torch.mm(A, B, out=out)
        assert (out == 7).all()


class TestReport:
    def test_flops_and_share(self):
        with enabled() as turned:
            A @ B
            A @ B
            torch.bmm(A3, B3)
            torch.mm(A, B, out=torch.empty(0))
        report = turned.report()
        assert (report.calls, report.flops) == (3, 4 * 2 * 3 * 4 * 5)
        assert report.share == 0.8
        assert [line.problem for line in report.replaced] == ["(3, 4) x (4, 5)", "(2, 3, 4) x (2, 4, 5)"]

    def test_it_reads(self):
        with enabled() as turned:
            A @ B
            A.double() @ B.double()
            A.double() @ B.double()
        assert repr(turned.report()).splitlines() == [
            "fastsgemm computed 1 product, 120 FLOP, 100.0% of float32 FLOPs",
            "  mm           1 call      120 FLOP",
            "  mm          2 calls        0 FLOP  passed on: dtype float64",
        ]

    def test_it_says_what_it_cannot_see(self, monkeypatch):
        import torch._inductor.config as config

        with enabled() as turned:
            A @ B
        assert turned.report().unseen == ""
        monkeypatch.setattr(config, "cpp_wrapper", True)
        assert repr(turned.report()).splitlines()[-1] == turned.report().unseen
        assert turned.report().unseen.startswith("products in code of inductor's C++ wrapper are neither replaced nor")

    def test_nothing(self):
        with enabled() as turned:
            pass
        assert repr(turned.report()).startswith("fastsgemm computed no product: ")

    def test_counts_survive_a_full_table(self, monkeypatch):
        from fastsgemm.torch import overrides

        monkeypatch.setattr(overrides, "_MOST_DECISIONS", 2)
        with enabled() as turned:
            for rows in (1, 2, 3, 3, 4, 1):
                torch.ones(rows, 4) @ B
        assert turned.report().calls == 6
        assert len(turned._overrides[0].decisions) <= 2


def test_every_operator_has_the_forms_of_pytorch():
    for operator, forms in kernel_switch.OPERATORS.items():
        if operator == "grouped_mm":  # has one form, which is composed of others on some devices
            continue
        names = (operator, "_addmm_activation") if operator == "addmm" else (operator,)
        exist = [
            form
            for name in names
            for form in (name, f"{name}.out", f"{name}_")
            if torch._C._dispatch_has_kernel(f"aten::{form}")
        ]
        registered = [form for form in exist if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{form}", "CPU")]
        assert set(registered) == {form for form in forms if ".dtype" not in form}
        assert {form.partition(".")[2] for form in forms if ".dtype" in form} in (set(), {"dtype", "dtype_out"})


def test_the_simulated_device(fresh_machine, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    with enabled() as turned:
        found = torch.addmm(C, A, B)
    np.testing.assert_allclose(found.numpy(), (C.double() + A.double() @ B.double()).numpy(), rtol=1e-5, atol=1e-5)
    assert counted(turned) == {"addmm": 1}


class TestBatchInvariance:
    def test_a_row_does_not_depend_on_the_others(self, fresh_machine, monkeypatch):
        monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
        x, weight, bias = torch.randn(9, 1100), torch.randn(6, 1100), torch.randn(6)
        with enabled(batch_invariant=True) as turned:
            among, alone = (torch.nn.functional.linear(each, weight, bias) for each in (x, x[4:5]))
            batch = torch.bmm(x[:2, None], weight.t().expand(2, 1100, 6))
            one = torch.bmm(x[1:2, None], weight.t()[None])
        assert torch.equal(among[4:5], alone)
        assert torch.equal(batch[1:], one)
        assert counted(turned) == {"addmm": 2, "bmm": 2}
        assert "batch-invariant" in repr(turned)

    def test_on_tensor_cores(self, fresh_machine, monkeypatch):
        monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
        x, weight = torch.randn(9, 300), torch.randn(6, 300)
        with enabled(precision="fp16x3", batch_invariant=True):
            among, alone = (torch.nn.functional.linear(each, weight) for each in (x, x[4:5]))
        assert torch.equal(among[4:5], alone)

    def test_it_needs_a_device(self):
        with (
            enabled(batch_invariant=True),
            pytest.raises(RuntimeError, match=r"mm of \(3, 4\) x \(4, 5\) on cpu: .*GPU"),
        ):
            A @ B


def test_a_block_entered_twice_ends_twice():
    block = enabled(only="mm")
    with block as outer:
        with block as inner:
            torch.mm(A, B)
        assert kernel_switch.periods.current is outer
        torch.mm(A, B)
    assert kernel_switch.periods.current is None and not kernel_switch.periods.blocks
    assert (outer.report().calls, inner.report().calls) == (1, 1)


def test_importing_and_enabling_do_not_initialise_cuda():
    """A child that is forked afterwards can use the device then, which a process without one shows by its calls."""
    program = """
import torch
import fastsgemm.torch
from fastsgemm.torch import kernel_switch
torch._C._cuda_getDeviceCount = torch._C._cuda_init = lambda: 1 / 0
torch.cuda.is_available = lambda: 1 / 0
torch.cuda.device_count = lambda: 1
kernel_switch._DEVICES = {"cuda": "CPU", "cpu": "CPU"}
fastsgemm.torch.enable()
fastsgemm.torch.disable()
"""
    subprocesses.run(program, FASTSGEMM_LAUNCHER="off", PYTHONWARNINGS="ignore")
