"""The description of a launch, and what jaxlib must be."""

import re

import numpy as np
import pytest

pytest.importorskip("jax")

import jax.numpy as jnp
from jax_programs import calls, lowered

from fastsgemm import sgemm
from fastsgemm.errors import MissingExtraError
from fastsgemm.jax import custom_call
from fastsgemm.jax.custom_call import Description

FIELDS = {  # that xla/service/gpu/kernel_call.cc reads, and their types
    "name": str, "kernel_type": str, "kernel_data": str, "shared_mem_bytes": np.int32,
    **{f"{of}_{d}": np.int32 for of in ("grid", "block") for d in "xyz"},
}  # fmt: skip


def test_a_description_has_what_xla_reads():
    attributes = Description("name", "text", (300, 2), 256, 70000).attributes
    assert {key: type(value) for key, value in attributes.items()} == FIELDS
    assert (attributes["name"], attributes["kernel_type"], attributes["kernel_data"]) == ("name", "ptx", "text")
    assert [attributes[f"grid_{d}"] for d in "xyz"] == [300, 2, 1]
    assert [attributes[f"block_{d}"] for d in "xyz"] == [256, 1, 1]
    assert attributes["shared_mem_bytes"] == 70000


def test_the_kernel_takes_the_operands_and_results_of_the_call():
    a = jnp.ones((8, 8))
    (call,) = calls(lowered(lambda a, b, c: sgemm(a, b, 0.5, 2.0, c), a, a, a))
    name = re.search(r'[{ ]name = "(\w+)"', call)[1]
    entry = re.search(rf"\.entry {name}\((.*?)\)", call)[1]
    assert entry.count(".param .u64") == entry.count(".param") == call.count("%arg") + 1


def test_an_old_jaxlib_is_refused(monkeypatch):
    monkeypatch.setattr(custom_call, "_version", (0, 9, 2))
    with pytest.raises(MissingExtraError, match=r"needs jaxlib 0.10.1 or later, got"):
        custom_call.check()
