"""What was measured of rung 11: shipped rates, and the user's, which come first."""

import json

import pytest
from msgspec import structs

from fastsgemm.device import DeviceInfo
from fastsgemm.errors import ConfigError, RecordError
from fastsgemm.geometry.variants import dense_operands
from fastsgemm.heuristics import database
from fastsgemm.heuristics.choice import choose
from fastsgemm.heuristics.database_entries import Content
from fastsgemm.problem import DTYPES, Problem
from fastsgemm.request import resolve

H200 = DeviceInfo("NVIDIA H200", "sm_90", 227 * 1024, 132)
FP16X3 = resolve(precision="fp16x3")
RATES, GENERIC = database.rates("sm_90"), database.rates("sm_80")


def chosen(device, problem, request):
    return choose(device, request, *dense_operands(problem))


def save(rates, arch="sm_90"):
    """Store rates as a tuning run does, and return the user's file."""
    return database.save(Content(arch, 232448, rates=(rates,)))


def test_rates_come_back(data_folder):
    for arch in ("sm_90", "sm_80"):
        shipped = database.rates(arch)
        mine = structs.replace(shipped, device="Some GPU (1)")
        assert save(mine, arch) == data_folder / "tuning_db" / f"{arch}.json"
        assert database.rates(arch, "Some GPU (1)") == mine
        assert database.rates(arch, "Another GPU") == database.rates(arch) == shipped


def test_new_rates_take_the_place_of_those_of_their_device_alone(data_folder):
    shipped = database.rates("sm_90")
    one, other, again = (
        structs.replace(shipped, device=device, multiprocessors=count)
        for device, count in (("A", 1), ("B", 2), ("A", 3))
    )
    for rates in (one, other, again):
        save(rates)
    assert database.own("sm_90").rates == (again, other)


def test_a_device_gets_the_rates_that_are_shipped_for_it(tuning_folder):
    h100 = structs.replace(RATES, device="NVIDIA H100 80GB HBM3", most_parts=7)
    database.write(tuning_folder / "sm_90.json", Content("sm_90", 232448, rates=(RATES, h100)))
    database.write(tuning_folder / "generic.json", Content("generic", 49152, rates=(GENERIC,)))
    assert database.rates("sm_90", h100.device) == h100
    assert database.rates("sm_90", "NVIDIA H100") == database.rates("sm_90") == RATES
    assert database.rates("sm_80", h100.device) == GENERIC


def test_the_users_rates_decide(data_folder):
    problem = Problem(4096, 4096, 4096)
    assert chosen(H200, problem, FP16X3).tensor_cores
    shipped = database.rates("sm_90")
    save(structs.replace(shipped, tiles=tuple(structs.replace(tile, step_us=50.0) for tile in shipped.tiles)))
    choice = chosen(H200, problem, FP16X3)
    assert not choice.tensor_cores and "the IEEE kernel of rung pipelined is quicker" in choice.why


def test_no_more_parts_than_the_file_says(data_folder):
    deep, shipped = Problem(256, 256, 65536), database.rates("sm_90")
    assert 1 < chosen(H200, deep, resolve("fp16x3")).config.SPLIT_K <= shipped.most_parts
    save(structs.replace(shipped, most_parts=1))
    assert chosen(H200, deep, resolve("fp16x3")).config.SPLIT_K == 1


def test_splitting_16_bits_takes_the_share_that_the_file_says(data_folder):
    problem = Problem(8192, 256, 6144, dtypes=DTYPES["bf16xf32"])  # with B as it lies, A is split
    shipped, less = database.rates("sm_90"), chosen(H200, problem, resolve("fp16x3")).ms
    save(structs.replace(shipped, split_halves=1.0))
    more = chosen(H200, problem, resolve("fp16x3")).ms
    bytes_saved = (1.0 - shipped.split_halves) * 8 * problem.M * problem.K
    assert more - less == pytest.approx(1e-9 * bytes_saved / shipped.times.split_rows_tb_s)


def test_measured_times_replace_the_rule_for_unmeasured_devices(data_folder):
    device = DeviceInfo("NVIDIA L4", "sm_89", 101376, 58)
    assert "nobody measured" in chosen(device, Problem(4096, 4096, 4096), FP16X3).why
    mine = structs.replace(database.rates("sm_89"), device="NVIDIA L4", multiprocessors=58, least_gflop=None)
    save(mine, "sm_89")
    assert chosen(device, Problem(4096, 4096, 4096), FP16X3).tensor_ms is not None


