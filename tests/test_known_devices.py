import pytest

from fastsgemm import known_devices, resources
from fastsgemm.errors import DeviceError
from fastsgemm.heuristics import database


def test_an_architecture_stands_for_a_device_of_it():
    assert known_devices.find("sm_90") == known_devices.find("NVIDIA H200")
    assert (known_devices.find("sm_86").name, known_devices.find("sm_86").multiprocessors) == ("NVIDIA RTX A6000", 84)


def test_every_architecture_that_the_package_supports_has_a_device():
    blackwell = ("sm_100", "sm_103", "sm_110", "sm_120", "sm_121")
    for arch in ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", *blackwell):
        device = known_devices.find(arch)
        assert device.arch == arch
        assert device.limits.lanes == (64 if arch in ("sm_75", "sm_80") else 128)
        assert device.limits.shared == device.shared_limit + device.limits.shared_reserved


def test_every_device_that_the_database_has_entries_of_is_known():
    """`explain` and `tune --dry-run` look a device that is named up here alone."""
    contents = [database.shipped(path.stem) for path in resources.folder("tuning_db").glob("*.json")]
    named = {entry.device for content in contents for entry in (*content.records, *content.curves)} - {None}
    assert "NVIDIA H200" in named and named <= {*known_devices.known()}


def test_unknown_devices_are_refused_with_those_that_are_known():
    with pytest.raises(DeviceError, match=r"known of a device 'NVIDIA 8800 GTX'; known are sm_75.*NVIDIA H200"):
        known_devices.find("NVIDIA 8800 GTX")


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("H200", "NVIDIA H200"),
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("geforce rtx 5090", "NVIDIA GeForce RTX 5090"),
        ("A100", "NVIDIA A100-SXM4-40GB"),
        ("t4", "Tesla T4"),
        ("Orin", "Orin"),
        ("B300", "NVIDIA B300 SXM6 AC"),
        ("NVIDIA B300", "NVIDIA B300 SXM6 AC"),
        ("thor", "NVIDIA Thor"),
        ("gb10", "NVIDIA GB10"),
        ("sm_90", "NVIDIA H200"),
    ],
)
def test_a_device_is_found_by_a_part_of_its_name(part, name):
    assert known_devices.find(part).name == name


def test_a_part_of_several_names_is_an_error():
    with pytest.raises(DeviceError, match=r"'RTX' can be NVIDIA RTX A6000, NVIDIA GeForce RTX 4090, .*; name one of"):
        known_devices.find("RTX")
    for part in ("H20", "00", "90", "", " ", "."):
        with pytest.raises(DeviceError, match="nothing is known of a device"):
            known_devices.find(part)


def test_a_wrong_name_in_the_environment_names_the_variable(monkeypatch):
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", "H300")
    with pytest.raises(DeviceError, match="FASTSGEMM_SIM_DEVICE=H300: nothing is known of a device 'H300'"):
        known_devices.simulated()
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", " 4090 ")
    assert known_devices.simulated().arch == "sm_89"
