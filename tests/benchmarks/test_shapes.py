"""`sgemm` as it comes beside cuBLAS over problems of many shapes, those that it loses included."""

import pytest

from fastsgemm import bench, database, ladder
from fastsgemm.plan import Problem

pytestmark = pytest.mark.gpu

SHAPES = [
    (128, 128, 128),
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (1000, 1000, 1000),
    (3000, 3000, 3000),
    (4095, 4097, 4093),
    (333, 777, 555),
    (4096, 4096, 128),
    (8192, 8192, 64),
    (65536, 64, 64),
    (100000, 96, 96),
    (128, 4096, 4096),
    (16, 4096, 4096),
    (4096, 32, 4096),
    (1, 4096, 4096),
    (4096, 1, 4096),
    (2048, 11008, 4096),
    (64, 64, 65536),
    (256, 256, 16384),
    (32, 32, 262144),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_shape(shape, reported, request):
    if max(shape) > 4096 and not request.config.getoption("benchmark_enable"):
        pytest.skip("large; run by make bench")
    with bench.card(Problem(*shape), [database.default_rung()]) as place:
        climbed = ladder.climb(place)
    row = climbed.rows[0]
    assert row.ms is not None, f"wrong result, error {row.error}"
    benchmark = reported("shapes", lambda: row.ms / 1e3, 1)
    benchmark.extra_info.update(climbed.json()["rows"][0], M=climbed.M, N=climbed.N, K=climbed.K)
    benchmark.extra_info["cublas_ms"] = climbed.rows[-1].ms if climbed.baseline else None
