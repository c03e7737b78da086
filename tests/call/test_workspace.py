"""Workspace: stream, size and errors, on a device made of Python."""

import pytest
from cuda.bindings import driver

from fastsgemm.call import workspace
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import DeviceError, DeviceMemoryError


def test_what_is_taken_is_given_back_on_the_same_stream(device):
    addresses = [workspace.allocate(device, 7, size, "a test") for size in (4, 100)]
    assert [(each.address, each.size, each.handle) for each in device.made] == [
        (addresses[0], 4, 7),
        (addresses[1], 100, 7),
    ]
    workspace.free(device, 7, addresses[0])
    assert [each.open for each in device.made] == [False, True]


def test_no_bytes_are_one_and_the_default_stream_is_the_legacy_one(device):
    address = workspace.allocate(device, 0, 0, "a test")
    workspace.free(device, 0, address)
    assert [(each.size, each.handle, each.open) for each in device.made] == [(1, LEGACY_STREAM, False)]


def test_no_room_says_how_much_and_what_to_do(device, monkeypatch):
    monkeypatch.setattr(driver, "cuMemGetInfo", lambda: (0, 1000, 4000))
    device.room = 2000
    message = (
        r"Python has no room for partial sums: 3000 bytes are needed, 1000 of 4000 are free\. Free some, .*empty_cache"
    )
    with pytest.raises(DeviceMemoryError, match=message) as caught:
        workspace.allocate(device, 7, 3000, "partial sums")
    assert isinstance(caught.value, MemoryError)


def test_other_failures_name_themselves(device, monkeypatch):
    answer = driver.CUresult.CUDA_ERROR_NOT_SUPPORTED
    monkeypatch.setattr(device, "allocate", lambda size, handle: (answer, None))
    with pytest.raises(DeviceError, match="allocating 8 bytes for a test failed: CUDA_ERROR_NOT_SUPPORTED"):
        workspace.allocate(device, 7, 8, "a test")
    monkeypatch.setattr(device, "free", lambda address, handle: (driver.CUresult.CUDA_ERROR_INVALID_VALUE,))
    with pytest.raises(DeviceError, match="freeing workspace failed: CUDA_ERROR_INVALID_VALUE"):
        workspace.free(device, 7, 8)
