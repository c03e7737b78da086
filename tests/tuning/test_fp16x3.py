"""Measuring rung 11: rates that a device is made of are found again, and stored by ``fastsgemm tune``."""

import json
import random
from types import SimpleNamespace

import pytest
from msgspec import structs

from fastsgemm.call.product import make_plan
from fastsgemm.config import F16DirectConfig
from fastsgemm.device import DeviceInfo, open_gpu
from fastsgemm.errors import ConfigError, DeviceError
from fastsgemm.geometry import variants
from fastsgemm.geometry.fp16x3 import tiling
from fastsgemm.heuristics import database, fp16x3_rates
from fastsgemm.heuristics import fp16x3 as heuristics
from fastsgemm.heuristics.fields import Tools
from fastsgemm.problem import DTYPES, FLOAT32, Problem, Sym
from fastsgemm.progress import Bar
from fastsgemm.tuning import evaluator as tuning_evaluator
from fastsgemm.tuning import fp16x3, tuner
from fastsgemm.tuning.plan import plan_run

TOOLS = Tools("580.0", "13.0", "2026-01-01")
H200 = DeviceInfo("NVIDIA H200", "sm_90", 227 * 1024, 132)
A100 = DeviceInfo("NVIDIA A100", "sm_80", 166912, 108)


class FormulaTimes:
    """A device that takes exactly what the prediction says, with rates of its own."""

    def __init__(self, device, rates):
        self.device_info, self.rates = device, rates
        self.seen = []

    def __call__(self, config, problem, split):
        self.seen.append(problem)
        known = self.rates
        tiles = known.tiles
        if isinstance(config, F16DirectConfig):
            assert problem.layout == "NT" and str(problem.dtypes) in ("bf16xbf16", "f32xbf16")
            tiles = known.unsplit(problem.dtypes).tiles
            split = (False, False)  # the kernel reads the operands as they lie
        tile = next(tile for tile in tiles if tile.config == config.kernel)
        multiprocessors = self.device_info.multiprocessors
        sym = Sym.BOTH if problem.symmetric else Sym.WHOLE
        trans_c = not sym and heuristics.orientation(self.device_info, problem, config)
        t = tiling(config, problem.M, problem.N, problem.K, trans_c, multiprocessors, sym)
        return heuristics.predicted_us(known, tile, t, problem, split, multiprocessors)


def other(tiles):
    """Tiles that take other times."""
    return tuple(
        structs.replace(tile, step_us=1.1 * tile.step_us, tile_us=tile.tile_us + place)
        for place, tile in enumerate(tiles)
    )


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.arch)
def test_the_rates_of_a_device_are_found(device):
    shipped = database.rates(device.arch)
    numbers = structs.asdict(shipped.times)
    times = fp16x3_rates.Times(
        **{name: value * 1.02 ** (1 + place) for place, (name, value) in enumerate(numbers.items())}
    )
    lying = {
        name: structs.replace(
            part, launch_us=1.3 * part.launch_us, read_tb_s=0.8 * part.read_tb_s, tiles=other(part.tiles)
        )
        for name in ("direct", "mixed") if (part := getattr(shipped, name)) is not None
    }  # fmt: skip
    assert len(lying) == (2 if device is H200 else 0)
    made_of = structs.replace(shipped, tiles=other(shipped.tiles), times=times, **lying)
    time = FormulaTimes(device, made_of)
    found = fp16x3.measure(device, TOOLS, time)
    assert (found.device, found.driver, found.least_gflop) == (device.name, TOOLS.driver, None)
    for name, part in lying.items():
        assert getattr(found, name).launch_us == pytest.approx(part.launch_us, rel=0.1)
        assert getattr(found, name).read_tb_s == pytest.approx(part.read_tb_s, rel=0.1)
    for one, expected in zip(found.all_tiles, made_of.all_tiles, strict=True):
        assert (one.config, one.least_k, one.most_k) == (expected.config, expected.least_k, expected.most_k)
        assert one.step_us == pytest.approx(expected.step_us, rel=0.02)
        assert one.tile_us == pytest.approx(expected.tile_us, rel=0.1, abs=0.3)
    for name, value in structs.asdict(times).items():
        assert getattr(found.times, name) == pytest.approx(value, rel=0.1), name
    for problem in time.seen:  # no more than a device of 8 GB has
        assert 8 * (problem.M * problem.K + problem.K * problem.N) + 4 * problem.M * problem.N < 3 << 30


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.arch)
def test_three_times_correct_the_rates_of_another_device(device):
    """One that computes, reads and starts kernels in other times; those that correct it are few."""
    shipped = structs.replace(database.rates(device.arch), least_gflop=None)
    factors = {name: 0.5 if name.endswith("_tb_s") else 1.4 for name in structs.asdict(shipped.times)} | {
        "mirrored": 1.0
    }
    times = fp16x3_rates.Times(**{n: factors[n] * value for n, value in structs.asdict(shipped.times).items()})
    slower = [structs.replace(t, step_us=2.0 * t.step_us, tile_us=2.0 * t.tile_us) for t in shipped.tiles]
    time = FormulaTimes(device, structs.replace(shipped, times=times, tiles=tuple(slower)))
    found = fp16x3.correct(structs.replace(device, name="Fake"), TOOLS, time)
    assert (found.device, found.transferred_from, found.date) == ("Fake", shipped.device, TOOLS.date)
    assert len(time.seen) == 4  # splitting is a difference of two
    for tile, expected in zip(found.tiles, slower, strict=True):
        assert tile.config == expected.config and tile.step_us == pytest.approx(expected.step_us, rel=0.1)
    for name in ("launch_us", "split_rows_tb_s", "read_tb_s"):
        assert getattr(found.times, name) == pytest.approx(getattr(times, name), rel=0.3), name


