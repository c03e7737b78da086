"""What a simulated ladder finds at ragged sizes that whole tiles do not show."""

import re
from dataclasses import replace
from operator import itemgetter

import kernel_texts
import pytest
from forced_constants import climb_with

from fastsgemm import rungs
from fastsgemm.measure import ragged, simulated_ladder
from fastsgemm.problem import Problem
from fastsgemm.sim import Machine
from fastsgemm.sim.errors import BarrierError, GlobalAccessError

WHOLE = Problem(128, 128, 32)  # whole tiles of every config below
TILE = {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4}  # small tiles are compiled in a fraction of the time
SMALL = {"blocktile_2d": TILE, "vectorized": TILE, "pipelined": TILE | {"BN": 64, "WM": 32, "WN": 32, "WNITER": 1}}


@pytest.fixture
def edited(monkeypatch):
    """Return a function that edits the source of a rung for what is launched from there on."""

    def edit(old, new):
        def edited_text(text):
            assert text.count(old) == 1
            return text.replace(old, new)

        kernel_texts.change(monkeypatch, edited_text)

    return edit


def constants_of(text):
    """Return the constants of a kernel's text, with 0 and 1 for those that it does not have."""
    return {"VEC_A": 1, "VEC_B": 1, "VEC_C": 1, "GUARD": 0} | {
        name: int(value) for name, value in re.findall(r"^constexpr int (\w+) = (-?\d+);", text, re.MULTILINE)
    }


def small(configs, name):
    return {name: replace(configs[name], **SMALL.get(name, {}))}


BOUNDS_CHECKS = [
    ("smem_tiled", "if (m < M) store_row", "store_row"),
    ("smem_tiled", "N - (tile.n + col), alpha", "BN, alpha"),
    ("blocktile_1d", "if (m < M) store_row", "store_row"),
    ("blocktile_2d", "if (m < M) store_row", "store_row"),
    ("vectorized", "if (m < M) store_row", "store_row"),
    ("vectorized", "N - (tile.n + col), alpha", "BN, alpha"),
    ("pipelined", "has_share() && (!GUARDED || mn_of(i) < left) && first", "has_share() && first"),
    ("pipelined", " && first_k + k_of(i) < depth", ""),
]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("name", "old", "new"), BOUNDS_CHECKS)
def test_a_bounds_check_that_is_left_out_is_found(name, old, new, edited, configs, monkeypatch):
    edited(old, new)
    rung, constants = rungs.find(name), small(configs, name)
    with pytest.raises(GlobalAccessError, match=rf"^rung {rung} at \d+,\d+,\d+: thread \d+ of block .* to no operand"):
        climb_with(constants, WHOLE, [rung])
    monkeypatch.setattr(ragged, "mismatch", lambda *question: None)
    assert climb_with(constants, WHOLE, [rung]).ok, "whole tiles show it, too"


def test_an_end_of_k_that_is_left_out_is_told_by_the_elements(edited, configs):
    edited("if (k0 < K) {", "if (false) {")
    climbed = climb_with(configs, WHOLE, [rungs.find("smem_tiled")])
    assert not climbed.ok
    shown = " ".join(climbed.text().split())
    assert "smem_tiled is WRONG: at 35,35,67 with beta = 1: C[0, 0] is " in shown
    assert "are wrong, in rows 0-34 and columns 0-34" in shown


def test_a_divergent_barrier_is_named_as_one(edited, configs):
    edited(
        "for (int k = 0; k < K - k0; ++k) step(k);",
        "for (int k = 0; k < K - k0; ++k) step(k); if (threadIdx.x) __syncthreads();",
    )
    with pytest.raises(BarrierError, match=r"^rung 3 smem_tiled at 35,35,67: divergent barrier: thread 0 of block 0"):
        climb_with(configs, WHOLE, [rungs.find("smem_tiled")])


def test_a_right_ladder_says_at_which_sizes_it_is(configs):
    assert "right, too, at sizes that are no multiple of the tile" in climb_with(configs, WHOLE, rungs.RUNGS[:1]).text()


@pytest.mark.sampled(every=5)  # which meets every rung
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("name", SMALL)
def test_every_kernel_with_its_own_bounds_checks_is_run(name, layout, configs, monkeypatch):
    """Vectors or not; and where a rung has them, the kernels for less than a tile."""
    kernels = []
    kernel_texts.change(monkeypatch, lambda text: kernels.append(text) or text)
    rung = rungs.find(name)
    assert ragged.mismatch(rung, small(configs, name)[name], layout, Machine("sm_90")) is None
    widths = {1, 4} if rung.vectorized else {1}
    assert {itemgetter("VEC_A", "VEC_B", "VEC_C", "GUARD")(constants_of(text)) for text in kernels} == {
        (width, width, width, guard) for width in widths for guard in ((False, True) if rung.guarded else (False,))
    }


@pytest.mark.slow
@pytest.mark.parametrize("rung", rungs.RUNGS, ids=str)
def test_every_rung_is_right_at_ragged_sizes(rung):
    machine = Machine("sm_90")
    config = simulated_ladder.constants_of(machine.device, rung, simulated_ladder.TYPICAL, {}).config
    assert ragged.mismatch(rung, config, "NN", machine) is None
