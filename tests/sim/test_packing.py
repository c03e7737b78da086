"""The packed path on the simulated device: every element is copied, the padding is zeros, and the bits stay."""

import forced_choice
import numpy as np
import pytest
import rung_11

from fastsgemm import rungs
from fastsgemm.call import packing
from fastsgemm.call.plan import Draft
from fastsgemm.config import PipelinedConfig
from fastsgemm.geometry.layout import LeadingDimension
from fastsgemm.geometry.matrix import Base, Operand
from fastsgemm.sim.gemm import run, sgemm
from fastsgemm.sim.machine import Machine

RUNG = rungs.find("pipelined")
CONFIG = PipelinedConfig(BM=32, BN=32, BK=8, TM=4, TN=4, WM=16, WN=32, WNITER=1, CP_ASYNC=2, STAGES=3)


def packed(x, trans):
    """Pack a matrix whose rows are contiguous, or whose columns are; return the lines with what pads them."""
    draft, matrix = Draft(Machine().device), rung_11.lying(Base.A, x)
    lying = Operand(x.shape, LeadingDimension(x.strides[0] == 4, max(x.strides) // 4))
    to = lying.packed(trans)
    packing.add_lines(draft, matrix, lying, to)
    lines = np.full((x.shape[int(trans)], to.how.ld), np.nan, np.float32)
    run(draft.plan(1), Machine(), {Base.A: x, Base.WORKSPACE: lines}, 1.0, 0.0)
    return lines


@pytest.mark.parametrize("shape", [(1, 1), (3, 66), (65, 5), (64, 64), (67, 130)])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("column_major", [False, True])
def test_a_packed_operand_has_every_element_and_zeros_up_to_a_whole_vector(shape, trans, column_major):
    padded = np.random.default_rng(0).standard_normal((200, 203), np.float32)
    x = padded.T[: shape[0], : shape[1]] if column_major else padded[: shape[0], : shape[1]]
    found, expected = packed(x, trans), x.T if trans else x
    length = expected.shape[1]
    assert np.array_equal(found[:, :length], expected)
    up = -(-length // 4) * 4
    assert not found[:, length:up].any() and np.isnan(found[:, up:]).all()
    assert found.shape[1] % 32 == 0


@pytest.mark.parametrize(
    ("which", "layout", "M", "N"),
    [
        ((True, True), "NN", 70, 34),
        ((True, True), "TT", 33, 47),
        ((True, False), "NT", 30, 61),
        ((False, True), "TN", 33, 30),
    ],
)
def test_a_packed_product_has_the_bits_of_the_unpacked_one(monkeypatch, which, layout, M, N):
    K = 21
    generator = np.random.default_rng(1)
    a, b = (
        generator.standard_normal(shape[::-1] if letter == "T" else shape, np.float32)
        for shape, letter in zip(((M, K), (K, N)), layout, strict=True)
    )
    a, b = (x.T if letter == "T" else x for x, letter in zip((a, b), layout, strict=True))
    plain, _ = sgemm(RUNG, CONFIG, a, b)
    forced_choice.force(monkeypatch, RUNG, CONFIG, which)
    found, _ = sgemm(None, None, a, b)
    assert np.array_equal(found, plain)
    c = np.full((N, M), np.nan, np.float32).T  # column-major: A and B change places
    found, _ = sgemm(None, None, a, b, C=c)
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-5)


def test_an_odd_edge_is_read_16_bytes_at_a_time_where_the_operand_is_packed():
    a = Operand((33, 21), LeadingDimension(False, 21)).packed(True)
    assert (a.width, a.line, a.how) == (4, 36, LeadingDimension(True, 64))
