"""The public call on device arrays, on a device made of Python: order, streams, kinds, and what is left untouched."""

from types import SimpleNamespace

import numpy as np
import pytest

from fastsgemm import BlockConfig, PipelinedConfig, sgemm
from fastsgemm.call import arrays
from fastsgemm.errors import (
    ConfigError,
    DTypeError,
    OperandError,
    OverlapError,
    PrecisionError,
    ScalarRangeError,
    ShapeError,
    StreamError,
)

HOW = {"rung": "naive", "config": BlockConfig(32, 32)}  # no look at the tuning database


class Stream:
    def __init__(self, handle, version=0):
        self._answer = (version, handle)

    def __cuda_stream__(self):
        return self._answer


@pytest.fixture
def operands(device, on_device, random):
    return on_device(random(3, 4)), on_device(random(4, 5)), on_device(random(3, 5))


def close(result, expected):
    return np.allclose(result.values, expected, rtol=1e-5, atol=1e-5)


def test_a_product_into_c_returns_c(device, operands):
    A, B, C = operands
    expected = 2 * (A.values @ B.values) - 0.5 * C.values
    assert sgemm(A, B, 2.0, -0.5, C, **HOW) is C
    assert close(C, expected)


def test_without_c_the_result_is_new_and_of_the_same_kind(device, operands):
    A, B, _ = operands
    result = sgemm(A, B, **HOW)
    assert type(result) is type(A) and result not in operands
    assert close(result, A.values @ B.values)


def test_work_goes_to_the_current_stream_and_nothing_waits_or_is_kept(device, operands):
    A, B, C = operands
    sgemm(A, B, C=C, **HOW)
    assert [handle for handle, _ in device.launched] == [5]
    assert set(arrays.library(A).viewed) == {(5, True)}
    assert device.kept == []


def test_another_stream_waits_for_the_operands_and_keeps_them(device, operands):
    A, B, C = operands
    sgemm(A, B, C=C, stream=Stream(9), **HOW)
    assert [handle for handle, _ in device.launched] == [9]
    assert set(arrays.library(A).viewed) == {(9, False)}
    assert device.kept == [(9, [A, B, C, C])]


def test_a_stream_that_is_captured_waits_for_nothing(device, operands):
    A, B, C = operands
    sgemm(A, B, C=C, **HOW)
    arrays.library(A).viewed.clear()
    device.capturing.add(9)
    sgemm(A, B, C=C, stream=Stream(9), **HOW)
    assert set(arrays.library(A).viewed) == {(9, True)}
    assert device.kept == []


@pytest.mark.parametrize(
    "stream", [7, "stream", object(), SimpleNamespace(ptr=3)], ids=["number", "text", "object", "pointer"]
)
def test_a_stream_without_the_protocol_is_refused(device, operands, stream):
    A, B, C = operands
    with pytest.raises(StreamError, match="stream must have __cuda_stream__"):
        sgemm(A, B, C=C, stream=stream, **HOW)
    assert device.launched == []


def test_a_stream_of_a_later_protocol_is_refused(device, operands):
    A, B, C = operands
    with pytest.raises(StreamError, match="speaks version 1 of __cuda_stream__, only version 0 is supported"):
        sgemm(A, B, C=C, stream=Stream(9, version=1), **HOW)


def test_an_array_of_a_library_that_is_not_the_leads_is_ordered_and_kept(device, operands, monkeypatch):
    class Other(type(operands[0])):
        pass

    A, B, C = operands
    other = type(arrays.library(A))()
    monkeypatch.setitem(arrays.by_type, Other, other)
    foreign = Other(B.values)
    sgemm(A, foreign, C=C, **HOW)
    assert other.viewed == [(5, False)]
    assert device.kept == [(5, [A, foreign, C, C])]
    assert close(C, A.values @ B.values)


def test_arrays_that_may_not_be_written_give_a_new_one(device, operands, monkeypatch):
    A, B, C = operands
    monkeypatch.setattr(type(arrays.library(A)), "immutable", True)
    old = C.values.copy()
    C.values.flags.writeable = False
    result = sgemm(A, B, 1.0, 2.0, C, **HOW)
    assert result is not C
    assert close(result, A.values @ B.values + 2 * old)
    np.testing.assert_array_equal(C.values, old)


def test_an_immutable_c_of_another_shape_is_refused(device, operands, on_device, random, monkeypatch):
    A, B, _ = operands
    monkeypatch.setattr(type(arrays.library(A)), "immutable", True)
    with pytest.raises(ShapeError, match=r"C must have shape \(3, 5\)"):
        sgemm(A, B, 1.0, 1.0, on_device(random(5, 3)), **HOW)


