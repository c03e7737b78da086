"""The summary of a test run has one line per reason for skipped tests."""

import subprocess
import sys
from pathlib import Path

import skips

TESTS = """
import pytest

@pytest.mark.parametrize("case", range(3))
def test_one(case):
    pytest.skip("no device here")

def test_two():
    pytest.skip("no device here")

@pytest.mark.skip(reason="no library here")
def test_three(): ...
"""


def test_skips_of_one_reason_are_one_line(tmp_path):
    (tmp_path / "conftest.py").write_text(Path(skips.__file__).read_text())
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(TESTS)
    (tmp_path / "test_c.py").write_text('import pytest\npytest.skip("no device here", allow_module_level=True)\n')
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rs",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100)
    shown = sorted(line for line in done.stdout.splitlines() if line.startswith("SKIPPED"))
    assert [line.split(" ")[1] for line in shown] == ["[2]", "[9]"], done.stdout
    assert shown[0].endswith(": no library here") and shown[1].endswith(": no device here")
