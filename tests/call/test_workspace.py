"""Workspace: each call has its own, in the order of its stream, on a device made of Python."""

import numpy as np
import pytest

from fastsgemm import PipelinedConfig, sgemm
from fastsgemm.call import driver, workspace
from fastsgemm.errors import DeviceError, OperandError
from fastsgemm.geometry.tensor_map import END

STREAM = 5
SPLIT = {"rung": "pipelined", "config": PipelinedConfig(32, 64, 8, 4, 4, 32, 32, 1, SPLIT_K=3)}


@pytest.fixture
def product(on_device, random):
    """Return a function that multiplies new operands and checks the result."""

    def multiply(alpha=1.0, beta=0.0):
        a, b, c = random(20, 96), random(96, 40), random(20, 40)
        C = c.copy()
        sgemm(on_device(a), on_device(b), alpha, beta, on_device(C), **SPLIT)
        np.testing.assert_allclose(C, alpha * (a @ b) + beta * c, rtol=1e-4, atol=1e-4)

    return multiply


def test_each_call_allocates_and_frees_it_on_its_stream(device, product):
    for _ in range(3):
        product()
    assert [(each.handle, each.open) for each in device.made] == 3 * [(STREAM, False)]
    assert [handle for handle, _ in device.launched] == 6 * [STREAM]  # the parts, and their sum


def test_a_capture_does_the_same(device, product):
    product()
    device.capturing.add(STREAM)
    product()
    assert [(each.handle, each.open) for each in device.made] == 2 * [(STREAM, False)]


def test_calls_that_need_none_have_none(device, on_device, random):
    sgemm(on_device(random(20, 96)), on_device(random(96, 40)), rung="naive")
    assert device.made == []


def test_a_call_that_interrupts_another_has_its_own(device, product, monkeypatch):
    """As from a finaliser, which Python may run between any two steps."""
    launch, interrupted = device.launch, []

    def interrupting(*given):
        if not interrupted:
            interrupted.append(True)
            product()
        return launch(*given)

    monkeypatch.setattr(device, "launch", interrupting)
    product()
    assert len({each.address for each in device.made}) == 2 and not device.leaks


def test_a_launch_that_fails_frees_it(device, product, monkeypatch):
    from cuda.bindings.driver import CUresult

    monkeypatch.setattr(device, "launch", lambda *given: (CUresult.CUDA_ERROR_LAUNCH_FAILED,))
    with pytest.raises(DeviceError, match=r"launching fastsgemm_pipelined with .* failed: CUDA_ERROR_LAUNCH_FAILED"):
        product()
    assert len(device.made) == 1 and not device.leaks


def test_other_failures_name_themselves(device, monkeypatch):
    from cuda.bindings import driver as cuda

    monkeypatch.setattr(device, "allocate", lambda size, handle: (cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED, None))
    with pytest.raises(DeviceError, match="allocating 8 bytes for a test failed: CUDA_ERROR_NOT_SUPPORTED"):
        workspace.allocate(device, 7, 8, "a test")
    monkeypatch.setattr(device, "free", lambda address, handle: (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,))
    with pytest.raises(DeviceError, match="freeing workspace failed: CUDA_ERROR_INVALID_VALUE"):
        workspace.free(device, 7, 8)


def test_an_address_that_a_tensor_copy_cannot_have_is_refused(device, product):
    """It would read zeros there."""
    product()
    [plan] = device.prepared.values()
    launched = len(device.launched)
    assert type(plan) is driver.LoadedPlan and not plan.has_tensor_maps
    plan.has_tensor_maps = True
    with pytest.raises(OperandError, match=r"addresses below 2\^48; A is at 0x1000000000000, B at 0x10; pass a copy"):
        plan.launch(STREAM, (END, 16, 32, 0, 0, 0), 1.0, 0.0)
    with pytest.raises(OperandError, match=r"A is at 0x10, B at 0x1000000000000; pass a copy"):
        plan.launch(STREAM, (16, END, 32, 0, 0, 0), 1.0, 0.0)
    assert len(device.launched) == launched
