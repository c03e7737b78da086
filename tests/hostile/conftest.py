"""How the hostile tests say what they tried: a line of docs/simulated-device.md is written from it."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tried(request):
    """Return a function that notes that `attack`, a short name, was tried `count` more times.

    At the end of a run in which no test failed, the sums are written to the file that FASTSGEMM_HOSTILE_JSON names.
    """
    counts = Counter()

    def note(attack: str, count: int = 1) -> None:
        counts[attack] += count

    yield note
    path = os.environ.get("FASTSGEMM_HOSTILE_JSON")
    if path and not request.session.testsfailed:
        Path(path).write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
