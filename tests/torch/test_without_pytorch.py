"""What `import fastsgemm.torch` says where PyTorch is missing, too old or broken."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, "MissingExtraError: fastsgemm.torch needs PyTorch 2.6 or later, which is not installed"),
        (
            "__version__ = '2.5.1+cu121'",
            "MissingExtraError: fastsgemm.torch needs PyTorch 2.6 or later, got 2.5.1+cu121",
        ),
        ("import what_it_needs", "ModuleNotFoundError: No module named 'what_it_needs'"),
    ],
)
def test_what_is_missing(tmp_path, module, message):
    if module is not None:
        (tmp_path / "torch.py").write_text(module)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    if module is None:
        program += "sys.modules['torch'] = None\n"
    ran = subprocess.run([sys.executable, "-c", program + "import fastsgemm.torch"], capture_output=True, text=True)
    assert ran.returncode == 1
    assert message in ran.stderr.splitlines()[-1]
