"""What `import fastsgemm.jax` says where JAX is missing or broken."""

import missing_library
import pytest


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, "MissingExtraError: fastsgemm.jax needs JAX, which is not installed; https://docs.jax.dev says how"),
        ("import what_it_needs", "ModuleNotFoundError: No module named 'what_it_needs'"),
    ],
)
def test_what_is_missing(tmp_path, module, message):
    assert message in missing_library.last_line("jax", module, tmp_path)
