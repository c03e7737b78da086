"""A known call on tensors: what it does, and that everything out of the ordinary is done as by the first call.

The tensors lie in host memory and pose as those of a device, which is made of Python.
"""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fastsgemm import BlockConfig, SplitOperand, gemm, sgemm  # noqa: E402
from fastsgemm.call import arrays, driver  # noqa: E402
from fastsgemm.call.arrays.torch import _guards, allocator  # noqa: E402
from fastsgemm.errors import CaptureError, OverlapError  # noqa: E402
from fastsgemm.tuning import first_use  # noqa: E402

Tensor = torch.Tensor
LIBRARY = arrays.library(torch.empty(0))


@pytest.fixture
def gpu(device, monkeypatch):
    """The Python device. Tensors are on it, unless an attribute `place` names another device or, with -1, the host."""
    from fastsgemm.torch import products

    place = lambda x: getattr(x, "place", 0)  # noqa: E731
    monkeypatch.setattr(Tensor, "get_device", place)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda x: place(x) >= 0 and not hasattr(x, "foreign")))
    monkeypatch.setattr(LIBRARY, "_empty", allocator(torch, "cpu"))  # also where this PyTorch is for CUDA
    monkeypatch.setattr(LIBRARY, "_guards", guards_of_places(LIBRARY._guards))
    monkeypatch.setattr(LIBRARY, "_current", lambda ordinal: 5)
    monkeypatch.setattr(LIBRARY, "_order", lambda x, handle: device.kept.append(("ordered", handle)))
    monkeypatch.setattr(products, "current_stream", lambda ordinal: 5)
    return device


def guards_of_places(guards):
    """Return PyTorch's guards, which compare the device that a tensor poses to be on, too."""
    places = lambda tensors: [(x.get_device(), x.is_cuda) for x in tensors]  # noqa: E731

    def of(*tensors):
        fits, known = guards(*tensors), places(tensors)
        return lambda *others: fits(*others) and places(others) == known

    return guards and of


@pytest.fixture
def general(gpu, monkeypatch):
    """Return a list to which every call on the general way is added."""
    calls = []
    monkeypatch.setattr(gemm, "multiply", lambda *given, **more: calls.append(1) or driver.multiply(*given, **more))
    return calls


def values(*shape):
    """The same normal numbers for the same shape."""
    return torch.tensor(np.random.default_rng(sum(shape)).standard_normal(shape), dtype=torch.float32)


def operands():
    return values(6, 8), values(8, 5), values(6, 5)


class Stream:
    def __cuda_stream__(self):
        return 0, 9


PLAIN = {
    "C": lambda A, B, C: sgemm(A, B, C=C),
    "new": lambda A, B, C: sgemm(A, B),
    "alpha and beta": lambda A, B, C: sgemm(A, B, 0.3, -2, C),
    "beta 1": lambda A, B, C: sgemm(A, B, 1.0, 1.0, C),
    "alpha 0": lambda A, B, C: sgemm(A, B, 0.0, 0.5, C),
    "alpha 0, new": lambda A, B, C: sgemm(A, B, 0.0),
    "numbers of other types": lambda A, B, C: sgemm(A, B, np.float64(1 / 3), np.float32(2), C),
    "numbers that are integers": lambda A, B, C: sgemm(A, B, 3, 2, C),
    "alpha that rounds to 0": lambda A, B, C: sgemm(A, B, 1e-60, 1.0, C),
    "A and its transpose": lambda A, B, C: sgemm(A, A.T),
    "a transpose and its matrix": lambda A, B, C: sgemm(B.T, B, C=values(5, 5)),
    "batch of Gram matrices": lambda A, B, C: sgemm(torch.stack([A, -A]), torch.stack([A, -A]).mT, C=values(2, 6, 6)),
    "symmetric": lambda A, B, C: sgemm(A, A.T.clone(), symmetric=True),
    "infinite alpha": lambda A, B, C: sgemm(A, B, float("inf"), 1.0, C),
    "rung 1": lambda A, B, C: sgemm(A, B, C=C, rung=1),
    "rung 9, new": lambda A, B, C: sgemm(A, B, rung="pipelined"),
    "batch-invariant": lambda A, B, C: sgemm(A, B, C=C, batch_invariant=True),
    "batch-invariant, rung 9": lambda A, B, C: sgemm(A, B, batch_invariant=True, rung=9),
    "fp16x3": lambda A, B, C: sgemm(A, B, C=C, precision="fp16x3"),
    "column-major": lambda A, B, C: sgemm(A.T.contiguous().T, B, C=C.T.contiguous().T),
    "packed": lambda A, B, C: sgemm(A.repeat_interleave(2, 1)[:, ::2], B, C=C),
    "batch": lambda A, B, C: sgemm(torch.stack([A, -A]), B, C=torch.stack([C, C])),
    "vector": lambda A, B, C: sgemm(A, B[:, 0].contiguous(), C=C[:, 0].contiguous()),
    "no grad": lambda A, B, C: torch.no_grad()(sgemm)(A, B, C=C),
    "inference mode": lambda A, B, C: torch.inference_mode()(sgemm)(A, B, C=C),
    "parameter": lambda A, B, C: sgemm(A, torch.nn.Parameter(B, requires_grad=False), C=C),
    "parameters, no grad": lambda A, B, C: torch.no_grad()(sgemm)(torch.nn.Parameter(A), torch.nn.Parameter(B), C=C),
    "A requires grad, no grad": lambda A, B, C: torch.no_grad()(sgemm)(A.requires_grad_(), B),
    "C requires grad, no grad": lambda A, B, C: torch.no_grad()(sgemm)(A, B, 1.0, 1.0, C.requires_grad_()),
}


