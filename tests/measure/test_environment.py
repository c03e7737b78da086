"""What a run says of its machine: known facts only, as `nvidia-smi` and the loaded cuBLAS report them."""

import subprocess
from datetime import date
from types import SimpleNamespace

import pytest

from fastsgemm.measure import cublas, environment

GPU = SimpleNamespace(name="NVIDIA X", device=SimpleNamespace(pci_bus_id="00000000:1B:00.0"))
KNOWN = {"device": "NVIDIA X", "driver": "580", "nvrtc": "13.0", "date": "2026-01-02"}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setattr(environment.device, "driver_text", lambda: KNOWN["driver"])
    monkeypatch.setattr(environment.device, "nvrtc_text", lambda: KNOWN["nvrtc"])
    today = SimpleNamespace(today=lambda: date.fromisoformat(KNOWN["date"]))
    monkeypatch.setattr(environment, "datetime", SimpleNamespace(date=today))


@pytest.fixture
def smi(monkeypatch):
    """Let `nvidia-smi` print a line, or fail; return its command lines."""
    commands = []

    def prints(answer):
        def run(command, **options):
            commands.append(command)
            if isinstance(answer, Exception):
                raise answer
            return SimpleNamespace(stdout=answer)

        monkeypatch.setattr(environment.subprocess, "run", run)
        return commands

    return prints


def test_the_clocks_are_read_from_a_line_of_nvidia_smi():
    assert environment.parsed_clocks("1980, 3201, 700.00\n") == (1980.0, 3201.0, 700.0)
    assert environment.parsed_clocks("1590, 5001, [N/A]\n") == (1590.0, 5001.0, None)
    assert environment.parsed_clocks("") == (None, None, None)


def test_facts_have_names_and_become_words(smi, monkeypatch):
    commands = smi("1980, 3201, 700.00\n")
    monkeypatch.setattr(cublas, "version", lambda: "13.1.0")
    facts = environment.facts(GPU)
    assert facts == KNOWN | {
        "cublas": "13.1.0",
        "clock_mhz": 1980.0,
        "memory_clock_mhz": 3201.0,
        "power_limit_w": 700.0,
    }
    assert "--id=00000000:1B:00.0" in commands[0]
    assert environment.in_words(KNOWN) == "one NVIDIA X, driver 580, NVRTC 13.0, 2026-01-02"
    text = environment.in_words(facts | {"packages": {"torch": "2.11"}})
    assert "NVRTC 13.0, torch 2.11, cuBLAS 13.1.0, SM clock up to 1980 MHz, power limit 700 W, 2026" in text


@pytest.mark.parametrize("answer", [OSError("no such program"), subprocess.TimeoutExpired("nvidia-smi", 10), "N/A\n"])
def test_what_is_unknown_is_left_out(smi, monkeypatch, answer):
    smi(answer)
    monkeypatch.setattr(cublas, "version", lambda: None)
    assert environment.facts(GPU) == KNOWN
