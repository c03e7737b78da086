"""Random calls, and the kernels that most of them need."""

from collections import Counter

import pytest

from fastsgemm import known_devices
from fastsgemm.call.product import make_plan
from fastsgemm.geometry.layout import byte_range
from fastsgemm.kernel_package import census
from fastsgemm.preparation import kernels_of
from fastsgemm.problem import LAYOUTS, DType, Problem
from fastsgemm.progress import Bar
from fastsgemm.request import PLAIN

H200 = known_devices.find("NVIDIA H200")


def of_kind(kind, count=400):
    found = [call for call in census.draw(count, 3) if call.kind == kind]
    assert len(found) > 10
    return found


def test_a_seed_draws_the_same_calls():
    one, again, other = (list(census.draw(50, seed)) for seed in (1, 1, 2))
    assert one == again != other


def test_kinds_arithmetic_and_layouts_are_as_often_as_stated():
    calls = list(census.draw(4000, 1))
    assert sum(census.KINDS.values()) == sum(census.ARITHMETIC.values()) == 100
    kinds = Counter(call.kind for call in calls)
    arithmetic = Counter((call.request.precision, call.request.batch_invariant) for call in calls)
    for counts, shares in ((kinds, census.KINDS), (arithmetic, census.ARITHMETIC)):
        assert counts.keys() == shares.keys()
        assert all(abs(counts[name] / 40 - share) < 3 for name, share in shares.items())
    layouts = Counter(tuple(meta.strides[-1] == 1 for meta in call.metas[:2]) for call in calls)
    assert len(layouts) == 4 and min(layouts.values()) > 600


def test_regular_calls_are_dense_at_aligned_addresses():
    for call in census.draw(500, 1):
        if call.kind != census.IRREGULAR:
            assert not any(address % 16 for address in call.addresses)
            rows, columns = call.metas[2].shape[-2:]
            assert sum(extent % 8 > 0 for extent in (rows, columns, call.metas[0].shape[-1])) <= 2


def test_each_kind_is_what_it_is_called():
    assert all(len(call.metas) == 4 for call in of_kind("source"))
    assert all(call.metas[2].shape[0] > 1 and len(call.metas[2].shape) == 3 for call in of_kind("batch"))
    assert all(call.metas[1].dtype is not DType.F32 for call in of_kind("16-bit"))
    assert all(call.request.sym for call in of_kind("symmetric"))
    assert any(call.addresses[0] == call.addresses[1] for call in of_kind("symmetric"))
    assert {len(call.metas) for call in of_kind("plain")} == {3}
    irregular = of_kind(census.IRREGULAR)
    assert any(address % 16 for call in irregular for address in call.addresses)
    assert any(meta.strides[-2] > meta.shape[-1] for call in irregular for meta in call.metas[:3])
    assert all(byte_range(meta.shape, meta.strides)[0] == 0 for call in irregular for meta in call.metas)


@pytest.mark.parametrize("device", ["T4", "A100", "H200", "RTX 5090"])
def test_every_call_can_be_planned(device):
    traits = known_devices.find(device)
    for call in census.draw(150, 4):
        assert make_plan(traits, call.request, call.metas, call.addresses).launches


def test_kept_are_as_many_kernels_as_the_goal_needs(monkeypatch):
    """Of 100 regular calls, 90 need a, 5 need b too, 3 need c and 2 need a kernel that was not counted."""
    counted = [("plain", frozenset("a"))] * 9 + [("batch", frozenset("ab"))] * 4 + [("irregular", frozenset("c"))] * 2
    held_out = [("plain", frozenset("a"))] * 90 + [("batch", frozenset("ab"))] * 5 + [("batch", frozenset("c"))] * 3
    held_out += [("source", frozenset("d"))] * 2 + [("irregular", frozenset("c"))] * 9
    monkeypatch.setattr(census, "_tuned", lambda devices: [])
    monkeypatch.setattr(census, "_needs", lambda devices, count, seed, bar: counted if seed == 1 else held_out)
    kept, shares = census.census([H200], Bar(False))
    assert kept == ["a", "b"]
    assert shares == {"all": 95 / 109, "regular": 0.95, "plain": 1.0, "source": 0.0, "batch": 5 / 8, "irregular": 0.0}
    held_out[0] = ("plain", frozenset("c"))
    assert census.census([H200], Bar(False))[0] == ["a", "b", "c"]


def test_popular_sizes_are_among_the_tuned_problems():
    tuned = {*census._tuned([H200])}
    problems = [Problem(M, 4096, 4096, layout) for M in (1, 4096) for layout in LAYOUTS]
    assert tuned >= kernels_of(H200, PLAIN, problems, "", Bar(False)).keys()


def test_all_are_kept_if_the_goal_cannot_be_reached(monkeypatch):
    monkeypatch.setattr(census, "_COUNTED", (60, 1))
    monkeypatch.setattr(census, "_HELD_OUT", (40, 2))
    bar = Bar(False)
    kept, shares = census.census([H200], bar)
    bar.begin("count", 60)
    counted = Counter(spec for _, needed in census._needs([H200], 60, 1, bar) for spec in needed)
    tuned = dict.fromkeys(census._tuned([H200]))
    assert kept[: len(tuned)] == [*tuned] and {*kept} == counted.keys() | tuned.keys() and len({*kept}) == len(kept)
    others = [counted[spec] for spec in kept[len(tuned) :]]
    assert others == sorted(others, reverse=True)
    assert 0.2 < shares["regular"] < 0.9
