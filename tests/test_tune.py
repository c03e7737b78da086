import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "first",
    [
        "import fastsgemm, fastsgemm.tune",
        "import fastsgemm.tune",
        "import importlib; importlib.import_module('fastsgemm.tune')",
        "from fastsgemm import tune; import fastsgemm.tune",
        "import fastsgemm; from fastsgemm.tune import __name__ as name",
    ],
)
def test_the_name_is_the_functions_whatever_is_imported_first(first):
    script = f"{first}; import fastsgemm, fastsgemm.tuning.tuner; assert fastsgemm.tune is fastsgemm.tuning.tuner.tune"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_it_is_imported_when_it_is_asked_for():
    script = (
        "import sys, fastsgemm; assert 'fastsgemm.tuning.tuner' not in sys.modules; fastsgemm.tune; fastsgemm.explain;"
        "assert 'fastsgemm.tuning.tuner' in sys.modules; assert callable(fastsgemm.explain); hasattr(fastsgemm, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_it_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "fastsgemm.tune", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage: python -m fastsgemm.tune") and done.stderr == ""
