"""Divergence and reconvergence, on kernels whose result says which way each thread went."""

import numpy as np
import pytest


@pytest.fixture
def out():
    return np.zeros(128, np.float32)


LANES = np.arange(64)


def test_both_sides_of_a_branch(launch, out):
    source = (
        "float x;\nif (threadIdx.x % 3 == 0) { x = C[64 + threadIdx.x]; ((volatile float*)C)[threadIdx.x] = x; }\n"
        "else x = 2.0f * C[threadIdx.x];\n"
    )
    launch(source + "C[threadIdx.x] = x + threadIdx.x + 1.0f;", "C", {"C": out}, block=64)
    np.testing.assert_array_equal(out[:64], LANES + 1)


def test_loops_of_different_lengths(launch, out):
    source = "float x = 0.0f;\n#pragma unroll 1\n"
    source += "for (int i = 0; i < threadIdx.x; ++i) x += C[64 + i % 64] + i;\nC[threadIdx.x] = x;"
    report = launch(source, "C", {"C": out}, block=64)
    np.testing.assert_array_equal(out[:64], LANES * (LANES - 1) / 2)
    assert report.total.divergent_branches >= 62


def test_threads_that_return_early(launch, out):
    source = "if (threadIdx.x > 40) return;\nC[threadIdx.x] = 1.0f + C[threadIdx.x];\n"
    source += "if (threadIdx.x < 5) return;\nC[threadIdx.x] += 1.0f;"
    launch(source, "C", {"C": out}, block=64)
    np.testing.assert_array_equal(out[:64], np.where(LANES > 40, 0, np.where(LANES < 5, 1, 2)))


def test_break_continue_and_nesting(launch, out):
    source = """
    float x = 0.0f;
    #pragma unroll 1
    for (int i = 0; i < 20; ++i) {
        if ((i + threadIdx.x) % 4 == 0) continue;
        #pragma unroll 1
        for (int j = 0; j < i; ++j) { if (j * threadIdx.x > 50) break; x += C[64 + j]; x += 1.0f; }
        if (x > 60.0f) break;
    }
    C[threadIdx.x] = x;"""
    launch(source, "C", {"C": out}, block=64)
    expected = []
    for thread in range(64):
        x = 0
        for i in range(20):
            if (i + thread) % 4 == 0:
                continue
            for j in range(i):
                if j * thread > 50:
                    break
                x += 1
            if x > 60:
                break
        expected.append(x)
    np.testing.assert_array_equal(out[:64], expected)


def test_a_block_that_is_no_whole_warps(launch, out):
    report = launch("C[blockIdx.x * 40 + threadIdx.x] = threadIdx.x;", "C", {"C": out[:120]}, grid=3, block=40)
    np.testing.assert_array_equal(out[:120].reshape(3, 40), np.tile(np.arange(40), (3, 1)))
    assert report.total.stores["C"].requests == 6


def test_divergent_branches_are_counted_a_warp(launch, out):
    source = "if (C[threadIdx.x] == 0.0f && threadIdx.x < {first}) {{\n"
    source += "C[threadIdx.x] = C[threadIdx.x + 64] + 1.0f; __threadfence_block(); }}"
    for first, expected in ((64, 0), (32, 0), (16, 1)):
        out[:] = 0
        report = launch(source.format(first=first), "C", {"C": out}, block=64)
        assert report.total.divergent_branches == expected, first
        np.testing.assert_array_equal(out[:64], first > LANES)
