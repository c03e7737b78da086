"""The recorder of what docs/simulated-device.md says of the hostile tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(("fails", "expected"), [(False, {"bytes": 1, "strides": 5}), (True, None)])
def test_sums_are_written_after_a_run_without_failures(tmp_path, fails, expected):
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (tmp_path / "test_one.py").write_text(
        "def test_one(tried):\n"
        "    tried('strides', 2)\n"
        "    tried('strides', 3)\n"
        "    tried('bytes')\n"
        f"    assert not {fails}\n"
    )
    target = tmp_path / "tried.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    variables = {"FASTSGEMM_HOSTILE_JSON": str(target), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take seconds
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **variables}, check=False)
    assert (json.loads(target.read_text()) if target.exists() else None) == expected
