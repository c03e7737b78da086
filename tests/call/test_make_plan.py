"""A plan is data: it is made without a device, and says of each launch what it reads, writes and needs."""

import pytest

from fastsgemm import F16DirectConfig, Fp16x3Config, PipelinedConfig
from fastsgemm.call import packing
from fastsgemm.call.plan import Draft, When
from fastsgemm.call.product import make_plan, plan_of
from fastsgemm.device import DeviceInfo
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry.layout import Meta, row_major
from fastsgemm.geometry.matrix import Address, Base, Matrix
from fastsgemm.problem import DType
from fastsgemm.request import PLAIN, resolve

H200 = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
A100 = DeviceInfo("NVIDIA A100-SXM4-40GB", "sm_80", 166912, 108)


def dense(*shapes):
    return [Meta(shape, row_major(shape)) for shape in shapes]


PLANS = {
    "one launch": (H200, PLAIN, dense((512, 512), (512, 512), (512, 512))),
    "split-K": (H200, resolve("pipelined"), dense((64, 65536), (65536, 64), (64, 64))),
    "batch with a source": (H200, PLAIN, dense((3, 64, 32), (3, 32, 48), (3, 64, 48), (48,))),
    "packed": (H200, PLAIN, [Meta((60, 40), (300, 3)), *dense((40, 50)), Meta((60, 50), (200, 2))]),
    "rung 11": (H200, resolve("fp16x3"), dense((256, 4096), (4096, 256), (256, 256))),
    "rung 11 on sm_80": (A100, resolve("fp16x3"), dense((256, 4096), (4096, 256), (256, 256))),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_data(name):
    plan = plan_of(*PLANS[name])
    assert plan == plan_of(*PLANS[name])
    for launch in plan.launches:
        written = {write.matrix for write in launch.writes}
        assert written and written <= set(launch.matrices)
        for matrix in launch.matrices:
            if matrix.address.base is Base.WORKSPACE:
                assert 0 <= matrix.address.offset <= plan.workspace - matrix.nbytes
    names = {write.matrix.name for launch in plan.launches for write in launch.writes}
    assert "C" in names


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("beta", [True, False])
def test_whatever_alpha_and_beta_are_c_is_written(name, reads, beta):
    launches = plan_of(*PLANS[name]).selected(reads, beta)
    assert any(write.matrix.address.base is Base.C for launch in launches for write in launch.writes)
    assert reads or not any(launch.when is When.READS for launch in launches)


def test_nothing_is_launched_for_a_result_without_elements():
    assert plan_of(H200, PLAIN, dense((0, 4), (4, 5), (0, 5))).launches == ()


@pytest.mark.parametrize(("place", "early"), [(H200, True), (A100, False)], ids=["sm_90", "sm_80"])
def test_what_adds_parts_up_begins_early_where_the_device_can(place, early):
    halved = resolve("pipelined", PipelinedConfig(32, 32, 8, 4, 4, 16, 32, 1, SPLIT_K=2))
    launches = plan_of(place, halved, dense((64, 256), (256, 64), (64, 64))).launches
    assert [launch.early for launch in launches] == [False, early]


@pytest.mark.parametrize(("device", "early"), [(H200, True), (A100, False)])
def test_what_reads_another_launchs_results_may_begin_early(device, early):
    _, *call = PLANS["rung 11"]
    assert [launch.early for launch in plan_of(device, *call).launches[-3:]] == [early] * 3
    assert not plan_of(device, *call).launches[0].early


def orientations(plan):
    """The constant TRANS_C of the products of rung 11."""
    return [dict(each.kernel.constants)["TRANS_C"] for each in plan.launches if each.kernel.file == "11_fp16x3.cu"]


@pytest.mark.parametrize(("M", "N", "turned"), [(256, 16, 0), (16, 256, 1)])
def test_rung_11_computes_the_transposed_product_where_that_has_fewer_tiles(M, N, turned):
    plan = plan_of(H200, resolve(config=Fp16x3Config(128, 16)), dense((M, 512), (512, N), (M, N)))
    assert orientations(plan) == [turned]


def test_a_panel_above_the_diagonal_is_the_transpose_of_the_one_below_it(monkeypatch):
    """So both have the same bits."""
    panels = geometry.panels
    monkeypatch.setattr(geometry, "_PANEL", 32)
    monkeypatch.setattr(geometry, "panels", lambda lines, K, others: panels(lines, K, others, 100_000))
    metas = [Meta((110, 400), (400, 1)), Meta((400, 110), (1, 400)), *dense((110, 110))]
    plan = make_plan(H200, resolve(config=Fp16x3Config(64, 64)), metas, (0, 0, 32))
    count = len(panels(110, 400, 0, 100_000))
    assert orientations(plan) == [int(row < column) for row in range(count) for column in range(count)]
    assert count > 2


@pytest.mark.parametrize(("M", "N", "stored"), [(256, 16, 4), (16, 256, 1)])
def test_16_bit_products_store_vectors_where_the_kernel_computes_rows_of_c(M, N, stored):
    metas = [Meta((M, 512), (512, 1), DType.F16), Meta((512, N), (1, 512), DType.F16), *dense((M, N))]
    _, launch = plan_of(H200, resolve(config=F16DirectConfig(128, 16), precision="fp16x3"), metas).launches
    assert dict(launch.kernel.constants)["VEC_C"] == stored


def test_a_copy_has_a_block_for_each_1024_elements():
    launches = plan_of(*PLANS["packed"]).launches
    copies = [each for each in launches if each.kernel.file == "copy_strided.cu"]
    assert [(each.grid[0], each.threads) for each in copies] == [(-(-60 * 40 // 1024), 256)] + [
        (-(-60 * 50 // 1024), 256)
    ] * 2


def test_lines_are_packed_with_a_block_for_each_tile_of_64_by_64():
    draft = Draft(H200)
    matrix = Matrix(Address(Base.A), (130, 200), (200, 1))
    packing.add_lines(draft, matrix, matrix.operand, matrix.operand.packed(trans=True))
    [launch] = draft.launches
    assert (launch.grid, launch.threads) == ((-(-130 // 64) * -(-200 // 64),), 256)
