import json

import pytest

import fastsgemm
from fastsgemm import device, known_devices
from fastsgemm.command_line import info
from fastsgemm.command_line.info import DeviceRow
from fastsgemm.errors import NoNvrtcError
from fastsgemm.jit import packs
from fastsgemm.problem import Problem

PROBLEM = Problem(4096, 4096, 4096)
H200 = DeviceRow(0, "NVIDIA H200", "sm_90", 132, 232448)


@pytest.fixture
def one_device(fresh_machine, monkeypatch):
    monkeypatch.setattr(info, "_devices", lambda: (H200,))
    monkeypatch.setattr(info, "driver_text", lambda: "580.95.05 (CUDA 13.0)")
    monkeypatch.setattr(device, "probe", lambda: 1)
    monkeypatch.delenv("FASTSGEMM_DEVICE", raising=False)


def test_without_a_driver_the_rest_is_still_found(no_driver):
    found = info.collect(PROBLEM)
    assert found.devices == ()
    assert found.choice is None
    assert found.backend == "host"
    assert [note for note in found.notes if "no NVIDIA driver was found" in note] == list(found.notes)
    assert "device        none" in found.text()


def test_a_forced_device_that_is_missing_is_one_note(no_driver, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "cuda")
    found = info.collect(PROBLEM)
    assert found.backend is None
    assert len(found.notes) == 1
    assert "cannot be multiplied" in found.text()


def test_without_nvrtc_the_note_says_what_to_install(no_driver, monkeypatch):
    def missing():
        raise NoNvrtcError("install fastsgemm[cu13]")

    monkeypatch.setattr(info, "nvrtc_text", missing)
    found = info.collect(PROBLEM)
    assert found.nvrtc is None
    assert "install fastsgemm[cu13]" in found.notes
    assert "FASTSGEMM_DEVICE=sim runs the kernels" not in found.text()  # it needs NVRTC too
    assert "the simulated device needs NVRTC: pip install 'fastsgemm[cu13]'" in found.text()


def test_the_device_and_its_record_are_named(one_device):
    text = info.collect(PROBLEM).text()
    assert "0: NVIDIA H200, sm_90, 132 SMs, 227 KB shared memory per block" in text
    assert "580.95.05 (CUDA 13.0)" in text
    assert "at 4096,4096,4096; " in text
    assert "BM=" in text


def test_the_simulated_device_and_its_record_are_named(no_driver, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", "sm_86")
    found = info.collect(PROBLEM)
    assert (found.backend, found.simulated) == ("sim", "NVIDIA RTX A6000")
    assert found.choice == info.choose(known_devices.find("sm_86"), None, PROBLEM)
    assert "go through a simulated NVIDIA RTX A6000" in found.text()


def test_the_simulated_device_counts_and_not_the_one_in_the_machine(one_device, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", "sm_86")
    asked = []
    monkeypatch.setattr(info, "choose", lambda device_info, *question: asked.append(device_info))
    info.collect(PROBLEM)
    assert asked == [known_devices.find("sm_86")]


def test_a_device_that_cannot_be_simulated_is_a_note(no_driver, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    monkeypatch.setenv("FASTSGEMM_SIM_DEVICE", "sm_11")
    found = info.collect(PROBLEM)
    assert (found.simulated, found.choice) == (None, None)
    assert [note for note in found.notes if "nothing is known of a device 'sm_11'" in note]
    assert "a simulated device" in found.text()


def test_without_a_device_the_simulated_one_is_pointed_to(no_driver):
    assert "FASTSGEMM_DEVICE=sim" in info.collect(PROBLEM).text()


def test_json_is_plain_data(one_device):
    found = info.collect(PROBLEM)
    again = json.loads(json.dumps(found.json()))
    assert again["devices"][0]["name"] == "NVIDIA H200"
    assert again["choice"]["problem"]["M"] == 4096


def test_a_cache_that_is_not_used_is_noted(no_driver, monkeypatch, tmp_path):
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o777)
    assert "the kernel cache cannot be read: other users can write" in info.collect(PROBLEM).text()


def test_the_cache_is_counted(no_driver, monkeypatch, tmp_path):
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path))
    (tmp_path / f"{'0' * 64}.cubin").write_bytes(bytes(2_000_000))
    (tmp_path / "of somebody else.cubin").write_bytes(bytes(1_000_000))
    assert f"{tmp_path} (1 kernel, 2.0 MB)" in info.collect(PROBLEM).text()


def test_packages_of_kernels_are_shown(no_driver, monkeypatch, tmp_path):
    pack = packs.Pack(fastsgemm.__version__, "sm_90", "13.0", 2)
    monkeypatch.setattr(packs, "installed", lambda: (packs.Installed("kernels_sm90", tmp_path, pack),))
    found = info.collect(PROBLEM)
    assert "package       kernels_sm90: 2 kernels for sm_90, NVRTC 13.0\n" in found.text()
    assert found.json()["packages"] == ("kernels_sm90: 2 kernels for sm_90, NVRTC 13.0",)


@pytest.mark.gpu
def test_a_device_is_described_as_opened():
    gpu = device.open_gpu(0)
    assert info._device(0) == DeviceRow(0, gpu.name, gpu.arch, gpu.multiprocessors, gpu.shared_limit)
    assert "CUDA" in (info.driver_text() or "")
