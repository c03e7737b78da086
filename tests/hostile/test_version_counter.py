"""PyTorch sees every write to a tensor of the caller's: autograd refuses to use values that are gone."""

import numpy as np
import pytest

from fastsgemm import sgemm
from fastsgemm.errors import OverlapError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def place(request, torch, on_host):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no device")
    return request.param


def test_backward_refuses_values_that_were_overwritten(torch, place, tried):
    x = torch.full((2, 2), 5.0, device=place, requires_grad=True)
    W, A = torch.full((2, 2), 5.0, device=place), torch.ones(2, 2, device=place)
    y = (x * W).sum()
    sgemm(A, A, C=W)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    assert x.grad is None
    tried("tensor saved by autograd and overwritten")


def test_every_write_is_counted_and_nothing_else(torch, place, tried):
    A, C = torch.ones(4, 4, device=place), torch.ones(8, 4, device=place)
    for part in (C[:4], C[::2], C[4:].T):
        before = C._version
        sgemm(A, A, 1.0, 1.0, part)
        assert C._version > before  # a view shares the counter of its base
        tried("tensor saved by autograd and overwritten")
    before = A._version, C._version
    sgemm(A, A)
    with pytest.raises(OverlapError):
        sgemm(A, A, C=A)
    assert (A._version, C._version) == before


@pytest.mark.parametrize("inside", [True, False])
def test_inference_tensors_have_no_counter(torch, place, inside, tried):
    with torch.inference_mode():
        C = torch.zeros(2, 2, device=place)
    ordinary = torch.ones(2, 2, device=place)
    with torch.inference_mode(inside):
        assert sgemm(ordinary, ordinary, C=C) is C
        before = ordinary._version
        sgemm(C, C, C=ordinary)
    assert (C.cpu().numpy() == 2).all() and (ordinary.cpu().numpy() == 8).all()
    assert ordinary._version > before
    tried("tensor saved by autograd and overwritten", 2)


def test_an_older_torch_that_raises_for_inference_tensors(torch, place, monkeypatch):
    from types import SimpleNamespace

    from fastsgemm.call import arrays
    from fastsgemm.call.arrays.torch import _version_counter

    def raising(x):
        raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed.")

    with torch.inference_mode():
        C = torch.zeros(2, 2, device=place)
    ones = torch.ones(2, 2, device=place)
    library = arrays.library(C)
    autograd = SimpleNamespace(graph=SimpleNamespace(increment_version=raising))
    older = SimpleNamespace(_C=SimpleNamespace(), autograd=autograd, empty=torch.empty)
    monkeypatch.setattr(library, "_increment_version", _version_counter(older))
    for _ in range(2):
        assert sgemm(ones, ones, C=C) is C
    with pytest.raises(RuntimeError, match="Inplace update"):
        library.written(ones)


def test_a_torch_without_the_quicker_function(torch):
    from types import SimpleNamespace

    from fastsgemm.call.arrays.torch import _version_counter

    def one_tensor(x):
        assert isinstance(x, torch.Tensor), "increment_version(): argument 'tensor' must be Tensor, not tuple"
        torch.autograd.graph.increment_version(x)

    def refusing(x):
        raise TypeError("_increment_version(): incompatible function arguments")

    graph = SimpleNamespace(increment_version=one_tensor)
    older = SimpleNamespace(
        _C=SimpleNamespace(_increment_version=refusing), autograd=SimpleNamespace(graph=graph), empty=torch.empty
    )
    x = torch.ones(1)
    for version in (older, torch):
        before = x._version
        _version_counter(version)((x,))
        assert x._version > before


def test_a_tensor_c_among_other_kinds(torch, on_host, tried):
    A, C = np.ones((2, 2), np.float32), torch.ones(2, 2)
    before = C._version
    sgemm(A, A, C=C)
    assert C._version > before
    tried("tensor saved by autograd and overwritten")