def outcome(call, gpu):
    """Return what a call returned or raised, what it wrote, and all that it did to the device."""
    A, B, C = operands()
    launched, kept = len(gpu.launched), len(gpu.kept)
    try:
        result = call(A, B, C)
    except Exception as error:
        result, said = None, (type(error), str(error))
    else:
        said = type(result), result.shape
        if isinstance(result, Tensor):
            said = *said, result.stride(), result.requires_grad, result.is_inference(), result._version
    handles = [handle for handle, _ in gpu.launched[launched:]]
    return said, bits(result), bits(C), C._version, handles, [each[0] for each in gpu.kept[kept:]]


def bits(x):
    return x.detach().resolve_neg().contiguous().numpy().tobytes() if isinstance(x, Tensor) and x.data_ptr() else b""


def same_both_ways(call, gpu, monkeypatch):
    """Compare a known call with one that goes the general way."""
    found = outcome(call, gpu)
    with monkeypatch.context() as patch:
        patch.setattr(type(LIBRARY), "multiply_known", arrays.Library.multiply_known)
        assert found == outcome(call, gpu)
    return found


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("which", PLAIN)
def test_a_plain_call_is_looked_up_once_it_is_known(gpu, general, monkeypatch, which, guarded):
    if not guarded:  # as in a version of PyTorch whose guards are not used
        monkeypatch.setattr(LIBRARY, "_guards", None)
    call = PLAIN[which]
    call(*operands())
    assert len(general) == 1
    (kind, *_), written, *_ = same_both_ways(call, gpu, monkeypatch)
    assert kind is Tensor and written and gpu.kept == []
    assert len(general) == 2  # the one that was compared with


@pytest.mark.parametrize("known", [True, False])
def test_the_values_are_those_of_numpy(gpu, known):
    for _ in range(1 + known):
        A, B, C = operands()
        old = C.clone()
        assert sgemm(A, B, 0.5, 2.0, C) is C
        np.testing.assert_allclose(C, 0.5 * (A.numpy() @ B.numpy()) + 2 * old.numpy(), rtol=1e-5, atol=1e-5)
        new = sgemm(A, B)
        np.testing.assert_allclose(new, A.numpy() @ B.numpy(), rtol=1e-5, atol=1e-5)


class Derived(Tensor):
    pass


class Redefining(Tensor):
    @classmethod
    def __torch_function__(cls, function, types, given=(), named=None):
        return super().__torch_function__(function, types, given, named or {})


def derived(x):
    return x.as_subclass(Derived)


def negative(x):
    return torch._neg_view(x)


def split(side):
    """A split operand without memory, which is refused in precision ieee before that matters."""
    found = object.__new__(SplitOperand)
    found.side, found.shape, found.nbytes, found._gpu = side, (6, 8), 0, SimpleNamespace(ordinal=0)
    return found