@pytest.mark.parametrize(("old", "new"), [
    ('"launch_us": ', '"launch_us": -'), ('"launch_us"', '"lunch_us"'),
    ('"BM": 128', '"BM": 37'), ('"least_k"', '"leest_k"'), ('"reduce_tb_s": ', '"reduce_tb_s": "x", "y": '),
    ('"least_k": 256', '"least_k": "x"'), ('"multiprocessors": 132', '"multiprocessors": "x"'),
    ('"times": {', '"times": [], "timers": {'), ('"tiles": [', '"tiles": [5, '),
    ('"split_halves"', '"least_gflop": 4, "split_halves"'), ('"date": "', '"date": "once '),
])  # fmt: skip
def test_damaged_rates_of_the_user_are_one_warning_and_a_miss(data_folder, old, new):
    shipped = database.rates("sm_90")
    path = save(structs.replace(shipped, most_parts=7))
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    database.forget()
    with pytest.warns(RuntimeWarning, match=r"1 line\(s\) of tuning file .* are left out"):
        assert database.rates("sm_90", "NVIDIA H200") == shipped


def refused(change):
    """Return why rates with a change are refused."""
    line = json.loads(database.dumps(Content("sm_90", 232448, rates=(database.rates("sm_90"),))))["rates"][0]
    change(line)
    text = json.dumps({"schema": 6, "arch": "sm_90", "shared_limit": 232448, "rates": [line]})
    [fault] = database.parse(text.encode(), "sm_90").faults
    return fault


def made(shipped, **changed):
    """Rates as they are read: msgspec 0.19 checks no struct that `replace` makes."""
    return type(shipped)(**structs.asdict(shipped) | changed)


@pytest.mark.parametrize("value", [1e100, 1e-310])
def test_a_rate_from_which_no_time_can_be_predicted_is_refused(value):
    assert "$.times.read_tb_s" in refused(lambda line: line["times"].update(read_tb_s=value))


@pytest.mark.parametrize(
    ("ranges", "K"),
    [([(32, 4096), (256, 2048)], 4097), ([(4096, None), (32, 1024)], 1025), ([(32, 64), (65, 99)], 100)],
)
def test_some_tile_must_serve_every_k(ranges, K):
    """Otherwise a call with such a K would fail."""
    tile = database.rates("sm_90").tiles[0]
    tiles = tuple(structs.replace(tile, least_k=least, most_k=most) for least, most in ranges)
    line = [{"constants": tile.constants, "step_us": 1.0, "tile_us": 1.0, "least_k": one.least_k} for one in tiles]
    for one, written in zip(tiles, line, strict=True):
        if one.most_k is not None:
            written["most_k"] = one.most_k
    assert f"no tile serves K = {K}" in refused(lambda data: data.update(tiles=line))
    with pytest.raises(RecordError, match=f"no tile serves K = {K}$"):
        made(database.rates("sm_90"), tiles=tiles)


def test_a_tile_of_another_kernel_is_refused():
    shipped = database.rates("sm_90")
    with pytest.raises(ConfigError, match="is not for operands that are split"):
        made(shipped, tiles=shipped.direct.tiles)
    with pytest.raises(ConfigError, match="is not for operands as they lie"):
        made(shipped, direct=structs.replace(shipped.direct, tiles=shipped.tiles))


def test_rates_with_a_tile_that_the_architecture_cannot_run_are_passed_over(data_folder):
    """Otherwise the call that chooses it would fail."""
    save(structs.replace(database.rates("sm_90"), device="NVIDIA A100"), "sm_80")
    with pytest.warns(RuntimeWarning, match="sm_80 cannot run all tiles"):
        assert database.rates("sm_80", "NVIDIA A100") == database.rates("sm_80")
    save(structs.replace(database.rates("sm_80"), device="NVIDIA H200"))
    assert "WM" in database.rates("sm_90", "NVIDIA H200").tiles[0].constants


def test_a_package_without_rates_is_an_error(tuning_folder):
    with pytest.raises(RecordError, match=r"generic\.json has no rates of rung fp16x3"):
        database.rates("sm_80")
