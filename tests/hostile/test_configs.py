"""Constants of the wrong type or size: a `ConfigError` that names the value, and a tuning record that is left out."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsgemm import BlockConfig
from fastsgemm.errors import ConfigError
from fastsgemm.heuristics import database, database_entries
from fastsgemm.rungs import IEEE, find

SHARED_LIMIT = 232448  # bytes a block, of an H200
EXAMPLES = 100  # a rung
NO_INTS = [16.0, "64", [1], (1,), {}, b"8", True, 1j, np.True_, np.float32(1), object()]
LEGAL = {
    record.rung: record.config
    for record in database.shipped(database_entries.GENERIC).records
    if record.problem is None
}


def constants(rung, **changed):
    return LEGAL[rung].constants | changed


@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_a_constant_that_is_no_int_is_refused_when_the_config_is_made(rung, tried):
    for name, value in itertools.product(rung.config.declared(), NO_INTS):
        with pytest.raises(ConfigError, match=f"constant {name} must be an int, got"):
            rung.config(**constants(rung.name, **{name: value}))
        tried("a constant of the wrong type", 1)


@pytest.mark.parametrize("name", ["BM", "BN"])
def test_a_constant_cannot_be_none(name):
    with pytest.raises(ConfigError, match=name):
        BlockConfig(**constants("naive", **{name: None}))


OUT_OF_RANGE = [
    ("warptiled", "GROUP_M", 2**32, "1 to 65536"),
    ("pipelined", "GROUP_M", 2**33, "1 to 65536"),
    ("pipelined", "GROUP_M", 3 * 2**32, "1 to 65536"),
    ("pipelined", "MIN_BLOCKS", 10**6, "1 to 32"),
    ("skinny", "MIN_BLOCKS", 33, "1 to 32"),
    ("pipelined", "SPLIT_K", 10**9, "1 to 1024"),
    ("skinny", "SPLIT_K", 1025, "1 to 1024"),
    ("naive", "BM", 2**32 + 32, "1 to 65536"),
    ("pipelined", "GROUP_M", 10**5000, "an int of 16610 bits"),
]


@pytest.mark.parametrize(("rung", "name", "value", "said"), OUT_OF_RANGE, ids=[f"{r}-{n}" for r, n, *_ in OUT_OF_RANGE])
def test_a_constant_out_of_range_is_refused_with_its_limit(rung, name, value, said, tried):
    config = find(rung).config(**constants(rung, **{name: value}))
    with pytest.raises(ConfigError, match=rf"\b{name} must be .*{said}"):
        find(rung).check(config, SHARED_LIMIT)
    with pytest.raises(ConfigError, match=name):
        find(rung).config.from_constants(config.constants)
    tried("a constant out of range", 2)


@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_any_int_in_any_place_is_legal_and_fits_the_kernel_or_is_named(rung, tried):
    """No constant that passes is beyond 32 bits, where the kernel would see another value than the rules."""

    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None)
    @given(
        st.sampled_from([*rung.config.declared()]),
        st.integers(-(2**70), 2**70) | st.sampled_from([2**i for i in range(70)]),
    )
    def look(name, value):
        config = rung.config(**constants(rung.name, **{name: value}))
        if not rung.violations(config, SHARED_LIMIT):
            assert 0 <= value <= 2**16
        else:
            with pytest.raises(ConfigError, match=name):
                rung.check(config, SHARED_LIMIT)

    look()
    tried("a constant replaced by any int", EXAMPLES)


@pytest.mark.parametrize(("rung", "name", "value", "said"), OUT_OF_RANGE[:-1])
def test_a_record_with_it_is_left_out_with_one_warning(data_folder, rung, name, value, said, tried):
    problem = {"M": 300, "N": 300, "K": 300, "layout": "NN"}
    line = {
        "rung": rung,
        "device": None,
        "problem": problem,
        "constants": constants(rung, **{name: value}),
        "origin": "published",
        "source": "an attack",
    }
    path = database.user_folder() / "tuning_db" / "sm_90.json"
    path.parent.mkdir(parents=True, mode=0o700)
    data_folder.chmod(0o700)
    path.write_text(json.dumps({"schema": 6, "arch": "sm_90", "shared_limit": SHARED_LIMIT, "records": [line]}))
    with pytest.warns(RuntimeWarning, match=rf"1 line\(s\).*\b{name} must be") as caught:
        assert not database.own("sm_90").records
    assert len(caught) == 1
    tried("a tuning record with a constant out of range", 1)
