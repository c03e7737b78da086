"""NVRTC: machine code, reports and failures, with neither driver nor device."""

import re
import subprocess
import sys

import architectures
import pytest
from cuda.bindings import nvrtc

from fastsgemm import device, known_devices
from fastsgemm.config import BlockConfig, ThreadColumnConfig
from fastsgemm.errors import CompileError, NoNvrtcError
from fastsgemm.geometry.variants import Variant
from fastsgemm.jit import compiler, source
from fastsgemm.rungs import find

NAIVE = source.rung_spec(find("naive"), BlockConfig(32, 32), Variant()).text


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_a_cubin_is_an_elf_file_for_the_architecture(arch):
    code = compiler.cubin(NAIVE, "naive", arch)
    assert code.startswith(b"\x7fELF")
    assert int(arch.removeprefix("sm_")) in code[48:52]  # a byte of the flags, another one in NVRTC 12 than in 13
    assert code != compiler.cubin(NAIVE, "naive", "sm_80")


VERSIONS = {
    "sm_75": "8.0", "sm_90a": "8.0",
    "sm_100": "8.6", "sm_103": "8.8", "sm_110": "9.0", "sm_120": "8.7", "sm_121": "8.8",
}  # fmt: skip


@pytest.mark.parametrize("arch", architectures.parameters(VERSIONS))
def test_ptx_is_for_old_drivers_and_is_kept(arch, monkeypatch):
    code = compiler.ptx(NAIVE, "naive", arch)
    assert re.findall(r"^\.(?:version|target) .*$", code, re.MULTILINE) == [
        f".version {VERSIONS[arch]}", f".target {arch}"
    ]  # fmt: skip
    monkeypatch.setattr(compiler, "compile_program", None)
    assert compiler.ptx(NAIVE, "naive", arch) == code


def test_ptx_of_an_architecture_that_is_not_known_declares_what_nvrtc_says(monkeypatch):
    text = '.version 9.3\n.target sm_130\n\t.pragma "used_bytes_mask 0xfff0";\n'
    monkeypatch.setattr(compiler, "compile_program", lambda *_, **__: compiler.Compiled(b"", "", text))
    assert compiler.ptx("for a newer device", "newer", "sm_130") == text


def test_ptx_has_no_hint_that_old_drivers_refuse(monkeypatch):
    text = '.version 9.0\n.target sm_90a\n\t.pragma "used_bytes_mask 0xfff0";\n\t.pragma "nounroll";\n'
    monkeypatch.setattr(compiler, "compile_program", lambda *_, **__: compiler.Compiled(b"", "", text))
    code = compiler.ptx("with a hint", "hint", "sm_90a")
    assert code == '.version 8.0\n.target sm_90a\n\t.pragma "nounroll";\n'


def test_a_report_counts_registers_and_spills():
    found = compiler.report(NAIVE, "naive", "sm_90")
    assert 8 <= found.registers <= 64
    assert (found.stack_bytes, found.spill_stores, found.spill_loads) == (0, 0, 0)


SPILLING = """
extern "C" __global__ void __launch_bounds__(1024) hungry(float* x, int n) {
    float kept[96];
    for (int i = 0; i < 96; ++i) kept[i] = x[threadIdx.x + i * n];
    __syncthreads();
    for (int i = 0; i < 96; ++i) x[i * n] = kept[i] * kept[95 - i];
}
"""


def test_a_report_sees_spills():
    found = compiler.report(SPILLING, "hungry", "sm_90")
    assert found.registers == 64  # what 1024 threads leave each
    assert found.stack_bytes > 0 and found.spill_stores > 0 and found.spill_loads > 0


def test_a_syntax_error_carries_the_log():
    with pytest.raises(CompileError, match=r"refused broken for sm_90:(.|\n)*expected an expression") as caught:
        compiler.cubin("__device__ int x = ;\n", "broken", "sm_90")
    assert re.search(r"NVRTC \d+\.\d+ refused", str(caught.value))


@pytest.mark.parametrize("arch", ["sm_999", "nonsense"])
def test_an_unknown_architecture_carries_the_log(arch):
    with pytest.raises(CompileError, match=rf"refused naive for {arch}:(.|\n)*architecture"):
        compiler.cubin(NAIVE, "naive", arch)


def test_a_failed_static_assert_is_in_the_log():
    text = source.rung_spec(find("blocktile_1d"), ThreadColumnConfig(60, 64, 8, 8), Variant()).text
    with pytest.raises(CompileError, match="thread tiles cover the block tile"):
        compiler.cubin(text, "blocktile_1d", "sm_90")


def test_a_missing_nvrtc_names_the_extras(monkeypatch):
    def missing():
        raise RuntimeError("libnvrtc.so.13: cannot open shared object file")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    for call in (compiler.cubin, compiler.report):
        with pytest.raises(NoNvrtcError, match=r"'fastsgemm\[cu13\]' .*'fastsgemm\[cu12\]'"):
            call(f"{NAIVE}// not stored", "naive", "sm_90")


def test_an_nvrtc_that_answers_an_error_says_which(monkeypatch):
    answer = nvrtc.nvrtcResult.NVRTC_ERROR_INTERNAL_ERROR
    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (answer, None, None))
    with pytest.raises(NoNvrtcError, match="returned NVRTC_ERROR_INTERNAL_ERROR"):
        device.nvrtc_version()


def test_a_call_that_nvrtc_refuses_says_what_it_answered(monkeypatch):
    answer = nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY
    monkeypatch.setattr(nvrtc, "nvrtcCreateProgram", lambda *_: (answer, None))
    with pytest.raises(CompileError, match="NVRTC_ERROR_OUT_OF_MEMORY"):
        compiler.compiled(NAIVE, "naive", "sm_90")


def test_the_version_is_that_of_the_library():
    major, minor = device.nvrtc_version()
    assert major >= 12 and minor >= 0


def test_the_first_compilations_of_a_process_may_be_side_by_side():
    """Each thread has to import what calls NVRTC."""
    script = (
        "from concurrent.futures import ThreadPoolExecutor; from threading import Barrier\n"
        "from fastsgemm.jit import compiler, source; from fastsgemm.rungs import find\n"
        "from fastsgemm import BlockConfig\n"
        "text = source.rung_spec(find('naive'), BlockConfig(32, 32), source.Variant()).text\n"
        "together = Barrier(8)\n"
        "def work(number):\n"
        "    together.wait()\n"
        "    return compiler.report(text, 'naive', 'sm_90').registers\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    assert len(set(pool.map(work, range(8)))) == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arch", architectures.parameters())
def test_ptxas_takes_as_many_threads_and_blocks_as_are_known_to_fit_on_an_sm(arch):
    """It warns of launch bounds that an SM has no room for."""
    limits = known_devices.find(arch).limits

    def refused(threads, blocks):
        bounds = f'extern "C" __global__ void __launch_bounds__({threads}, {blocks}) empty() {{}}'
        options = [f"-arch={arch}", *compiler.reporting()]
        return "out of range" in compiler.compile_program(bounds, "empty", options).log

    assert not refused(512, limits.threads // 512) and refused(512, limits.threads // 512 + 1)
    assert not refused(32, limits.blocks) and refused(32, limits.blocks + 1)