def test_a_first_call_inside_a_capture(device, operands):
    A, B, C = operands
    device.capturing.add(5)
    sgemm(A, B, C=C, **HOW)
    assert close(C, A.values @ B.values)
    assert device.compiled == ["naive"]


def refused(device, operands, error, message, **options):
    A, B, C = operands
    before = C.values.copy()
    for _ in range(2):  # also once the problem has been seen
        with pytest.raises(error, match=message):
            sgemm(A, B, C=C, **{**HOW, **options})
    np.testing.assert_array_equal(C.values, before)
    assert device.launched == []


def test_refusals_on_a_device(device, operands, on_device, random):
    A, B, C = operands
    refused(device, (A, on_device(random(6, 5)), C), ShapeError, r"got 4 and 6: A \(3, 4\), B \(6, 5\), C \(3, 5\)")
    refused(device, (on_device(random(12)), B, C), ShapeError, "got 12 and 4: A")
    refused(
        device, (A, on_device(B.values.astype("f8")), C), DTypeError, "B must be float32, got float64; float64 is not"
    )
    refused(device, (A, B, on_device(C.values[:, ::-1].astype(">f4"))), DTypeError, "C must be float32, got >f4")
    refused(
        device, operands, ConfigError, "illegal config for rung naive .*threads of a block", config=BlockConfig(64, 64)
    )
    expanded = on_device(np.lib.stride_tricks.as_strided(random(5), (3, 5), (0, 4)))
    refused(device, (A, B, expanded), OverlapError, "elements of C share memory")
    read_only = on_device(random(3, 5))
    read_only.values.flags.writeable = False
    refused(device, (A, B, read_only), OperandError, "C is read-only")
    with pytest.raises(ScalarRangeError, match="beta must be 0 when C is not given"):
        sgemm(A, B, 1.0, 1.0, **HOW)


def test_overlap_is_found_on_the_first_call_and_on_every_later_one(device, on_device, random):
    buffer = random(8, 16)
    A, B = on_device(buffer[:3, :4]), on_device(random(4, 5))
    refused(device, (A, B, on_device(buffer[2:5, 3:8])), OverlapError, "C shares memory with A")
    refused(
        device, (on_device(random(3, 4)), on_device(buffer[:4, :5]), on_device(buffer[3:6, :5])), OverlapError, "with B"
    )
    apart = on_device(buffer[4:7, 3:8])  # the same layout at another place: seen before, and fine
    assert sgemm(A, B, C=apart, **HOW) is apart
    inner = on_device(buffer[:3, 4:9])  # its bytes lie between those of A, but none is shared
    assert sgemm(A, B, C=inner, **HOW) is inner


def test_a_problem_is_prepared_once_for_each_alignment(device, on_device):
    memory = np.zeros(100, np.float32)
    start = -memory.ctypes.data // 4 % 4
    for first in (start, start + 4, start + 8, start + 1):
        A = on_device(memory[first : first + 16].reshape(4, 4))
        sgemm(A, A, **HOW)
    assert len({key[4] for key in device.prepared}) == 2


def test_a_batch_invariant_product_is_one_of_rung_9(device, on_device, random):
    A, B = on_device(random(3, 1100)), on_device(random(1100, 5))
    assert np.allclose(sgemm(A, B, batch_invariant=True).values, A.values @ B.values, rtol=1e-4, atol=1e-4)
    assert set(device.compiled) <= {"pipelined", "reduce_segments"} and "pipelined" in device.compiled


def test_what_cannot_be_batch_invariant_is_refused(device, operands):
    A, B, C = operands
    before = C.values.copy()
    with pytest.raises(PrecisionError, match="rung pipelined computes with precision 'ieee', got 'fp16x3'"):
        sgemm(A, B, C=C, precision="fp16x3", batch_invariant=True, rung="pipelined")
    with pytest.raises(ConfigError, match="needs rung 9 pipelined or skinny_in_order, got 1 naive"):
        sgemm(A, B, C=C, rung=1, batch_invariant=True)
    sliced = PipelinedConfig(32, 32, 64, 4, 4, 16, 32, 1, SLICED_K=4)
    with pytest.raises(ConfigError, match=r"SLICED_K must be 1 where SEGMENT .*, got 4"):
        sgemm(A, B, C=C, config=sliced, batch_invariant=True)
    np.testing.assert_array_equal(C.values, before)
