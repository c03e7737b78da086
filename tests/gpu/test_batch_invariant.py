"""``batch_invariant=True`` on a device: the bits of the contract, whatever the batch, the layout and the config."""

import numpy as np
import pytest

from fastsgemm import PipelinedConfig, sgemm
from fastsgemm import sim as simulated
from fastsgemm.problem import LAYOUTS

pytestmark = pytest.mark.gpu

SEGMENT = 1024
CONFIGS = {
    "the database's": None,
    "two stages": PipelinedConfig(32, 32, 8, 4, 4, 16, 32, 1, CP_ASYNC=0),
    "one row": PipelinedConfig(1, 64, 32, 1, 1, 1, 32, 1, CP_ASYNC=2, STAGES=3, FRAGMENTS=4),
    "eight columns": PipelinedConfig(128, 8, 32, 2, 4, 32, 8, 1, CP_ASYNC=2, SPREAD=1, STAGES=4),
    "a large tile": PipelinedConfig(128, 256, 16, 16, 4, 64, 64, 2, ORDER=4, CP_ASYNC=2, SPREAD=2),
    "a part for each segment": PipelinedConfig(64, 64, 16, 8, 4, 32, 32, 1, SPLIT_K=2),
}


def ordered(torch, a, b, alpha=1.0, beta=0.0, c=None):
    """The contract by rung 1, a chain for each segment, and PyTorch's sums of two."""
    total = None
    for first in range(0, a.shape[1], SEGMENT):
        chain = sgemm(a[:, first : first + SEGMENT].contiguous(), b[first : first + SEGMENT], rung=1)
        total = chain if total is None else total + chain
    alpha, beta = np.float32(alpha), np.float32(beta)
    if beta == 0:
        return total * float(alpha)
    return (total.double() * float(alpha) + (c * float(beta)).double()).float()  # exact in float64, then rounded once


def stored(x, letter):
    return x.T.contiguous().T if letter == "T" else x


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("K", [1, 1023, 1024, 1025, 2051, 5000])
def test_the_bits_are_those_of_the_contract_in_every_layout(torch, name, K):
    a, b, c = (torch.randn(shape, device="cuda") for shape in ((130, K), (K, 75), (130, 75)))
    for alpha, beta in ((1.0, 0.0), (-0.7, 1.3)):
        expected = ordered(torch, a, b, alpha, beta, c)
        for layout in LAYOUTS:
            out = c.clone()
            operands = stored(a, layout[0]), stored(b, layout[1])
            sgemm(*operands, alpha, beta, out, config=CONFIGS[name], batch_invariant=True)
            assert torch.equal(out, expected), layout


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_does_not_depend_on_the_batch(torch, layout):
    a, b = torch.randn((1024, 2500), device="cuda"), torch.randn((2500, 96), device="cuda")
    weight = stored(b, layout[1])
    whole = sgemm(stored(a, layout[0]), weight, batch_invariant=True)
    assert torch.equal(whole, ordered(torch, a, b))
    for rows in (1, 2, 3, 7, 8, 16, 31, 32, 33, 100, 257, 512):
        for first in (0, 5, 511):
            part = stored(a, layout[0])[first : first + rows]
            assert torch.equal(sgemm(part, weight, batch_invariant=True), whole[first : first + rows]), (rows, first)
    assert torch.equal(sgemm(a, b[:, 40:41], batch_invariant=True), whole[:, 40:41])


def test_padding_streams_packing_and_a_column_major_c_change_nothing(torch):
    a, b = torch.randn((70, 1500), device="cuda"), torch.randn((1500, 90), device="cuda")
    expected = ordered(torch, a, b)
    wide = torch.full((70, 1503), float("nan"), device="cuda")
    wide[:, 1:1501] = a
    assert torch.equal(sgemm(wide[:, 1:1501], b, batch_invariant=True), expected)
    assert torch.equal(sgemm(a.repeat_interleave(2, 1)[:, ::2], b, batch_invariant=True), expected)
    out = torch.empty((90, 70), device="cuda").T
    assert torch.equal(sgemm(a, b, C=out, batch_invariant=True), expected)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = sgemm(a, b, batch_invariant=True)
    stream.synchronize()
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("M", "N", "K"), [(3, 33, 1100), (1, 1, 3000), (20, 40, 500)])
def test_simulated_devices_give_the_same_bits(torch, M, N, K):
    draw = np.random.default_rng(K)
    A, B = (draw.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N)))
    found = sgemm(A, B, batch_invariant=True)
    for arch in ("sm_90", "sm_80", "sm_75"):
        other, _ = simulated.sgemm(None, None, A, B, machine=simulated.Machine(arch), batch_invariant=True)
        np.testing.assert_array_equal(other.view(np.uint32), found.view(np.uint32))