def test_noise_of_short_products_spoils_no_tile():
    """A product of a small tile takes hardly longer than its call."""
    shipped = database.rates("sm_90")
    direct = structs.replace(
        shipped.direct, tiles=tuple(structs.replace(tile, tile_us=0.1) for tile in shipped.direct.tiles)
    )
    exact = FormulaTimes(H200, structs.replace(shipped, direct=direct))
    for seed in range(5):
        draw = random.Random(seed)
        found = fp16x3.measure(H200, TOOLS, lambda *given, draw=draw: exact(*given) * draw.uniform(0.95, 1.05))
        for one, expected in zip(found.direct.tiles, direct.tiles, strict=True):
            assert one.step_us == pytest.approx(expected.step_us, rel=0.25), one.config


def test_a_tile_is_timed_with_what_it_serves():
    """Of 128 x 64, 512 to 2048 steps gave 1.7 us for what takes 2.1 on products of 64 to 400, on both devices."""
    for tile in database.rates("sm_90").all_tiles:
        depths = {problem.K for problem in fp16x3._problems_of(H200, tile, FLOAT32)}
        assert min(depths) == (256 if tile.least_k == 256 else 128) and max(depths) == 2048
        assert all(tile.serves(K, H200.shared_limit) for K in depths)


def test_tune_stores_what_it_measured(evaluator, data_folder):
    outcome = tuner.run_plan(plan_run(evaluator.device, rung="fp16x3"), evaluator, Bar(False))
    assert outcome.path == data_folder / "tuning_db" / "sm_90.json"
    assert database.rates("sm_90", "Fake 9000") == outcome.rates and not outcome.tuned
    assert f"stored in {outcome.path}" in str(outcome) and "split_rows_tb_s" in str(outcome)
    written = json.loads(json.dumps(outcome.json()))["fp16x3"]
    assert written["device"] == "Fake 9000" and written["tools"]["date"] == outcome.rates.date
    assert [tile["config"] for tile in written["tiles"]] == [tile.config.constants for tile in outcome.rates.all_tiles]


def test_the_plan_says_what_is_measured():
    assert plan_run(H200).rates and plan_run(H200, quick=True).rates and not plan_run(H200, ["64"]).rates
    text = str(plan_run(H200, rung=11))
    assert "rung fp16x3: the times of 23 tiles" in text and "problems" not in text
    with pytest.raises(ConfigError, match="leave the problems out"):
        plan_run(H200, [Problem(64, 64, 64)], rung="fp16x3")
    with pytest.raises(DeviceError, match="needs a device of sm_80 or later"):
        plan_run(DeviceInfo("Old", "sm_75", 65536, 40), rung="fp16x3")
    assert not plan_run(DeviceInfo("Old", "sm_75", 65536, 40)).rates
    with pytest.raises(ConfigError, match=r"the rungs that can be tuned are .*, fp16x3"):
        plan_run(H200, rung="naive")


@pytest.mark.parametrize("dtypes", ["bf16xbf16", "f32xbf16"])
@pytest.mark.parametrize("number", range(len(database.rates("sm_90").mixed.tiles)))
def test_16_bit_operands_are_timed_as_they_lie(number, dtypes, monkeypatch):
    timed = []
    monkeypatch.setattr(
        tuning_evaluator, "multiply", lambda gpu, stream, request, given, *rest: timed.append((request, given))
    )
    config = database.rates("sm_90").unsplit(DTYPES[dtypes]).tiles[number].config
    problem = Problem(512, 256, 512, "NT", dtypes=DTYPES[dtypes])
    given = [(4096 * place, meta) for place, meta in enumerate(variants.dense(problem), start=1)]
    monkeypatch.setattr(tuning_evaluator, "views", lambda problem, arrays: given)
    monkeypatch.setattr(tuning_evaluator, "lent", lambda problem, arrays: given)
    timer = tuning_evaluator.Timer(SimpleNamespace(gpu=None), problem, ())
    timer.product_of_tile(config, (False, False))()
    [(request, given)] = timed
    plan = make_plan(H200, request, [meta for _, meta in given], [address for address, _ in given])
    assert plan.launches[-1].kernel.file == "11_half.cu"  # the other is for an alpha of 0


@pytest.mark.gpu
def test_a_device_is_measured():
    with tuner.evaluating(open_gpu(0)) as evaluator:
        found = evaluator.fp16x3_rates()
    assert 0.1 < found.times.split_rows_tb_s < 20 and all(tile.step_us < 100 for tile in found.tiles)
