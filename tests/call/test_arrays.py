"""Which library an operand belongs to, and the arrays that belong to none."""

import gc
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from exported import Exported

from fastsgemm import device as machine
from fastsgemm import sgemm
from fastsgemm.call import arrays
from fastsgemm.call.arrays import HOST
from fastsgemm.errors import (
    CaptureError,
    DeviceMemoryError,
    DeviceMismatchError,
    DTypeError,
    NoDriverError,
    OperandError,
)
from fastsgemm.geometry.layout import Meta


class Pointing:
    """An array with the CUDA array interface and nothing else."""

    __cuda_array_interface__ = {  # noqa: RUF012
        "shape": (2, 2), "typestr": "<f4", "data": (1 << 20, False), "version": 3, "strides": None, "stream": None,
    }  # fmt: skip


class Elsewhere:
    """An array on a device that CUDA knows nothing of: 10 is DLPack's ROCm."""

    def __dlpack_device__(self):
        return (10, 0)

    def __dlpack__(self, **options):
        raise AssertionError("nothing may be exported")


ONES = np.ones((2, 2), np.float32)


def test_subclasses_belong_to_the_library_of_their_base():
    class Image(np.ndarray):
        pass

    assert type(arrays.library(ONES.view(Image))) is type(arrays.library(ONES))
    assert arrays.library(ONES) is arrays.library(ONES[:1])


def test_a_parameter_of_torch_is_a_tensor(torch):
    parameter = torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
    assert arrays.library(parameter) is arrays.library(torch.ones(1))
    assert arrays.library(parameter).device_of(parameter) == HOST


def test_a_numpy_scalar_is_no_array():
    with pytest.raises(DTypeError, match=r"got numpy.float32"):
        arrays.library(np.float32(1))


@pytest.mark.usefixtures("on_host")
def test_any_host_array_with_dlpack_is_read():
    np.testing.assert_array_equal(sgemm(ONES, Exported(ONES)), 2)
    C = np.zeros((2, 2), np.float32)
    assert sgemm(Exported(ONES), Exported(ONES), C=C) is C
    np.testing.assert_array_equal(C, 2)


@pytest.mark.usefixtures("on_host")
def test_a_kind_without_constructors_needs_c():
    with pytest.raises(OperandError, match=r"cannot make a new .*Exported; pass C"):
        sgemm(Exported(ONES), ONES)


@pytest.mark.usefixtures("on_host")
def test_c_of_any_kind_is_written_or_refused_as_read_only():
    values = np.zeros((2, 2), np.float32)
    C = Exported(values)
    if np.from_dlpack(C).flags.writeable:
        assert sgemm(ONES, ONES, C=C) is C
        np.testing.assert_array_equal(values, 2)
    else:  # an older NumPy imports every array read-only
        with pytest.raises(OperandError, match="C is read-only"):
            sgemm(ONES, ONES, C=C)
        assert (values == 0).all()


def test_a_device_that_is_neither_host_nor_cuda():
    with pytest.raises(DeviceMismatchError, match="neither host nor CUDA"):
        sgemm(Elsewhere(), ONES)


def test_a_host_array_among_arrays_on_a_device(device, on_device, torch):
    message = "all operands must be on one device, got a .* on the host among arrays on a device"
    for foreign in (ONES, Exported(ONES), Exported(torch.ones(2, 2))):
        with pytest.raises(DeviceMismatchError, match=message):
            sgemm(on_device(ONES), foreign)
    assert device.launched == []


def test_a_host_tensor_among_arrays_of_another_library_on_a_device(device, on_device, torch):
    """PyTorch has no current stream to wait for on the host; asking for it is an error of its own."""
    with pytest.raises(DeviceMismatchError, match="must be on one device, got A on cuda:0, B on the host"):
        sgemm(on_device(ONES), torch.ones(2, 2))