def moved(x, place):
    x.place = place
    return x


def foreign(x):
    """A tensor that is on device 0 of another kind than CUDA."""
    x.foreign = True
    return x


def freed(x):
    x.untyped_storage().resize_(0)
    return x


def freed_slice(x):
    """As FSDP frees parameters: views into one storage. PyTorch gives this one the address 16."""
    found = torch.cat([torch.zeros(4), x.flatten()])[4:].view(x.shape)
    freed(found)
    assert found.data_ptr() == 16
    return found


def tangent(call, which):
    def run(*given):
        with torch.autograd.forward_ad.dual_level():
            given = list(given)
            if which is not None:
                given[which] = torch.autograd.forward_ad.make_dual(given[which], torch.ones_like(given[which]))
            return torch.autograd.forward_ad.unpack_dual(call(*given)).primal

    return run


def mapped(A, B, C):
    return torch.func.vmap(lambda a: sgemm(a, B))(torch.stack([A, -A]))


def constant(A, B, C):
    """What PyTorch's dispatcher allocates in here has no memory, as on a device that is not the current one."""
    return torch.func.grad(lambda x: (sgemm(A, B) * x).sum())(C)


UNUSUAL = {
    "float64 A": lambda A, B, C: sgemm(A.double(), B, C=C),
    "float64 B": lambda A, B, C: sgemm(A, B.double()),
    "int32 C": lambda A, B, C: sgemm(A, B, C=C.int()),
    "A requires grad": lambda A, B, C: sgemm(A.requires_grad_(), B),
    "B requires grad, C given": lambda A, B, C: sgemm(A, B.requires_grad_(), C=C),
    "C requires grad": lambda A, B, C: sgemm(A, B, 1.0, 1.0, C.requires_grad_()),
    "B requires grad, rung 1": lambda A, B, C: sgemm(A, B.requires_grad_(), C=C, rung=1),
    "C requires grad, batch-invariant": lambda A, B, C: sgemm(A, B, 1.0, 1.0, C.requires_grad_(), batch_invariant=True),
    "negative A": lambda A, B, C: sgemm(negative(A), B, C=C),
    "negative B": lambda A, B, C: sgemm(A, negative(B)),
    "negative C": lambda A, B, C: sgemm(A, B, C=negative(C)),
    "a level of forward AD": tangent(lambda A, B, C: sgemm(A, B, C=C), None),
    "A with a tangent": tangent(lambda A, B, C: sgemm(A, B), 0),
    "subclass A": lambda A, B, C: sgemm(derived(A), B, C=C),
    "subclass B": lambda A, B, C: sgemm(A, derived(B), C=C),
    "subclass C": lambda A, B, C: sgemm(A, B, C=derived(C)),
    "A that redefines operations": lambda A, B, C: sgemm(A.as_subclass(Redefining), B, C=C),
    "B that redefines operations": lambda A, B, C: sgemm(A, B.as_subclass(Redefining), C=C),
    "C that redefines operations": lambda A, B, C: sgemm(A, B, C=C.as_subclass(Redefining)),
    "parameter": lambda A, B, C: sgemm(A, torch.nn.Parameter(B)),
    "NumPy's B": lambda A, B, C: sgemm(A, B.numpy(), C=C),
    "NumPy's C": lambda A, B, C: sgemm(A, B, C=C.numpy()),
    "no array": lambda A, B, C: sgemm(A, "B", C=C),
    "stream": lambda A, B, C: sgemm(A, B, C=C, stream=Stream()),
    "no stream": lambda A, B, C: sgemm(A, B, C=C, stream=7),
    "out": lambda A, B, C: sgemm(A, B, 1.0, 1.0, C[0], out=C + 1),
    "out beside C": lambda A, B, C: sgemm(A, B, 1.0, 1.0, C, out=C + 1),
    "out that is C": lambda A, B, C: sgemm(A, B, 1.0, 1.0, C, out=C),
    "config": lambda A, B, C: sgemm(A, B, C=C, rung=1, config=BlockConfig(8, 8)),
    "no config": lambda A, B, C: sgemm(A, B, C=C, config="large"),
    "split A": lambda A, B, C: sgemm(split("A"), B, C=C),
    "split B": lambda A, B, C: sgemm(A, split("B"), C=C),
    "unknown rung": lambda A, B, C: sgemm(A, B, C=C, rung=True),
    "unknown precision": lambda A, B, C: sgemm(A, B, C=C, precision=["ieee"]),
    "fp16x3 and batch-invariant": lambda A, B, C: sgemm(A, B, C=C, precision="fp16x3", batch_invariant=True),
    "beta without C": lambda A, B, C: sgemm(A, B, 1.0, 1.0),
    "alpha that is no number": lambda A, B, C: sgemm(A, B, torch.ones(()), C=C),
    "alpha beyond float32": lambda A, B, C: sgemm(A, B, 1e60, C=C),
    "beta that is no number": lambda A, B, C: sgemm(A, B, 1.0, "0", C),
    "A that was freed": lambda A, B, C: sgemm(freed(A), B, C=C),
    "B that was freed": lambda A, B, C: sgemm(A, freed(B)),
    "C that was freed": lambda A, B, C: sgemm(A, B, C=freed(C)),
    "A that is a slice of what was freed": lambda A, B, C: sgemm(freed_slice(A), B),
    "B that is a slice of what was freed": lambda A, B, C: sgemm(A, freed_slice(B), C=C),
    "C that is a slice of what was freed": lambda A, B, C: sgemm(A, B, C=freed_slice(C)),
    "A on the host": lambda A, B, C: sgemm(moved(A, -1), B, C=C),
    "B on the host": lambda A, B, C: sgemm(A, moved(B, -1)),
    "B on another device": lambda A, B, C: sgemm(A, moved(B, 1), C=C),
    "A on another kind of device": lambda A, B, C: sgemm(foreign(A), B),
    "C on another kind of device": lambda A, B, C: sgemm(A, B, C=foreign(C)),
    "sparse A": lambda A, B, C: sgemm(A.to_sparse(), B, C=C),
    "sparse C": lambda A, B, C: sgemm(A, B, C=C.to_sparse()),
    "C in compressed rows": lambda A, B, C: sgemm(A, B, C=C.to_sparse_csr()),
    "zeros without memory": lambda A, B, C: sgemm(A, B, C=torch._efficientzerotensor(6, 5)),
    "nested A": lambda A, B, C: sgemm(torch.nested.nested_tensor([A, A]), B),
    "nested B": lambda A, B, C: sgemm(A, torch.nested.nested_tensor([B, B]), C=C),
    "nested C": lambda A, B, C: sgemm(A, B, C=torch.nested.nested_tensor([C, C])),
    "inside a transform": mapped,
    "constants inside a transform": constant,
    "shapes that do not fit": lambda A, B, C: sgemm(A, B[:7], C=C),
    "a C that does not fit": lambda A, B, C: sgemm(A, B, C=C[:5]),
    "a number for A": lambda A, B, C: sgemm(A[0, 0], B),
    "vectors, new": lambda A, B, C: sgemm(A[0], B),
    "batch, new": lambda A, B, C: sgemm(torch.stack([A, -A]), B),
    "no rows": lambda A, B, C: sgemm(A[:0], B),
    "no columns": lambda A, B, C: sgemm(A, B[:, :0], C=C[:, :0]),
    "no steps": lambda A, B, C: sgemm(A[:, :0], B[:0], 1.0, 3.0, C),
    "no steps, new": lambda A, B, C: sgemm(A[:, :0], B[:0]),
    "expanded C": lambda A, B, C: sgemm(A, B, C=C[:1].expand(6, 5)),
}


