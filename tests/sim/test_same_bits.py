"""The simulated device beside a device: the same bits."""

import numpy as np
import pytest

import fastsgemm
from fastsgemm import rungs
from fastsgemm.sim import sgemm

SHAPES = [
    (1, 1, 1),
    (5, 3, 2),
    (33, 65, 17),
    (130, 131, 9),
    (64, 200, 33),
    (130, 198, 38),
    (257, 63, 40),
    (128, 128, 64),
]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [rung.name for rung in rungs.IEEE])
def test_same_bits_as_the_device(name, shape, configs):
    M, N, K = shape
    draw = np.random.default_rng(M * N + K)
    A, B, C = (draw.standard_normal(s).astype(np.float32) for s in ((M, K), (K, N), (M, N)))
    A[0, 0], B[-1, -1] = 1e-38, 1e-7  # a subnormal product
    for alpha, beta in ((1.0, 0.0), (-0.3, 1.7)):
        on_device, simulated = C.copy(), C.copy()
        fastsgemm.sgemm(A, B, alpha, beta, on_device, rung=name, config=configs[name])
        sgemm(rungs.find(name), configs[name], A, B, alpha, beta, simulated)
        np.testing.assert_array_equal(simulated.view(np.uint32), on_device.view(np.uint32))