@pytest.mark.parametrize("error", [AssertionError, BufferError, TypeError, ValueError, RuntimeError])
def test_a_host_array_that_takes_no_stream(device, on_device, error):
    class Strict(Exported):
        def __dlpack__(self, *, stream=None, **options):
            if stream is not None:
                raise error("only stream=None is supported")
            return super().__dlpack__(**options)

    with pytest.raises(DeviceMismatchError, match=r"got a .*Strict on the host among arrays on a device"):
        sgemm(on_device(ONES), Strict(ONES))


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_older_cuda_array_interfaces_are_read_as_version_3(version):
    class Older:
        __cuda_array_interface__ = {**Pointing.__cuda_array_interface__, "version": version}  # noqa: RUF012

    x = Older()
    found = arrays.library(x)._exporter(x).__cuda_array_interface__
    assert found == {**x.__cuda_array_interface__, "version": max(3, version)}
    assert x.__cuda_array_interface__["version"] == version


def test_half_of_dlpack_is_none():
    class Half:
        def __dlpack__(self, **options):
            raise AssertionError("nothing may be exported")

    with pytest.raises(DTypeError, match="operands must be arrays"):
        sgemm(Half(), Half())


@pytest.fixture
def cupy_array(monkeypatch):
    """Return a function that makes a stand-in for a CuPy array, whose DLPack divides strides as CuPy 14 does."""

    class Array:
        def __init__(self, values, dtype=None):
            self.shape, self.strides, self.dtype = values.shape, values.strides, dtype or values.dtype
            self.data, self.device = SimpleNamespace(ptr=values.ctypes.data), SimpleNamespace(id=0)
            self.streams = []

        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, *, stream, **options):
            self.streams.append(stream)
            strides = tuple(step % 2**64 // 4 for step in self.strides)
            return SimpleNamespace(
                ptr=self.data.ptr, shape=self.shape, strides=strides, dtype=self.dtype, device_id=0, readonly=False
            )

    Array.__module__ = "cupy"
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=Array))
    monkeypatch.setattr(arrays, "_instances", {})
    reader = SimpleNamespace(from_any_interface=lambda x, stream_ptr: x.__dlpack__(stream=stream_ptr))
    monkeypatch.setattr("cuda.core.utils.StridedMemoryView", reader)
    return Array


