"""What `import fastsgemm.jax` says where JAX is missing or broken."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, "MissingExtraError: fastsgemm.jax needs JAX, which is not installed; https://docs.jax.dev says how"),
        ("import what_it_needs", "ModuleNotFoundError: No module named 'what_it_needs'"),
    ],
)
def test_what_is_missing(tmp_path, module, message):
    if module is not None:
        (tmp_path / "jax.py").write_text(module)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    if module is None:
        program += "sys.modules['jax'] = None\n"
    ran = subprocess.run([sys.executable, "-c", program + "import fastsgemm.jax"], capture_output=True, text=True)
    assert ran.returncode == 1
    assert message in ran.stderr.splitlines()[-1]
