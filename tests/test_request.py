"""What a caller asks for is resolved once, into one object for equal questions."""

import pytest

from fastsgemm import BlockConfig, Fp16x3Config, PipelinedConfig, SkinnyConfig, rungs
from fastsgemm.config import SEGMENT
from fastsgemm.errors import ConfigError, PrecisionError, UnknownRungError
from fastsgemm.request import PLAIN, Request, checked, of_call, of_gram, resolve

PIPELINED = PipelinedConfig(32, 32, 8, 4, 4, 16, 32, 1)


def test_equal_questions_have_one_answer():
    assert resolve() == PLAIN == Request() and not PLAIN.tensor_cores
    assert resolve(9) is resolve("pipelined") is resolve(rungs.find("pipelined"))
    assert resolve("pipelined") != resolve("skinny")


def test_a_config_says_which_rung_where_the_default_takes_it():
    assert resolve(config=PIPELINED).rung is rungs.find("pipelined")
    assert resolve(config=SkinnyConfig(4, 32, 64, TN=4, TK=8)).rung is rungs.find("skinny")
    tile = resolve(config=Fp16x3Config(BN=16))
    assert tile.rung is rungs.find("fp16x3") and tile.precision == "fp16x3" and tile.tensor_cores


def test_the_precision_is_that_of_the_rung():
    assert resolve("fp16x3").precision == "fp16x3"
    assert resolve(precision="fp16x3") == Request(precision="fp16x3", takes_halves=True)


def test_16_bit_operands_need_a_precision_by_name_or_one_order_of_summation():
    assert not resolve().takes_halves and not resolve("fp16x3").takes_halves
    for how in ({"precision": "ieee"}, {"precision": "fp16x3"}, {"batch_invariant": True}):
        assert resolve(**how).takes_halves


def test_one_order_of_summation_is_a_field_of_its_own():
    assert resolve(batch_invariant=True) == Request(batch_invariant=True, takes_halves=True)
    assert resolve("pipelined", batch_invariant=True) == Request(
        rungs.find("pipelined"), batch_invariant=True, takes_halves=True
    )
    assert resolve("skinny_in_order") == Request(rungs.SKINNY_IN_ORDER, batch_invariant=True)
    named = resolve(config=PIPELINED, batch_invariant=True)
    assert named == Request(
        rungs.find("pipelined"), PIPELINED.replace(SEGMENT=SEGMENT), batch_invariant=True, takes_halves=True
    )


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"rung": True}, UnknownRungError, "unknown rung True"),
        ({"rung": []}, UnknownRungError, "the ladder has"),
        ({"rung": "batch_invariant"}, UnknownRungError, "unknown rung 'batch_invariant'"),
        ({"config": {"BM": 8}}, ConfigError, "must be a fastsgemm.Config, got dict"),
        ({"config": BlockConfig(32, 32)}, ConfigError, "a BlockConfig needs a rung"),
        ({"precision": "tf32"}, PrecisionError, "'ieee' or 'fp16x3'"),
        ({"precision": ["ieee"]}, PrecisionError, "'ieee' or 'fp16x3'"),
        ({"rung": "naive", "precision": "fp16x3"}, PrecisionError, "rung naive computes with"),
        ({"rung": "naive", "batch_invariant": True}, ConfigError, "adds in another order"),
        ({"rung": 9, "precision": "fp16x3", "batch_invariant": True}, PrecisionError, "rung pipelined computes with"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(how, error, message):
    with pytest.raises(error, match=message):
        resolve(**how)


def test_calls_that_launch_the_same_are_chosen_for_once():
    for request in (PLAIN, resolve(precision="ieee"), of_call(PLAIN, output="out")):
        assert checked(request, False) == PLAIN and checked(request, True) == of_gram(PLAIN)
    assert checked(of_gram(PLAIN), False).gram  # as `prepare` says
    assert checked(resolve(precision="fp16x3"), False) != PLAIN
