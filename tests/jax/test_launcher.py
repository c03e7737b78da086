"""The description of a launch is that of jaxlib's own functions."""

import zlib

import numpy as np
import pytest

pytest.importorskip("jax")

from jaxlib import gpu_triton

from fastsgemm.errors import MissingExtraError
from fastsgemm.jax import launcher
from fastsgemm.jax.entry import Array

ARGUMENTS = (Array(16), np.int32(-7), 2**40, -1, 0, np.float32(1.5), np.int32(0), Array(4), np.float32(0.0))
KINDS = {np.int32: "i32", np.float32: "fp32", int: "i64"}


@pytest.mark.skipif(not hasattr(gpu_triton, "TritonKernel"), reason="the CUDA package of jaxlib is not installed")
def test_a_description_is_that_of_jaxlib(monkeypatch):
    monkeypatch.setattr(launcher, "takes_machine_code", False)
    parameters = [
        gpu_triton.create_array_parameter(0, x.alignment) if isinstance(x, Array)
        else gpu_triton.create_scalar_parameter(float(x) if type(x) is np.float32 else int(x), KINDS[type(x)])
        for x in ARGUMENTS
    ]  # fmt: skip
    kernel = gpu_triton.TritonKernel("name", 8, 1, 70000, "ptx", "", 90)
    wanted = gpu_triton.TritonKernelCall(kernel, 300, 2, 1, parameters).to_proto("name", b"")
    ours = zlib.decompress(launcher.description("name", b"ptx", "sm_90", (300, 2), 256, 70000, ARGUMENTS))
    assert ours == wanted


def test_machine_code_is_passed_with_what_loading_it_needs(monkeypatch):
    monkeypatch.setattr(launcher, "takes_machine_code", True)
    code = bytes(range(256))
    call = dict(fields(zlib.decompress(launcher.description("name", code, "sm_90", (1,), 64, 5000, ()))))[1]
    kernel = dict(fields(dict(fields(call))[1]))
    assert 4 not in kernel
    assert dict(fields(kernel[11])) == {1: code, 2: b"name", 3: 5000}
    assert (kernel[2], kernel[3], kernel[6], kernel[10]) == (2, 5000, 90, 1)


def fields(message):
    """Return the fields of a message: their numbers and values."""
    out, at = [], 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 2:
            size = number()
            out.append((key >> 3, message[at : at + size]))
            at += size
        else:
            out.append((key >> 3, number()))
    return out


def test_an_old_jaxlib_is_refused(monkeypatch):
    monkeypatch.setattr(launcher, "_version", (0, 9, 2))
    with pytest.raises(MissingExtraError, match=r"needs jaxlib 0.10.1 or later, got"):
        launcher.check()


def test_a_jaxlib_without_the_target_is_refused(monkeypatch):
    class Plugin:
        @staticmethod
        def registrations():
            return {}

    monkeypatch.setattr(gpu_triton, "_cuda_triton", Plugin)
    with pytest.raises(MissingExtraError, match="does not have"):
        launcher.check()
