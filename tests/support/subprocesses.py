"""Programs that tests start, and their environment."""

import os
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"


def environment(**variables):
    """The environment of this process with this checkout first among the places of modules, and these variables."""
    places = [str(SOURCES), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), **variables}


def run(program, timeout=180, **variables):
    """Run a program of Python in a process of its own, which must end by itself and succeed; return what came of it."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout, env=environment(**variables)
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
