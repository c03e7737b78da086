"""Tensors that tests of the switch multiply on the host, and what they ask afterwards. It needs PyTorch."""

import pytest
import torch

import fastsgemm.torch

A, B, C, V = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5), torch.randn(4)
A3, B3, C3 = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(2, 3, 5)


def enabled(**settings):
    return fastsgemm.torch.enabled(device="cpu", **settings)


def counted(turned):
    """Return the calls by operator and reason."""
    found = {}
    for line in turned.report().lines:
        key = f"{line.operator}: {line.reason}" if line.reason else line.operator
        found[key] = found.get(key, 0) + line.calls
    return found


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def assert_refused_as_by_pytorch(call):
    """Compare the error of a call under the switch with PyTorch's own."""
    with pytest.raises(Exception) as wanted:  # noqa: PT011  (whatever it is)
        call()
    with enabled(), pytest.raises(type(wanted.value)) as found:
        call()
    assert str(found.value) == str(wanted.value)
