"""Plans: what reaches the driver, and what is said when it refuses."""

import itertools

import numpy as np
import pytest
from cuda.bindings import driver
from in_threads import run_all
from python_kernels import PythonKernel

from fastsgemm import BlockConfig, sgemm
from fastsgemm.call.driver import LoadedPlan
from fastsgemm.call.plan import Draft, Scalar, When
from fastsgemm.errors import DeviceError
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.jit.source import KernelSpec

HOW = {"rung": "naive", "config": BlockConfig(32, 32)}
ADDRESSES = (0x1000, 0x2000, 0x3000, 0, 0, 0)


def add(device, draft, name, types, arguments, **more):
    """Add a launch of a kernel in Python with parameters of these types."""
    spec = KernelSpec(f"{name}.cu", ())
    device.kernels[spec] = PythonKernel(name, None, types)
    draft.add(spec, (1,), 32, arguments, writes=(), **more)


def test_a_launch_that_the_driver_refuses_is_an_error_with_its_numbers(device, on_device, random, monkeypatch):
    refused = driver.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    monkeypatch.setattr(device, "launch", lambda *given: (refused,))
    message = r"launching fastsgemm_naive with \(2,\) blocks of 1024 threads failed: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    with pytest.raises(DeviceError, match=message):
        sgemm(on_device(random(40, 8)), on_device(random(8, 5)), **HOW)


def test_one_plan_serves_streams_in_turns(device, on_device, random):
    class Stream:
        def __init__(self, handle):
            self.handle = handle

        def __cuda_stream__(self):
            return 0, self.handle

    A, B = on_device(random(4, 8)), on_device(random(8, 5))
    for handle in (7, 9, 9, 7):
        sgemm(A, B, stream=Stream(handle), **HOW)
    assert [handle for handle, _ in device.launched] == [7, 9, 9, 7] and len(device.prepared) == 1


def test_ctrl_c_while_the_stream_changes_leaves_no_kernel_on_another_one(device):
    class Launch:
        hStream = property(lambda self: self.handle, lambda self, handle: self.set(handle))

        def set(self, handle):
            if handle == 9 and self is launches[1]:
                raise KeyboardInterrupt
            self.handle = handle

    launches, streams = [], []
    device.launch_config = lambda *given: launches.append(Launch()) or launches[-1]
    device.launch = lambda config, *given: streams.append(config.hStream) or (0,)
    draft = Draft(device)
    for name in ("first", "second"):
        add(device, draft, name, "", ())
    plan = LoadedPlan(device, draft.plan(3))
    plan.launch(7, ADDRESSES, 1.0, 0.0)
    with pytest.raises(KeyboardInterrupt):
        plan.launch(9, ADDRESSES, 1.0, 0.0)
    plan.launch(7, ADDRESSES, 1.0, 0.0)
    assert streams == [7] * 4


def test_threads_that_share_a_plan_do_not_mix_their_arguments(device, on_device, random):
    """The Python device gives way to other threads between any two instructions, as a real launch does."""
    operands = [(random(6, 8), random(8, 5)) for _ in range(4)]
    wrong = []

    def work(i):
        a, b = operands[i]
        A, B, C = on_device(a), on_device(b), on_device(np.empty((6, 5), np.float32))
        for _ in range(50):
            sgemm(A, B, C=C, **HOW)
            wrong.extend([1] * (not np.allclose(C.values, a @ b, rtol=1e-5, atol=1e-5)))

    run_all(work, 4)
    assert not wrong and len(device.launched) == 200


# By the bytes of an operand: after its first element and, with negative strides, before it too.
RANGES = {(0, 8): ((2,), (1,)), (-4, 12): ((2, 3), (-1, 1))}


@pytest.mark.parametrize("source", RANGES)
def test_what_is_written_lies_apart_where_no_byte_is_shared(device, source):
    far, at = 400, 40
    for a, b, c in itertools.product(RANGES, RANGES, RANGES):
        *operands, read = (Matrix(Address(Base.A), *RANGES[each]) for each in (a, b, c, source))
        plan = LoadedPlan(device, Draft(device).plan(3, operands))
        with_source = LoadedPlan(device, Draft(device).plan(3, [*operands, read]))
        for place in range(16, 64, 4):

            def shared(low, high, place=place, written=c):
                return place + low < at + written[1] and at + written[0] < place + high

            for unused in (0, at, place):
                assert plan.apart(place, far, at, unused) != shared(*a)
                assert plan.apart(far, place, at, unused) != shared(*b)
            assert with_source.apart(place, far, at, far) != shared(*a)
            assert with_source.apart(far, far, at, place) != shared(*source)


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize(("alpha", "K"), [(1.0, 3), (0.0, 3), (1.0, 0)])
def test_launches_are_made_where_their_scalar_is_not_zero_and_get_what_they_name(device, alpha, K, beta):
    found = []

    def launch(config, function, pointers, extra):
        kernel = PythonKernel.made[int(function)]
        found.append((kernel.name, kernel.arguments(pointers)))
        return (0,)

    device.launch = launch
    draft = Draft(device)
    a, sums = (Matrix(address, (1,), (1,)) for address in (Address(Base.A), draft.reserve(100, "sums") + 8))
    for when in When:
        arguments = (a, sums, Scalar.STEPS, Scalar.ALPHA, Scalar.BETA, np.float32(0.5), 1 << 40, np.int32(-3), -5)
        add(device, draft, when.name, "PPifffqiq", arguments, when=when)
    LoadedPlan(device, draft.plan(K)).launch(5, ADDRESSES, alpha, beta)
    reads = bool(alpha and K)
    wanted = {"ALWAYS", "READS" if reads else "READS_NOTHING"} | ({"BETA"} if beta else set())
    assert {which for which, _ in found} == wanted
    [memory] = device.made
    expected = (0x1000, memory.address + 8, K if reads else 0, alpha if reads else 0.0, beta, 0.5, 1 << 40, -3, -5)
    assert all(arguments == expected for _, arguments in found) and not device.leaks
