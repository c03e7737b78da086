"""Arguments of types that no function takes. Each ends in an error of fastsgemm, or is what it is taken for."""

import warnings
from contextlib import suppress

import numpy as np
import pytest

import fastsgemm
from fastsgemm import FastsgemmError, blas
from fastsgemm.device import DeviceInfo
from fastsgemm.tuning.plan import plan_run

pytestmark = pytest.mark.usefixtures("on_host", "kernel_folder")

ONES = np.ones((4, 4), np.float32)
DEVICE = DeviceInfo("NVIDIA H200", "sm_90", 232448, 132)
CONSTANTS = {"BM": 64, "BN": 64, "BK": 16, "TM": 8, "TN": 8, "WM": 32, "WN": 64, "WNITER": 1}


class Raising:
    """An object of which nothing can be asked."""

    def raising(self, *_):
        raise ZeroDivisionError("one over nought")

    __bool__ = __eq__ = __float__ = __index__ = __int__ = __iter__ = __len__ = raising
    __hash__ = None


WRONG = {
    "None": None,
    "list": [],
    "list of a list": [[]],
    "array": np.array([1, 0]),
    "array without dimensions": np.array(1),
    "object": object(),
    "object that raises": Raising(),
    "class": int,
    "float": 1.5,
    "NaN": float("nan"),
    "complex": 1j,
    "negative": -1,
    "huge": 2**70,
    "text": "x",
    "no text": "",
    "half of a character": "\ud800",
    "bytes": b"x",
    "dictionary": {},
    "set": {1},
    "generator": (each for each in ()),
    "True": True,
    "NumPy's True": np.True_,
}


def of_torch(**given):
    switch = pytest.importorskip("torch") and __import__("fastsgemm.torch").torch
    with switch.enabled(**{"device": "cpu"} | given):
        pass


def prepare(**given):
    return fastsgemm.prepare(**{"M": 4, "N": 4, "K": 4, "device": "sm_90", "progress": False, "rung": "naive"} | given)


def tune(**given):
    return fastsgemm.tune(**{"shapes": [(64, 64, 64)], "quick": True, "store": False, "progress": False} | given)


CALLS = {
    "sgemm": (
        lambda **given: fastsgemm.sgemm(**{"A": ONES, "B": ONES} | given),
        ("alpha", "beta", "C", "rung", "config", "precision", "batch_invariant", "stream", "out"),
    ),
    "blas.sgemm": (
        lambda **given: blas.sgemm(**{"alpha": 1.0, "a": ONES, "b": ONES, "c": ONES.copy()} | given),
        ("alpha", "beta", "trans_a", "trans_b", "c", "overwrite_c"),
    ),
    "explain": (
        lambda **given: fastsgemm.explain(**{"M": 4, "N": 4, "K": 4, "device": "sm_90"} | given),
        ("M", "N", "K", "layout", "rung", "device", "precision", "batch_invariant", "batch"),
    ),
    "prepare": (
        prepare,
        ("M", "N", "K", "layout", "batch", "rung", "precision", "batch_invariant", "split", "source", "device"),
    ),
    "tune": (tune, ("rung", "budget", "device", "quick", "store", "progress")),
    "plan of a tuning run": (
        lambda **given: plan_run(DEVICE, **given),
        ("shapes", "rung"),
    ),
    "split": (lambda **given: fastsgemm.split(ONES, **given), ("side",)),
    "config": (lambda **given: fastsgemm.PipelinedConfig(**CONSTANTS | given), tuple(CONSTANTS)),
    "fastsgemm.torch.enabled": (of_torch, ("precision", "batch_invariant", "only", "device")),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_argument_of_every_type(call, tried):
    function, names = CALLS[call]
    for name in names:
        for value in WRONG.values():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with suppress(FastsgemmError):
                    function(**{name: value})
            tried("argument of a type that no function takes")


INTEGERS = {
    "explain": lambda n: fastsgemm.explain(n(1000), n(64), n(8), device="sm_90", rung=n(9), batch=n(2)).json(),
    "prepare": lambda n: (
        fastsgemm.prepare(np.arange(1, 3, dtype=n), n(4), [n(4)], rung=n(1), batch=n(2), device="sm_90").problems
    ),
    "config": lambda n: fastsgemm.PipelinedConfig(**{name: n(value) for name, value in CONSTANTS.items()}),
    "constants": lambda n: fastsgemm.PipelinedConfig.from_constants(
        {name: n(each) for name, each in CONSTANTS.items()}
    ),
    "rung": lambda n: fastsgemm.sgemm(ONES, ONES, rung=n(1)),
    "alpha": lambda n: fastsgemm.sgemm(ONES, ONES, n(2), n(3), ONES.copy()).tolist(),
    "transpositions": lambda n: blas.sgemm(1, ONES, ONES, trans_a=n(1), trans_b=n(2), overwrite_c=n(0)).tolist(),
    "problems to tune": lambda n: plan_run(DEVICE, [(n(64), n(32), n(16))], quick=True).json(),
    "device": lambda n: fastsgemm.explain(4, 4, 4, device=n(0)),
}


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int16])
@pytest.mark.parametrize("call", INTEGERS)
def test_an_integer_of_numpy_is_an_integer(call, kind, tried):
    """The same comes out, be it an error; 1000 in eight bits would be another number."""
    kind = np.int64 if call == "explain" else kind
    assert outcome(INTEGERS[call], kind) == outcome(INTEGERS[call], int)
    tried("integer or bool of NumPy")


BOOLS = {
    "batch_invariant": lambda b: fastsgemm.explain(64, 64, 64, device="sm_90", batch_invariant=b(True)).json(),
    "alpha": lambda b: fastsgemm.sgemm(ONES, ONES, b(True), b(False)).tolist(),
    "transpositions": lambda b: blas.sgemm(1, ONES, ONES, trans_a=b(True), overwrite_c=b(False)).tolist(),
    "M": lambda b: fastsgemm.explain(b(True), 4, 4, device="sm_90"),
    "M of prepare": lambda b: fastsgemm.prepare(b(True), 4, 4, device="sm_90"),
    "rung": lambda b: fastsgemm.sgemm(ONES, ONES, rung=b(True)),
    "device": lambda b: fastsgemm.explain(4, 4, 4, device=b(True)),
    "config": lambda b: fastsgemm.PipelinedConfig(**CONSTANTS | {"WNITER": b(True)}),
}


@pytest.mark.parametrize("call", BOOLS)
def test_a_bool_of_numpy_is_a_bool(call, tried):
    assert outcome(BOOLS[call], np.bool_) == outcome(BOOLS[call], bool)
    tried("integer or bool of NumPy")


def outcome(function, kind):
    try:
        return function(kind)
    except FastsgemmError as error:
        return type(error)