@pytest.mark.parametrize("view", [np.s_[:], np.s_[::-1], np.s_[:, ::-1], np.s_[::-2, ::3], np.s_[:, None, 0]])
@pytest.mark.parametrize("ordered", [True, False])
def test_cupy_strides_of_either_sign(cupy_array, view, ordered):
    values = np.ones((6, 6), np.float32)[view]
    x = cupy_array(values)
    address, meta = arrays.library(x).view(x, 7, ordered, [])
    assert address == values.ctypes.data
    assert meta == Meta(values.shape, tuple(step // 4 for step in values.strides))
    assert (7 in x.streams) is not ordered  # DLPack makes the stream wait


def test_a_cupy_array_of_another_dtype(cupy_array):
    x = cupy_array(np.ones((2, 2)))
    fault = arrays.library(x).view(x, 7, True, [])[1].fault
    assert str(fault("A")) == "A must be float32, got float64; float64 is not converted silently, cast it yourself"


def test_cupy_strides_between_two_floats(cupy_array):
    x = cupy_array(np.zeros((2, 5), np.float32))
    x.strides = (18, 4)
    fault = arrays.library(x).view(x, 7, True, [])[1].fault
    assert str(fault("A")) == "A must have strides that are multiples of 4 bytes, got (18, 4)"


def test_a_device_pointer_without_a_driver(no_driver):
    with pytest.raises(NoDriverError, match="no NVIDIA driver was found"):
        sgemm(Pointing(), Pointing())


def test_an_array_on_a_device_without_a_driver(no_driver):
    class OnDevice(Elsewhere):
        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(NoDriverError, match="no NVIDIA driver was found"):
        sgemm(OnDevice(), OnDevice())


def test_an_export_lives_until_the_work_on_it_is_done():
    """It may hold a copy, and while it lives, JAX neither donates the array nor reuses its memory."""
    copies = []

    class Copying:
        def __dlpack_device__(self):
            return ONES.__dlpack_device__()

        def __dlpack__(self, **options):
            copied = ONES.copy()
            copies.append(weakref.ref(copied))
            return copied.__dlpack__()

    kept = []
    arrays.Library().view(Copying(), 7, True, kept)
    gc.collect()
    alive = [each() is not None for each in copies]
    kept.clear()
    gc.collect()
    assert [*alive, *[each() is not None for each in copies]] == [True, False]


@pytest.mark.parametrize(
    ("capturing", "expected", "message"),
    [
        (False, DeviceMemoryError, "a new matrix of 2 x 3: 24 bytes are needed, 1000 of 4000 are free"),
        (True, CaptureError, "a new matrix of 2 x 3 cannot be made inside .* pass a C"),
    ],
)
def test_a_new_array_that_cannot_be_had(device, cuda_driver, capturing, expected, message):
    device.room = 20
    if capturing:
        device.capturing.add(1)
    with pytest.raises(expected, match=message):
        arrays.DeviceArray((2, 3), device, 1)
    assert not device.made


class TestDeviceArray:
    @pytest.fixture
    def array(self, device, monkeypatch):
        """An array of the device, whose exports are the numbers of their owners."""
        made = arrays.DeviceArray((2, 3), device, 7)
        monkeypatch.setattr(made, "export", lambda shape, strides: id(made.memory))
        return made

    @pytest.mark.parametrize(("stream", "waits"), [(None, [1]), (1, [1]), (2, [2]), (11, [11]), (-1, [])])
    def test_whoever_imports_it_waits_for_it_as_dlpack_says(self, array, cuda_driver, stream, waits):
        """No stream is the legacy default one; -1 asks for no order."""
        array.__dlpack__(stream=stream)
        assert [handle for handle, *_ in cuda_driver.named("cuStreamWaitEvent")] == waits
        assert {handle for _, handle in cuda_driver.named("cuEventRecord")} == {7}

    def test_it_outlives_its_stream(self, array, cuda_driver, device):
        array.__dlpack__(stream=11)
        cuda_driver.gone.add(7)
        cuda_driver.calls.clear()
        memory = array.memory
        del array
        assert device.made[0].open  # its importer has it still
        del memory

    def test_host_arrays_are_copied_without_ending_a_capture_of_another_thread(self, array, cuda_driver):
        values = np.zeros((2, 3), np.float32)
        array.upload(values)
        array.download(values)
        assert [given[-1] for given in cuda_driver.named("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync")] == [7, 7]
        assert cuda_driver.ended == []


@pytest.mark.usefixtures("on_host")
def test_an_array_that_refuses_export():
    class Closed(Exported):
        def __dlpack__(self, **options):
            raise BufferError("it is closed")

    with pytest.raises(OperandError, match=r"B \(.*Closed\) could not be read: it is closed"):
        sgemm(ONES, Closed(ONES))


@pytest.mark.parametrize(("current", "ordinal"), [((0, 3), 3), ((201, 0), 0)], ids=["a context", "no context"])
def test_an_empty_array_without_memory_is_on_the_current_device(monkeypatch, current, ordinal):
    """As Numba makes them: their address is 0."""
    from cuda.bindings import driver

    monkeypatch.setattr(machine, "probe", lambda: 4)
    monkeypatch.setattr(driver, "cuCtxGetDevice", lambda: current)
    monkeypatch.setattr(driver, "cuPointerGetAttribute", lambda attribute, address: (driver.CUresult(1), 0))

    class Empty:
        __cuda_array_interface__ = {  # noqa: RUF012
            **Pointing.__cuda_array_interface__, "shape": (0, 4), "data": (0, False), "strides": (16, 4),
        }  # fmt: skip

    class Nowhere:
        __cuda_array_interface__ = {**Pointing.__cuda_array_interface__, "data": (0, False)}  # noqa: RUF012

    assert arrays.library(Empty()).device_of(Empty()) == ordinal
    with pytest.raises(OperandError, match="Nowhere does not point to CUDA memory"):
        arrays.library(Nowhere()).device_of(Nowhere())