@pytest.mark.parametrize("which", UNUSUAL)
def test_what_is_out_of_the_ordinary_is_as_ever(gpu, general, monkeypatch, which):
    for call in (PLAIN["C"], PLAIN["new"], PLAIN["rung 1"], PLAIN["fp16x3"], PLAIN["parameters, no grad"]):
        for _ in range(2):  # the second call makes the guards
            call(*operands())
    for _ in range(2):  # also once its own plan is there
        same_both_ways(UNUSUAL[which], gpu, monkeypatch)


@pytest.mark.parametrize("lead", ["C", "new"])
def test_another_current_device_is_left_as_it_was(gpu, general, monkeypatch, lead):
    done = []
    PLAIN[lead](*operands())
    monkeypatch.setattr(gpu, "enter", lambda: done.append("enter") or True)
    monkeypatch.setattr(gpu, "leave", lambda: done.append("leave"), raising=False)
    monkeypatch.setattr(gpu, "launch", lambda *given: done.append("launch") or (0,))
    PLAIN[lead](*operands())
    assert done == ["enter", "launch", "leave"] and len(general) == 1


def test_a_known_call_asks_pytorchs_guards_and_reads_little_else(gpu, general, monkeypatch):
    for _ in range(2):  # the second call makes the guards
        PLAIN["C"](*operands())
        PLAIN["new"](*operands())
    monkeypatch.setattr(LIBRARY, "_recognise", None)
    PLAIN["C"](*operands())
    PLAIN["new"](*operands())
    assert len(general) == 1 and len(gpu.recognised) == 2


