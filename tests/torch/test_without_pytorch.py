"""What `import fastsgemm.torch` says where PyTorch is missing, too old or broken."""

import missing_library
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
    assert message in missing_library.last_line("torch", module, tmp_path)
