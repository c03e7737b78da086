"""compute-sanitizer finds nothing in any rung."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = Path(__file__).with_name("sanitize.py")


def test_the_script_itself_passes():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_nothing_is_found(tool):
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("compute-sanitizer is not on the PATH")
    command = [program, "--tool", tool, "--error-exitcode", "7", sys.executable, str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    report = done.stdout[-4000:] + done.stderr[-2000:]
    if "not supported" in report and "ERROR SUMMARY: 0" not in report:
        pytest.skip(f"compute-sanitizer does not work here: {report.splitlines()[0]}")
    assert done.returncode == 0, report
    assert "ERROR SUMMARY: 0 errors" in report or "0 hazards" in report, report
