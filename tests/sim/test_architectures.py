"""Every rung on every architecture, with the NVRTC that is installed; `make nvrtc` runs these with both lines of it.

A quick run takes the oldest architecture and the one with most records; `make test-all` takes all.

For the same source the lines of NVRTC, and for the same NVRTC the architectures, take different instructions: only a
run of each shows that the simulated device has them. What ptxas says of a kernel shows that it takes it, too.
"""

from dataclasses import replace

import architectures
import numpy as np
import pytest

from fastsgemm import rungs
from fastsgemm.config import SEGMENT
from fastsgemm.errors import DeviceError
from fastsgemm.geometry.batch import Batch
from fastsgemm.heuristics import fp16x3
from fastsgemm.jit import source
from fastsgemm.rungs import kernel_name
from fastsgemm.sim import Machine, Region, sgemm

EVERY = architectures.parameters(quick=("sm_75", "sm_90"))
IEEE = [rung.name for rung in (*rungs.IEEE, rungs.SKINNY_IN_ORDER)]
FP16X3 = [rung.name for rung in rungs.RUNGS if rung.precision == "fp16x3"]
TILE = {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4}  # small tiles are compiled in a fraction of the time
WARP_TILE = TILE | {"BN": 64, "WM": 32, "WN": 32, "WNITER": 1}
# Of rungs 6 and 7, NVRTC 12.8 spills 8 bytes with small tiles.
SMALL = {"blocktile_2d": TILE, "warptiled": WARP_TILE, "pipelined": WARP_TILE}


def _whole(*shape):
    """Whole numbers, whose products and sums are exact in every order."""
    return np.random.default_rng(0).integers(-8, 9, shape).astype(np.float32)


@pytest.mark.parametrize("arch", EVERY)
@pytest.mark.parametrize("name", IEEE)
def test_every_rung(arch, name, configs):
    A, B, C = _whole(67, 21), _whole(21, 69), _whole(67, 69)
    expected = 2 * (A @ B) - C
    config = replace(configs[name], **SMALL.get(name, {}))
    found, report = sgemm(rungs.find(name), config, A, np.asfortranarray(B), 2.0, -1.0, C, Machine(arch))
    np.testing.assert_array_equal(found, expected)
    assert report.arch == arch and report.spilled == 0


# What changes the places of neighbouring columns in registers, and how often two of them share an instruction.
PAIRED = {
    "warptiled": ("warptiled", WARP_TILE | {"SERPENTINE": 1}, "NN", 2),
    "in stages": ("pipelined", WARP_TILE, "NN", 2),
    "column by column": ("pipelined", WARP_TILE | {"ORDER": 2}, "NT", 2),
    "strips": ("pipelined", WARP_TILE | {"ORDER": 3, "CP_ASYNC": 2}, "TN", 2),
    "B in lines": ("pipelined", WARP_TILE | {"BK": 16, "CP_ASYNC": 3}, "NT", 1),
    "odd columns": ("pipelined", WARP_TILE | {"TM": 16, "TN": 1, "WNITER": 1}, "NN", 1),
    "rows of rung 10": ("skinny", {"BM": 8}, "NN", 2),
    "rows of rung 10, B transposed": ("skinny", {"BM": 2}, "NT", 2),
    "one row of rung 10": ("skinny", {"BM": 1}, "NN", 1),
}


