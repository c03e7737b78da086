import pytest

from fastsgemm.errors import DeviceError
from fastsgemm.sim import devices


def test_an_architecture_stands_for_a_device_of_it():
    assert devices.find("sm_90") == devices.find("NVIDIA H200")
    assert (devices.find("sm_86").name, devices.find("sm_86").multiprocessors) == ("NVIDIA RTX A6000", 84)


def test_every_architecture_that_the_package_supports_has_a_device():
    for arch in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"):
        assert devices.find(arch).arch == arch


def test_unknown_devices_are_refused_with_those_that_are_known():
    with pytest.raises(DeviceError, match=r"'NVIDIA 8800 GTX' is not known .*; known are sm_75.*NVIDIA H200"):
        devices.find("NVIDIA 8800 GTX")
