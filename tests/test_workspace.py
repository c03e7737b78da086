"""Workspace: stream, size and errors, on a card made of Python."""

import pytest
from cuda.bindings import driver

from fastsgemm import workspace
from fastsgemm.device import LEGACY_STREAM
from fastsgemm.errors import DeviceError, DeviceMemoryError


def test_what_is_taken_is_given_back_on_the_same_stream(card):
    addresses = [workspace.take(card, 7, size, "a test") for size in (4, 100)]
    assert [(each.address, each.size, each.handle) for each in card.made] == [
        (addresses[0], 4, 7),
        (addresses[1], 100, 7),
    ]
    workspace.give_back(card, 7, addresses[0])
    assert [each.open for each in card.made] == [False, True]


def test_no_bytes_are_one_and_the_default_stream_is_the_legacy_one(card):
    address = workspace.take(card, 0, 0, "a test")
    workspace.give_back(card, 0, address)
    assert [(each.size, each.handle, each.open) for each in card.made] == [(1, LEGACY_STREAM, False)]


def test_no_room_says_how_much_and_what_to_do(card, monkeypatch):
    monkeypatch.setattr(driver, "cuMemGetInfo", lambda: (0, 1000, 4000))
    card.room = 2000
    message = (
        r"Python has no room for partial sums: 3000 bytes are needed, 1000 of 4000 are free\. Free some, .*empty_cache"
    )
    with pytest.raises(DeviceMemoryError, match=message) as caught:
        workspace.take(card, 7, 3000, "partial sums")
    assert isinstance(caught.value, MemoryError)


def test_other_failures_name_themselves(card, monkeypatch):
    answer = driver.CUresult.CUDA_ERROR_NOT_SUPPORTED
    monkeypatch.setattr(card, "allocate", lambda size, handle: (answer, None))
    with pytest.raises(DeviceError, match="allocating 8 bytes for a test failed: CUDA_ERROR_NOT_SUPPORTED"):
        workspace.take(card, 7, 8, "a test")
    monkeypatch.setattr(card, "free", lambda address, handle: (driver.CUresult.CUDA_ERROR_INVALID_VALUE,))
    with pytest.raises(DeviceError, match="giving back workspace failed: CUDA_ERROR_INVALID_VALUE"):
        workspace.give_back(card, 7, 8)