@pytest.mark.parametrize("arch", architectures.parameters(("sm_100", "sm_103"), quick=("sm_100",)))
@pytest.mark.parametrize(("name", "constants", "layout", "width"), PAIRED.values(), ids=PAIRED)
def test_two_fmas_by_one_instruction_have_the_same_bits(arch, name, constants, layout, width, configs):
    draw = np.random.default_rng(1)
    M = 70 if name != "skinny" else 2 * constants["BM"]
    A, B, C = (draw.standard_normal(shape).astype(np.float32) for shape in ((M, 37), (37, 69), (M, 69)))
    A[0, 3], A[M - 1, 5], A[:, 7], B[7] = np.inf, np.nan, 1e-40, 1e3  # and subnormal numbers
    A, B = (np.asfortranarray(x) if how == "T" else x for x, how in zip((A, B), layout, strict=True))
    config = replace(configs[name], **constants)
    results, totals = {}, {}
    for each in (arch, "sm_90"):
        results[each], report = sgemm(rungs.find(name), config, A, B, 1.5, -0.5, C.copy(), Machine(each))
        totals[each] = report.total
    np.testing.assert_array_equal(results[arch].view(np.uint32), results["sm_90"].view(np.uint32))
    for total in totals.values():
        assert (total.fmas, total.thread_fmas) == (totals["sm_90"].fmas, totals["sm_90"].thread_fmas)
    assert totals["sm_90"].fma_instructions == totals["sm_90"].fmas
    products = totals[arch].fmas / totals[arch].fma_instructions  # nearly all; the others scale C
    assert width * 0.9 < products <= width


@pytest.mark.sampled(every=4)  # which meets every architecture and every layout
@pytest.mark.parametrize("arch", architectures.parameters())
@pytest.mark.parametrize("name", FP16X3)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_every_rung_of_fp16x3(arch, name, layout):
    """Each layout splits A and B by other kernels."""
    A, B, C = _whole(67, 41), _whole(41, 69), _whole(67, 69)
    expected = 2 * (A @ B) - C
    A, B = (np.asfortranarray(x) if how == "T" else x for x, how in zip((A, B), layout, strict=True))
    arguments = (rungs.find(name), None, A, B, 2.0, -1.0, C, Machine(arch))
    if not fp16x3.supported(arch):
        with pytest.raises(DeviceError, match=f"needs a device of sm_80 or later, got {arch}"):
            sgemm(*arguments)
        return
    found, report = sgemm(*arguments)
    np.testing.assert_array_equal(found, expected)
    assert report.kernel in {kernel_name(file) for file in ("11_fp16x3.cu", "11_fp16x3_mma.cu")}
    assert report.arch == arch and report.spilled == 0


@pytest.mark.parametrize("arch", EVERY)
def test_the_default(arch):
    """The rung and the constants that a device of this architecture gets."""
    A, B = _whole(67, 21), _whole(21, 69)
    found, report = sgemm(None, None, A, B, machine=Machine(arch))
    np.testing.assert_array_equal(found, A @ B)
    assert report.spilled == 0


@pytest.mark.parametrize("arch", EVERY)
def test_the_kernels_that_are_no_rungs(arch):
    x, y, total = _whole(4, 5), np.zeros((5, 4), np.float32), np.zeros((2, 5), np.float32)
    machine = Machine(arch)
    operands = {"x": Region(x), "y": Region(y, read=False, write=True, complete=True)}
    args = [4, 5, "x", 5, 1, "y", 1, 4, Batch().packed]
    report = machine.launch(source.plain("copy_strided.cu"), "fastsgemm_copy_strided", 1, 256, 0, args, operands)
    np.testing.assert_array_equal(y, x.T)
    assert report.spilled == 0
    operands = {"W": Region(x), "C": Region(total, read=False, write=True, complete=True)}
    args = [2, 5, 2, "W", 10, 1.0, 0.0, "C", 5, 1, Batch().packed]
    report = machine.launch(source.plain("reduce_parts.cu"), "fastsgemm_reduce_parts", 1, 256, 0, args, operands)
    np.testing.assert_array_equal(total, x[:2] + x[2:])
    assert report.spilled == 0


@pytest.mark.parametrize("arch", EVERY)
def test_rung_9_in_one_order(arch, configs):
    A, B = _whole(67, 21), _whole(21, 69)
    config = replace(configs["pipelined"], **WARP_TILE, SEGMENT=SEGMENT)
    found, report = sgemm(rungs.find("pipelined"), config, A, B, machine=Machine(arch))
    np.testing.assert_array_equal(found, A @ B)
    assert report.spilled == 0
