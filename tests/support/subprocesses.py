"""The environment of programs that tests start."""

import os
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"


def environment(**variables):
    """The environment of this process with this checkout first among the places of modules, and these variables."""
    places = [str(SOURCES), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), **variables}
