"""Which constants a ladder runs a rung with, and what it says where a file's defaults are not used."""

import pytest

from fastsgemm import known_devices, rungs
from fastsgemm.errors import ConfigError, DeviceError
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.jit import source
from fastsgemm.measure import contenders, timed_ladder
from fastsgemm.measure.constants import constants_of
from fastsgemm.problem import Problem

LARGE = Problem(4096, 4096, 4096)


@pytest.fixture
def h200():
    return known_devices.find("NVIDIA H200")


@pytest.mark.parametrize("rung", rungs.RUNGS, ids=str)
def test_a_default_that_a_record_overrides_is_told(rung, h200, monkeypatch):
    given = constants_of(h200, rung, LARGE, {})
    same = {name: given.config.constants.get(name, value) for name, value in source.defaults(rung.file).items()}
    monkeypatch.setattr(source, "defaults", lambda file: same)
    assert constants_of(h200, rung, LARGE, {}).overridden is None
    edited = same | {"BM": 2 * given.config.BM}
    monkeypatch.setattr(source, "defaults", lambda file: edited)
    assert constants_of(h200, rung, LARGE, {}).overridden == (
        f"BM={given.config.BM} from a record, not BM={edited['BM']} as in {rung.file}; --config tries others"
    )


def test_the_kernel_of_older_tensor_cores_has_a_file_of_its_own():
    given = constants_of(known_devices.find("sm_80"), rungs.find("fp16x3"), LARGE, {})
    assert given.overridden is None or "as in 11_fp16x3_mma.cu" in given.overridden


@pytest.mark.parametrize(("name", "tried"), [("blocktile_2d", {"BM": 64, "BN": 64}), ("fp16x3", {"BN": 64, "BM": 64})])
def test_what_is_tried_replaces_constants_of_the_record(name, tried, h200):
    rung = rungs.find(name)
    usual, given = (constants_of(h200, rung, LARGE, asked) for asked in ({}, tried))
    assert given.config.constants == usual.config.constants | tried
    assert given.overridden is None


@pytest.mark.parametrize(
    ("name", "tried", "message"),
    [
        ("blocktile_2d", {"STAGES": 2}, r"unknown constants \['STAGES'\]; ThreadTileConfig has"),
        ("blocktile_2d", {"BM": 100}, "illegal config for rung blocktile_2d .* BM must be a multiple of TM"),
        ("blocktile_2d", {"BM": 0}, "BM must be 1 to 65536, got 0"),
        ("fp16x3", {"BM": 100}, "BM must be .*, got 100"),
    ],
)
def test_what_a_rung_cannot_take_is_refused(name, tried, message, h200):
    with pytest.raises(ConfigError, match=message):
        constants_of(h200, rungs.find(name), LARGE, tried)


def test_a_rung_that_the_device_cannot_run_is_refused():
    with pytest.raises(DeviceError, match="fp16x3 needs a device of sm_80"):
        constants_of(known_devices.find("sm_75"), rungs.find("fp16x3"), LARGE, {})


def test_a_device_launches_what_is_tried_and_else_what_sgemm_chooses(h200):
    launched = []
    rung = rungs.find("blocktile_2d")
    usual = contenders._product(h200, LARGE, rung, lambda *asked: launched.append(asked), {})
    tried = contenders._product(h200, LARGE, rung, lambda *asked: launched.append(asked), {"BM": 64})
    default = contenders._product(h200, LARGE, None, lambda *asked: launched.append(asked), {})
    for product in (usual, tried, default):
        product.work()
    config = choose_config(h200, rung, LARGE).config
    assert launched == [(rung, None), (rung, config.replace(BM=64)), (None, None)]
    assert tried.constants == config.constants | {"BM": 64}
    assert default.name == choose_config(h200, None, LARGE).rung.name


def test_a_measured_ladder_tells_it_below_its_table():
    rows = (timed_ladder.TimedRow("autotuned", 7, {"BM": 64}, 1e-7, 1.0, 1.0, overridden="BM=64 from a record"),)
    text = timed_ladder.Ladder("a desk", "time", 8, 8, 8, rows, None, True, 8).text()
    assert "autotuned: BM=64 from a record" in text.splitlines()
