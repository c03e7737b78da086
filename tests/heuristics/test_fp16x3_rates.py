"""The files of what was measured of rung 11: shipped ones, and the user's, which is read first."""

import pytest
from msgspec import structs

from fastsgemm import resources
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import RecordError
from fastsgemm.heuristics import database, fp16x3, fp16x3_rates
from fastsgemm.problem import DTYPES, Problem
from fastsgemm.request import resolve

H200 = DeviceInfo("NVIDIA H200", "sm_90", 227 * 1024, 132)
FP16X3 = resolve(precision="fp16x3")


def test_a_file_comes_back(data_folder):
    for arch in ("sm_90", "sm_80"):
        shipped = fp16x3_rates.load(arch)
        mine = structs.replace(shipped, arch=arch, device="Some GPU (1)")
        path = fp16x3_rates.save(mine)
        assert path == data_folder / "fp16x3" / "Some-GPU--1-.json"
        assert fp16x3_rates.load(arch, "Some GPU (1)") == mine
        assert fp16x3_rates.load(arch, "Another GPU") == shipped


def test_shipped_files_are_as_they_would_be_written():
    for path in (resources.folder("tuning_db") / "fp16x3").glob("*.json"):
        rates = fp16x3_rates.parse(path, path.read_bytes())
        assert fp16x3_rates.dumps(rates) == path.read_text()


@pytest.fixture
def of_an_h100(tmp_path, monkeypatch):
    """Rates of a device beside those of its architecture, as they are shipped with its records and curves."""
    folder = tmp_path / "fp16x3"
    folder.mkdir()
    for path in (resources.folder("tuning_db") / "fp16x3").glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    rates = structs.replace(fp16x3_rates.load("sm_90"), device="NVIDIA H100 80GB HBM3", most_parts=7)
    (folder / "NVIDIA-H100-80GB-HBM3.json").write_text(fp16x3_rates.dumps(rates))
    monkeypatch.setattr(resources, "folder", lambda name: tmp_path)
    database.forget()
    yield rates
    monkeypatch.undo()
    database.forget()


def test_a_device_with_a_shipped_file_gets_it(of_an_h100):
    assert fp16x3_rates.load("sm_90", "NVIDIA H100 80GB HBM3") == of_an_h100 != fp16x3_rates.load("sm_90")


@pytest.mark.parametrize(("arch", "device"), [
    ("sm_90", "NVIDIA H100-80GB HBM3"), ("sm_80", "NVIDIA H100 80GB HBM3"), ("sm_90", "generic"), ("sm_80", "sm_90"),
])  # fmt: skip
def test_a_device_whose_name_gives_the_name_of_another_file_does_not_get_that(of_an_h100, arch, device):
    assert fp16x3_rates.load(arch, device) == fp16x3_rates.load(arch)


def test_a_damaged_shipped_file_of_a_device_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "folder", lambda name: tmp_path)
    (tmp_path / "fp16x3").mkdir()
    (tmp_path / "fp16x3" / "NVIDIA-X.json").write_text("{")
    fp16x3_rates.load.cache_clear()
    with pytest.raises(RecordError, match=r"NVIDIA-X\.json: "):
        fp16x3_rates.load("sm_90", "NVIDIA X")


def test_the_users_rates_decide(data_folder):
    problem = Problem(4096, 4096, 4096)
    assert fp16x3.choose(H200, problem, FP16X3).tile is not None
    shipped = fp16x3_rates.load("sm_90")
    slow = tuple(structs.replace(tile, step_us=50.0) for tile in shipped.tiles)
    fp16x3_rates.save(structs.replace(shipped, tiles=slow))
    choice = fp16x3.choose(H200, problem, FP16X3)
    assert choice.tile is None and "the IEEE kernel of rung pipelined is quicker" in choice.why


def test_no_more_parts_than_the_file_says(data_folder):
    deep = Problem(256, 256, 65536)
    shipped = fp16x3_rates.load("sm_90")
    assert 1 < fp16x3.choose(H200, deep, resolve("fp16x3")).tile.SPLIT_K <= shipped.most_parts
    fp16x3_rates.save(structs.replace(shipped, most_parts=1))
    assert fp16x3.choose(H200, deep, resolve("fp16x3")).tile.SPLIT_K == 1


def test_splitting_16_bits_takes_the_share_that_the_file_says(data_folder):
    problem = Problem(8192, 256, 6144, "NT", dtypes=DTYPES["bf16xf32"])
    shipped, less = fp16x3_rates.load("sm_90"), fp16x3.choose(H200, problem, resolve("fp16x3")).ms
    fp16x3_rates.save(structs.replace(shipped, split_halves=1.0))
    more = fp16x3.choose(H200, problem, resolve("fp16x3")).ms
    bytes_saved = (1.0 - shipped.split_halves) * 8 * problem.M * problem.K
    assert more - less == pytest.approx(1e-9 * bytes_saved / shipped.times.split_rows_tb_s)