def test_the_same_shapes_with_other_strides_have_plans_of_their_own(gpu, general):
    A, B, C = values(8, 8), values(8, 7)[:, :-1].T.contiguous().T, values(8, 6)
    wider = [values(8, 6 + more)[:, :6] for more in range(20)]  # more than are kept beside each other
    for _ in range(3):
        for a in (A, A.T.contiguous().T):
            for b in (B, B.contiguous(), *wider):
                C.fill_(np.nan)
                np.testing.assert_allclose(sgemm(a, b, C=C), A.numpy() @ b.numpy(), rtol=1e-4, atol=1e-5)
    assert len(general) == len(gpu.prepared)
    assert {len(alike) for alike in gpu.recognised.values()} == {16}


def test_an_operand_that_is_given_twice_is_recognised_each_time(gpu, general):
    A, B, C = values(8, 8), values(4, 16).reshape(8, 8), values(8, 8)
    for b in (B, A, A, B, A):
        assert sgemm(A, b, C=C) is C
        np.testing.assert_allclose(C, A.numpy() @ b.numpy(), rtol=1e-4, atol=1e-5)
    # A product of one matrix with itself has a plan of its own: B might be A transposed.
    assert len(general) == 2 and [len(alike) for alike in gpu.recognised.values()] == [1]


def test_calls_that_are_refused_leave_nothing_that_later_calls_look_through(gpu, general):
    A, B, C = values(8, 8), values(4, 16).reshape(8, 8), values(8, 8)
    sgemm(A, B, C=C)
    for _ in range(3):
        for lost in (A, B):
            with pytest.raises(OverlapError):
                sgemm(A, B, C=lost)
    assert gpu.recognised == {}
    sgemm(A, B, C=C)
    assert [len(alike) for alike in gpu.recognised.values()] == [1]


@pytest.mark.parametrize(
    ("version", "used"), [("2.5.1", False), ("2.6.0a0+git1", True), ("2.14.1+cu130", True), ("2.15", False)]
)
def test_guards_are_used_in_versions_that_are_known(version, used):
    assert (_guards(SimpleNamespace(__version__=version, _C=torch._C)) is not None) is used


def test_a_new_stream_is_adopted(gpu, general, monkeypatch):
    PLAIN["C"](*operands())
    monkeypatch.setattr(LIBRARY, "_current", lambda ordinal: 6)
    for _ in range(2):
        PLAIN["C"](*operands())
    assert gpu.streams == {5, 6} and [handle for handle, _ in gpu.launched] == [5, 6, 6]
    assert len(general) == 2  # the last call knew the stream


def test_memory_that_c_may_share_is_looked_at(gpu, general):
    memory, B = values(8, 16), values(4, 5)
    A = memory[:3, :4]
    for apart in (memory[4:7, 3:8], memory[4:7, 4:9]):  # make the plans
        sgemm(A, B, C=apart)
    wanted = A.numpy() @ B.numpy()
    before, launched = memory.clone(), len(gpu.launched)
    for _ in range(2):
        with pytest.raises(OverlapError, match="C shares memory with A"):
            sgemm(A, B, C=memory[2:5, 3:8])
    with pytest.raises(OverlapError, match="C shares memory with B"):
        sgemm(values(4, 4), memory[4:8, :4], C=memory[4:8, :4])
    assert torch.equal(memory, before) and len(gpu.launched) == launched
    between = memory[:3, 4:9]  # its bytes lie between those of A, but none is shared
    assert sgemm(A, B, C=between) is between
    np.testing.assert_allclose(between, wanted, rtol=1e-5, atol=1e-5)


