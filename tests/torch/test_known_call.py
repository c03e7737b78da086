"""A call on tensors that the launcher knows, beside the same call on the general way, and what it must not take.

The tensors lie in host memory and pose as those of a device, which is made of Python.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fastsgemm import BlockConfig, gemm, sgemm  # noqa: E402
from fastsgemm.call import arrays, driver  # noqa: E402
from fastsgemm.errors import OverlapError  # noqa: E402

Tensor = torch.Tensor


@pytest.fixture
def gpu(launcher, device, monkeypatch):
    """The Python device. All tensors are on it, and its current stream is 5."""
    library = arrays.library(torch.empty(0))
    monkeypatch.setattr(type(library), "device_of", lambda self, x: 0)
    monkeypatch.setattr(library, "_current", lambda ordinal: 5)
    monkeypatch.setattr(library, "_order", lambda x, handle: device.kept.append(("ordered", handle)))
    return device


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
    """Compare a call with one that goes the general way."""
    found = outcome(call, gpu)
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "known", {})
        assert found == outcome(call, gpu)
    return found


@pytest.mark.parametrize("which", PLAIN)
def test_a_plain_call_is_the_launchers_once_it_is_known(gpu, general, monkeypatch, which):
    call = PLAIN[which]
    call(*operands())
    assert len(general) == 1
    before = gpu.by_launcher
    (kind, *_), written, *_ = same_both_ways(call, gpu, monkeypatch)
    assert kind is Tensor and written and gpu.kept == []
    assert gpu.by_launcher > before and len(general) == 2  # the one that was compared with


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
    "unknown rung": lambda A, B, C: sgemm(A, B, C=C, rung=True),
    "unknown precision": lambda A, B, C: sgemm(A, B, C=C, precision=["ieee"]),
    "fp16x3 and rung 9": lambda A, B, C: sgemm(A, B, C=C, precision="fp16x3", rung="pipelined"),
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
def test_what_is_out_of_the_ordinary_is_as_on_the_general_way(gpu, monkeypatch, which):
    for known in ("C", "new", "rung 1", "fp16x3", "parameters, no grad"):
        PLAIN[known](*operands())
    for _ in range(2):  # also once its own plan is there
        same_both_ways(UNUSUAL[which], gpu, monkeypatch)


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


def test_a_matrix_and_its_transpose_are_told_from_other_memory(gpu, general):
    """Shapes, strides and alignment are the same."""
    A = values(64, 32)
    B = A + 1
    for _ in range(2):
        for one, other in ((A, A), (A, B), (B, B), (B, A)):
            torch.testing.assert_close(sgemm(one, other.T), one @ other.T, rtol=1e-4, atol=1e-4)
    assert len(general) <= 3  # one for each of both kinds, and one more where alignments differ


def test_what_was_forgotten_is_prepared_again(gpu, general):
    for _ in range(2):
        PLAIN["C"](*operands())
        gpu.forget_problems()
    assert len(general) == 2


def test_a_plan_of_before_it_was_forgotten_is_not_learnt(gpu, general, monkeypatch):
    call = gemm.multiply

    def forgets(*given):
        loaded = call(*given)
        gpu.forget_problems()
        return loaded

    monkeypatch.setattr(gemm, "multiply", forgets)
    for _ in range(2):
        PLAIN["C"](*operands())
    assert len(general) == 2


def test_a_known_call_in_a_capture(gpu, general):
    A, B, C = operands()
    for _ in range(2):
        gpu.capturing.add(5)
        sgemm(A, B, C=C)
        sgemm(A, B)
    assert len(general) == 2 and gpu.kept == []
