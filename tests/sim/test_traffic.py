import numpy as np
import pytest

from fastsgemm.sim.traffic import sectors, wavefronts

LANES = np.arange(32)


def _warp(addresses):
    return np.asarray(addresses, np.int64).reshape(1, 32)


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (4 * LANES, 4),
        (4 * LANES + 16, 5),
        (16 * LANES, 16),
        (0 * LANES, 1),
        (4096 * LANES, 32),
        (np.where(LANES < 8, 4 * LANES, -1), 1),
        (np.where(LANES % 2 == 0, 4 * LANES, -1), 4),
        (0 * LANES - 1, 0),
    ],
)
def test_sectors(addresses, expected):
    assert sectors(_warp(addresses)) == expected


def test_sectors_of_several_warps_add_up():
    assert sectors(np.concatenate([_warp(4 * LANES), _warp(32 * LANES), _warp(0 * LANES)])) == 4 + 32 + 1


@pytest.mark.parametrize(
    ("addresses", "size", "expected"),
    [
        (4 * LANES, 4, 1),
        (0 * LANES, 4, 1),  # one word for all
        (8 * LANES, 4, 2),
        (128 * LANES, 4, 32),
        (132 * LANES, 4, 1),
        (4 * (LANES % 4) * 32, 4, 4),
        (8 * LANES, 8, 2),
        (16 * LANES, 8, 4),
        (16 * LANES, 16, 4),
        (32 * LANES, 16, 8),
        (512 * LANES, 16, 32),
        (np.where(LANES < 8, 16 * LANES, -1), 16, 1),
        (np.where(LANES < 8, 128 * LANES, -1), 4, 8),
        (LANES, 1, 1),
        (0 * LANES - 1, 4, 0),
    ],
)
def test_wavefronts(addresses, size, expected):
    assert wavefronts(_warp(addresses), size, loading=False) == expected


@pytest.mark.parametrize(
    ("addresses", "size", "loading", "storing"),
    [
        (0 * LANES, 16, 2, 4),
        (16 * (LANES // 2), 16, 2, 4),  # pairs (n, n ^ 1)
        (16 * (LANES % 2 + LANES // 4 * 2), 16, 2, 4),  # pairs (n, n ^ 2)
        (16 * (LANES % 8), 16, 4, 4),  # the quarters are equal, the pairs are not
        (8 * (LANES // 2), 8, 1, 2),
        (np.where(LANES % 2 == 0, 16 * LANES, -1), 16, 4, 4),
    ],
)
def test_loads_in_pairs_take_half(addresses, size, loading, storing):
    assert wavefronts(_warp(addresses), size, loading=True) == loading
    assert wavefronts(_warp(addresses), size, loading=False) == storing


def test_warps_are_judged_one_by_one():
    both = np.concatenate([_warp(0 * LANES), _warp(16 * LANES)])
    assert wavefronts(both, 16, loading=True) == 2 + 4
