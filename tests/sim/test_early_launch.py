"""Launches that may begin before the one before has ended: every kernel waits, and reads nothing by another path."""

import functools
import re

import numpy as np
import pytest
import rung_11

from fastsgemm import resources, sim
from fastsgemm.config import Fp16x3Config, PipelinedConfig
from fastsgemm.jit import source
from fastsgemm.sim import Machine, Region, nvrtc
from fastsgemm.sim.errors import RaceError

WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
# A wait with a comment is that of a kernel that reads no results, at its end.
KERNELS = sorted(
    path.name for path in resources.folder("cuda_src").glob("*.cu") if "griddepcontrol_wait();\n" in path.read_text()
)


def launch(body, parameter="const float *x", arch="sm_90", early=True, written=False):
    text = f'extern "C" __global__ void kernel({parameter}, float *y) {{ {body} }}'
    operands = {"x": Region(np.ones(32, np.float32), write=written), "y": Region(np.zeros(32, np.float32), write=True)}
    Machine(arch).launch(text, "kernel", 1, 32, 0, ["x", "y"], operands, early=early)


@pytest.mark.parametrize(
    "body",
    [
        "y[threadIdx.x] = x[threadIdx.x];",
        "const float first = x[threadIdx.x]; " + WAIT + " y[threadIdx.x] = first;",
        "if (threadIdx.x != 9) { " + WAIT + " } y[threadIdx.x] = 1.0f;",
    ],
    ids=["no wait", "a read before the wait", "a thread that does not wait"],
)
def test_an_early_launch_waits_before_it_accesses_memory(body):
    launch(body, early=False)
    with pytest.raises(RaceError, match=r"has not waited for the launch before"):
        launch(body)


def test_no_launch_is_early_where_the_device_cannot_do_that():
    launch("y[threadIdx.x] = x[threadIdx.x];", arch="sm_80")


def test_an_early_launch_that_waits_may_do_all():
    launch(WAIT + " y[threadIdx.x] = x[threadIdx.x];")
    launch("if (threadIdx.x >= 8) return; " + WAIT + " y[threadIdx.x] = x[threadIdx.x];")


def test_the_read_only_path_is_for_what_nobody_writes():
    """The compiler takes it for `const __restrict__`, and may then read before the wait."""
    body, parameter = "y[threadIdx.x] = x[threadIdx.x];", "const float *__restrict__ x"
    body = body.replace("float *y", "float *__restrict__ y")
    launch(body, parameter, early=False)
    by_asm = 'float v; asm("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(x + threadIdx.x)); y[threadIdx.x] = v;'
    launch(by_asm, early=False)
    with pytest.raises(RaceError, match="by the read-only path, which this launch may write"):
        launch(by_asm, early=False, written=True)
    with pytest.raises(RaceError, match="by the read-only path, which the launch before may still write"):
        launch(WAIT + by_asm)


# With a source where a kernel takes one, which is one more operand to read, and of operands of 16 bits.
READS = [
    *((file, of_16_bits) for file in KERNELS
      if (of_16_bits := {name: 1 for name in source.defaults(file) if name.startswith("TYPE")})),
    *((file, {}) for file in KERNELS if "SOURCE" not in source.defaults(file)),
    *((file, {"SOURCE": 1}) for file in KERNELS if "SOURCE" in source.defaults(file)),
    *(pytest.param(file, {}, marks=pytest.mark.slow) for file in KERNELS if "SOURCE" in source.defaults(file)),
]  # fmt: skip


@pytest.mark.parametrize(("file", "changed"), READS, ids=str)
def test_no_kernel_that_waits_reads_by_the_read_only_path(file, changed):
    text = source.with_constants(file, source.defaults(file) | changed)
    ptx = nvrtc.compile_source(text, source.target(file, "sm_90")).ptx
    assert "griddepcontrol.wait" in ptx
    assert re.findall(r"ld\.global\S*\.nc\S*", ptx) == []


def drawn(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def sum_of_parts(K, **constants):
    config = PipelinedConfig(16, 16, 32, 1, 4, 8, 16, 1, SPLIT_K=2, **constants)
    sim.sgemm("pipelined", config, drawn(16, K), drawn(K, 16), machine=Machine("sm_90"))


def split():
    rung_11.split([drawn(9, 300), np.asarray(drawn(9, 300), order="F")], Machine("sm_90"), times=2)


def fp16x3_product():
    A, B, C = drawn(20, 200), drawn(200, 12), drawn(20, 12)
    config = Fp16x3Config(BM=64, BN=16, STAGES=4, SPLIT_K=2)
    rung_11.multiply(A, B, 1.0, 1.0, C, config, Machine("sm_90"))


# Those that are launched on sm_90, with what launches them early.
LAUNCHED = {
    "reduce_parts.cu": lambda: sum_of_parts(70),
    "reduce_segments.cu": lambda: sum_of_parts(1030, SEGMENT=1024),
    "split.cu": split,
    "11_fp16x3.cu": fp16x3_product,
    "guard_fp16x3.cu": fp16x3_product,
}


@functools.cache
def once(launched):
    """Launch the kernels as they are; several files share a launch."""
    launched()


def test_every_kernel_that_waits_is_here():
    assert {*KERNELS} == {*LAUNCHED, "column_maxima.cu", "11_fp16x3_mma.cu"}


@pytest.mark.parametrize("file", LAUNCHED)
def test_no_wait_can_be_left_out(file, monkeypatch):
    once(LAUNCHED[file])
    right = source.plain
    wait = re.compile(r"\bgriddepcontrol_wait\(\);")
    monkeypatch.setattr(source, "plain", lambda name: wait.sub(";", right(name)) if name == file else right(name))
    with pytest.raises(RaceError, match="has not waited for the launch before"):
        LAUNCHED[file]()
