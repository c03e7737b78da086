"""Curves that are carried over to other devices, and corrected by times on them."""

import random

import pytest
from msgspec import structs

from fastsgemm import known_devices, rungs
from fastsgemm.device import DeviceInfo, info_of
from fastsgemm.geometry import grid
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choice import PREDICTED, choose_config
from fastsgemm.heuristics.cost_model import CostModel
from fastsgemm.heuristics.curve_fit import fit
from fastsgemm.heuristics.curve_problems import loads
from fastsgemm.heuristics.device_database import device_database
from fastsgemm.heuristics.products import Product
from fastsgemm.heuristics.transfer import corrected, measured, probes, transferred, with_blocks
from fastsgemm.problem import LAYOUTS, Problem

FITS = {curve.config: fit(curve) for curve in database.shipped("sm_90").curves}
H200, T4, RTX_4090 = (info_of(known_devices.find(name)) for name in ("H200", "T4", "4090"))
ELSEWHERE = [
    info_of(known_devices.find(name)) for name in known_devices.known() if known_devices.known()[name] != "sm_90"
]


def one(**constants):
    """The fit of the config with these constants."""
    return next(each for config, each in FITS.items() if constants.items() <= config.constants.items())


def predicted(known, problem, multiprocessors=132):
    """The time of a problem by one fit, in one part of K."""
    table = CostModel([known], multiprocessors, 232448, database.fitted("sm_90")).predict([Product(problem, True)])
    return table.options()[0][2]


@pytest.mark.parametrize("device", ELSEWHERE, ids=str)
def test_a_device_that_nobody_measured_gets_a_predicted_config_for_every_shape(device):
    """Small, narrow, deep and square ones, and batches, in all layouts: legal there, and not one config for all."""
    found = set()
    generator = random.Random(device.name)
    for number in range(60):
        M, N, K = (2 ** generator.randrange(0, 14) + generator.choice([0, 1]) for _ in range(3))
        problem = Problem(M, N, K, LAYOUTS[number % 4], generator.choice([1, 1, 7, 500]))
        chosen = choose_config(device, None, problem)
        assert chosen.rule == PREDICTED and chosen.rung in rungs.DEFAULTS and chosen.ms > 0
        assert chosen.rung.violations(chosen.config, device.shared_limit) == []
        found.add(chosen.config.kernel)
    assert len(found) > 8


def test_the_shipped_device_and_others_of_its_architecture_keep_their_numbers():
    for known in FITS.values():
        assert transferred(known, DeviceInfo("another", "sm_90", 232448, 114), "sm_90") is known
    assert {each.curve.device for each in device_database(H200).of(rungs.RUNGS[8]).fits} == {"NVIDIA H200"}


def test_an_architecture_that_is_in_no_table_keeps_them_too():
    known = one(BM=64, BN=128, SLICED_K=2)
    assert transferred(known, DeviceInfo("new", "sm_999", 232448, 200), "sm_90") is known


def test_as_many_blocks_are_resident_as_an_sm_has_room_for():
    """Of 128 threads with 24,576 bytes each, an SM of sm_89 with 100 KB holds 4, of sm_75 with 64 KB 2."""
    known = next(each for each in FITS.values() if each.blocks_per_sm > 4 and each.rung.name == "pipelined")
    config = known.curve.config
    for device in (T4, RTX_4090):
        has = known_devices.limits_of(device.arch)
        shared = config.shared_bytes + has.shared_reserved
        expected = min(known.blocks_per_sm, has.threads // config.threads, has.blocks, has.shared // shared)
        assert transferred(known, device, "sm_90").blocks_per_sm == expected
        assert len(transferred(known, device, "sm_90").numbers.lines[0]) == len(loads(expected))


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_fewer_resident_blocks_make_more_waves_of_the_same_blocks(blocks):
    known = next(each for each in FITS.values() if each.blocks_per_sm == 8)
    fewer, config = with_blocks(known, blocks, 132), known.curve.config
    assert fewer.blocks_per_sm == blocks
    for load in range(1, blocks + 1):  # less than a wave: nothing has changed
        problem = Problem(config.BM * 12, config.BN * 11 * load, 1024)
        assert grid.blocks(config.kernel, problem) == load * 132
        assert predicted(fewer, problem) == pytest.approx(predicted(known, problem), rel=0.03)
    many = Problem(config.BM * 12 * 8, config.BN * 11 * 8, 1024)
    assert predicted(fewer, many) > predicted(known, many)
    assert predicted(with_blocks(known, 99, 132), many) == predicted(known, many)


def test_half_the_lanes_double_the_time_of_arithmetic_and_leave_the_start():
    known = one(BM=128, BN=256)
    there = structs.replace(T4, multiprocessors=132)
    slow = transferred(known, there, "sm_90")
    assert slow.blocks_per_sm == known.blocks_per_sm == 1
    large, tiny = Problem(128 * 24, 256 * 22, 4096), Problem(128, 256, 8)
    assert predicted(slow, large) == pytest.approx(2 * predicted(known, large), rel=0.05)
    assert predicted(slow, tiny) == pytest.approx(predicted(known, tiny), rel=0.1)
    narrow = one(BM=1, BN=1, BK=2048)  # which waits for memory
    row = Problem(1, 1024, 8192, "NT")
    assert predicted(transferred(narrow, there, "sm_90"), row) == pytest.approx(predicted(narrow, row), rel=0.02)


@pytest.mark.parametrize("known", FITS.values(), ids=lambda each: str(each.curve.config))
def test_a_corrected_curve_gives_the_times_that_corrected_it(known):
    """A device on which starting takes 1.5 times as long, steps of one block an SM 2 times, of a full wave 3 times."""
    plain = structs.replace(known, curve=structs.replace(known.curve, calibration=1.0))
    tiny, single, full, stream = probes(plain)
    slower = {stream: 9.0, tiny: 1.5, single: 3.0 if known.rung.narrow else 2.0, full: 3.0}  # rung 10 streams there
    times = {problem: factor * predicted(plain, problem) for problem, factor in slower.items()}
    here = structs.replace(plain, numbers=corrected(plain, measured(plain, times)))
    for problem in (tiny, single, full):
        assert predicted(here, problem) == pytest.approx(times[problem], rel=0.06), problem
    assert here.numbers.bandwidth[0] < known.numbers.bandwidth[0]


def test_a_mishap_of_a_measurement_has_limits():
    known = one(BM=128, BN=256)
    tiny, single, full, stream = probes(known)
    numbers = corrected(known, measured(known, {tiny: 1e6, single: 1e-6, full: 1e9, stream: 1e9}))
    assert all(0 <= line.slope < 1e3 and line.start >= 0 for lines in numbers.lines for line in lines)
