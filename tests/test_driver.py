"""Calls of the driver: their answers, and captures."""

import pytest
from cuda.bindings import driver

from fastsgemm.driver import check_driver, is_capturing, relaxed_capture
from fastsgemm.errors import DeviceError

OK = driver.CUresult.CUDA_SUCCESS


def test_an_answer_of_the_driver_that_is_no_success_names_itself():
    check_driver("this", (OK,))
    with pytest.raises(DeviceError, match="that failed: CUDA_ERROR_OUT_OF_MEMORY"):
        check_driver("that", (driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY,))


def test_capture_is_asked_of_the_driver(monkeypatch):
    status = driver.CUstreamCaptureStatus
    for answer, expected in (
        ((OK, status.CU_STREAM_CAPTURE_STATUS_NONE), False),
        ((OK, status.CU_STREAM_CAPTURE_STATUS_ACTIVE), True),
        ((driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, None), True),
    ):
        monkeypatch.setattr(driver, "cuStreamIsCapturing", lambda handle, answer=answer: answer)
        assert is_capturing(1) is expected


def test_the_capture_mode_comes_back_after_an_error(monkeypatch):
    modes = []
    monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", lambda mode: modes.append(mode) or (OK, "global"))
    with pytest.raises(KeyError), relaxed_capture():
        raise KeyError
    assert modes[1:] == ["global"]