def test_measured_times_replace_the_rule_for_unmeasured_devices(data_folder):
    device = DeviceInfo("NVIDIA L4", "sm_89", 101376, 58)
    assert "nobody measured" in fp16x3.choose(device, Problem(4096, 4096, 4096), FP16X3).why
    shipped = fp16x3_rates.load("sm_89")
    mine = structs.replace(shipped, arch="sm_89", device="NVIDIA L4", multiprocessors=58, least_gflop=None)
    fp16x3_rates.save(mine)
    assert fp16x3.choose(device, Problem(4096, 4096, 4096), FP16X3).ms is not None


@pytest.mark.parametrize(("old", "new"), [
    ('"schema": 1', '"schema": 9'), ('"launch_us": ', '"launch_us": -'), ('"launch_us"', '"lunch_us"'),
    ('"BM": 128', '"BM": 37'), ('"least_k"', '"leest_k"'), ("{", ""), ('"reduce_tb_s": ', '"reduce_tb_s": "x", "y": '),
    ('"least_k": 256', '"least_k": "x"'), ('"multiprocessors": 132', '"multiprocessors": "x"'),
    ('"times": {', '"times": [], "timers": {'), ('"tiles": [', '"tiles": [5, '),
    ('"origin"', '"least_gflop": 4, "origin"'), ('"date": "', '"date": "once '),
])  # fmt: skip
def test_a_damaged_file_of_the_user_is_one_warning_and_left_out(data_folder, old, new):
    shipped = fp16x3_rates.load("sm_90")
    path = fp16x3_rates.save(shipped)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    fp16x3_rates.load.cache_clear()
    with pytest.warns(RuntimeWarning, match="the rates of rung fp16x3 in .* are left out"):
        assert fp16x3_rates.load("sm_90", "NVIDIA H200") == shipped


@pytest.mark.parametrize("value", [1e100, 1e-310])
def test_a_rate_from_which_no_time_can_be_predicted_is_refused(data_folder, value):
    shipped = fp16x3_rates.load("sm_90")
    path = fp16x3_rates.save(structs.replace(shipped, times=structs.replace(shipped.times, read_tb_s=value)))
    with pytest.raises(RecordError, match=r"read_tb_s|times"):
        fp16x3_rates.parse(path, path.read_bytes())


@pytest.mark.parametrize(
    ("ranges", "K"),
    [([(32, 4096), (256, 2048)], 4097), ([(4096, None), (32, 1024)], 1025), ([(32, 64), (65, 99)], 100)],
)
def test_some_tile_must_serve_every_k(data_folder, ranges, K):
    """Otherwise a call with such a K would fail."""
    shipped = fp16x3_rates.load("sm_90")
    tiles = tuple(structs.replace(shipped.tiles[0], least_k=least, most_k=most) for least, most in ranges)
    path = fp16x3_rates.save(structs.replace(shipped, tiles=tiles))
    with pytest.raises(RecordError, match=f"no tile serves K = {K}$"):
        fp16x3_rates.parse(path, path.read_bytes())


def test_a_tile_that_the_architecture_cannot_run_is_refused(data_folder):
    """Otherwise the call that chooses it would fail."""
    path = fp16x3_rates.save(structs.replace(fp16x3_rates.load("sm_90"), arch="sm_80"))
    with pytest.raises(RecordError, match="sm_80 cannot run Fp16x3Config"):
        fp16x3_rates.parse(path, path.read_bytes())
    path = fp16x3_rates.save(structs.replace(fp16x3_rates.load("sm_80"), arch="sm_90"))
    assert fp16x3_rates.parse(path, path.read_bytes()).arch == "sm_90"


def test_a_file_that_others_can_write_is_left_out(data_folder):
    shipped = fp16x3_rates.load("sm_90")
    path = fp16x3_rates.save(structs.replace(shipped, multiprocessors=7))
    path.chmod(0o666)
    fp16x3_rates.load.cache_clear()
    with pytest.warns(RuntimeWarning, match="other users can write"):
        assert fp16x3_rates.load("sm_90", "NVIDIA H200") == shipped


def test_a_damaged_shipped_file_is_an_error(tuning_folder):
    (tuning_folder / "fp16x3").mkdir()
    (tuning_folder / "fp16x3" / "generic.json").write_text("{}")
    fp16x3_rates.load.cache_clear()
    with pytest.raises(RecordError, match=r"generic\.json: .*`schema`"):
        fp16x3_rates.load("sm_80")