def test_each_alignment_has_its_plan(gpu, general):
    memory, B = values(6, 64), values(8, 5)
    for offset in (0, 1, 4, 5):
        np.testing.assert_allclose(
            sgemm(memory[:, offset : offset + 8], B), memory[:, offset : offset + 8].numpy() @ B.numpy(), rtol=1e-4
        )
    assert len(gpu.prepared) == len(general) == 2


def test_a_result_at_another_alignment_is_not_launched_with_that_plan(gpu, general, monkeypatch):
    def shifted(shape, strides, ordinal, like):
        memory = torch.empty(64)
        return memory.as_strided(shape, strides, -memory.data_ptr() // 4 % 4 + 1)

    A, B, _ = operands()
    wanted = bits(sgemm(A, B))
    monkeypatch.setattr(LIBRARY, "_empty", shifted)
    assert bits(sgemm(A, B)) == wanted
    assert len(gpu.prepared) == len(general) == 2


def test_what_was_forgotten_is_prepared_again(gpu, general):
    for _ in range(2):
        PLAIN["C"](*operands())
        gpu.forget_problems()
    assert len(general) == 2


def test_inside_a_capture_what_is_known_is_launched_and_nothing_else(gpu):
    A, B, C = operands()
    gpu.capturing.add(5)
    with pytest.raises(CaptureError):
        sgemm(A, B, C=C)
    gpu.capturing.clear()
    sgemm(A, B, C=C)
    gpu.capturing.add(5)
    launched = len(gpu.launched)
    sgemm(A, B, C=C)
    sgemm(A, B)
    assert len(gpu.launched) == launched + 2 and gpu.kept == []


def test_threads_share_what_is_known(gpu, general):
    given = [(values(6, 8) + i, values(8, 5) - i) for i in range(4)]
    sgemm(*given[0])
    wrong = []

    def work(A, B):
        for _ in range(50):
            wrong.extend([1] * (not np.allclose(sgemm(A, B), A.numpy() @ B.numpy(), rtol=1e-4, atol=1e-4)))

    threads = [threading.Thread(target=work, args=each) for each in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(general) == 1 and len(gpu.launched) == 201


def test_a_device_that_is_not_ready_takes_the_general_way(gpu, general, monkeypatch):
    """As while another thread tunes it: its table has plans, but calls have to wait."""
    PLAIN["C"](*operands())
    monkeypatch.delitem(first_use.opened, 0)
    monkeypatch.setattr(first_use, "open_device", lambda *given: gpu)
    PLAIN["C"](*operands())
    assert len(general) == 2


@pytest.mark.parametrize("ordinal", [arrays.HOST, 3], ids=["current", "another"])
def test_a_tensor_is_allocated_as_by_pytorch(ordinal):
    make = allocator(torch, "cpu")
    like = torch.ones(1)
    found = make((4, 3), (1, 4), ordinal, like)
    assert (type(found), found.shape, found.stride()) == (Tensor, (4, 3), (1, 4))
    assert (found.dtype, found.device, found._version) == (torch.float32, like.device, 0)
    with torch.inference_mode():
        assert make((2,), (1,), ordinal, like).is_inference()


def test_a_tensor_is_allocated_by_an_older_pytorch():
    older = SimpleNamespace(_C=SimpleNamespace(), float32=torch.float32, empty_strided=torch.empty_strided)
    found = allocator(older, "cuda")((4, 3), (1, 4), 0, torch.ones(1))
    assert (found.shape, found.stride(), found.dtype) == ((4, 3), (1, 4), torch.float32)


def test_a_known_call_tells_a_matrix_and_its_transpose_from_other_memory(gpu, general):
    """Shapes, strides and alignment are the same; the guards look at nothing else."""
    A = values(64, 32)
    B = A + 1
    pairs = (A, A), (A, B), (B, B), (B, A)
    for _ in range(2):
        for one, other in pairs:
            torch.testing.assert_close(sgemm(one, other.T), one @ other.T, rtol=1e-4, atol=1e-4)
    assert len(general) <= 3  # one for each of both kinds, and one more where alignments differ
    kernels = {dict(each.constants)["SYM"] for each in gpu.kernels if each.file == "09_pipelined.cu"}
    assert kernels >= {0}
