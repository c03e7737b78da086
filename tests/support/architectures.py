"""The known architectures, as parameters of tests that compile for each."""

from functools import cache

import pytest
from cuda.bindings import nvrtc

from fastsgemm import device, known_devices

KNOWN = sorted({*known_devices.known().values()}, key=known_devices.compute_capability)


def parameters(among=KNOWN, quick=None):
    """Return architectures as parameters. NVRTC may be too old for one, which is skipped. All but `quick` are slow."""
    return [pytest.param(arch, marks=[_compiled(arch), *_slow(arch, quick)]) for arch in among]


def _slow(arch, quick):
    return [] if quick is None or arch in quick else [pytest.mark.slow]


def _compiled(arch):
    number = known_devices.compute_capability(arch.rstrip("a"))
    return pytest.mark.skipif(number not in _of_nvrtc(), reason=f"this NVRTC is too old for {arch}")


@cache
def _of_nvrtc():
    device.nvrtc_version()  # which loads the one that fits
    error, count = nvrtc.nvrtcGetNumSupportedArchs()
    assert int(error) == 0 and count
    return frozenset(nvrtc.nvrtcGetSupportedArchs()[1])
