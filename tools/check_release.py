#!/usr/bin/env python3
"""Build the sdist and the wheel, check both, and try the wheel in a new environment of every supported Python.

    tools/check_release.py            everything; the Pythons are those on PATH
    tools/check_release.py --files    only the versions and dates that the files of a release state
    tools/check_release.py --files --tag v1.2.0    the same, and that they are of this tag

CONTRIBUTING.md has the whole checklist.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRA = "cu13"  # that the wheel is installed with
_TRIAL = """
import numpy as np
import fastsgemm
A, B = np.ones((70, 50), np.float32), np.ones((50, 60), np.float32)
assert (fastsgemm.sgemm(A, B) == 50).all()
print("fastsgemm", fastsgemm.__version__)
"""
_COMMANDS = (
    ["info"],
    ["explain", "--size", "1000,1000,1000", "--device", "sm_90"],
    ["ladder", "--device", "sim", "--rung", "1"],
)


def version(root: Path = ROOT) -> str:
    """Return the version that the package states."""
    match = re.search(r'^__version__ = "(.+)"$', (root / "src/fastsgemm/__init__.py").read_text(), re.MULTILINE)
    if match is None:
        raise ValueError("src/fastsgemm/__init__.py has no __version__")
    return match[1]


def supported(root: Path = ROOT) -> list[str]:
    """Return the versions of Python that the package says it supports."""
    return re.findall(r"Python :: (3\.\d+)", (root / "pyproject.toml").read_text())


def contradictions(root: Path = ROOT, tag: str | None = None) -> list[str]:
    """Return where the files of the release contradict each other or its tag, one line each."""
    wrong, stated = [], version(root)
    if tag not in (None, f"v{stated}"):
        wrong.append(f"the tag of version {stated} is v{stated}, got {tag}")
    citation = (root / "CITATION.cff").read_text()
    if f"\nversion: {stated}\n" not in citation:
        wrong.append(f"CITATION.cff does not have version {stated}")
    section = re.search(rf"^## {re.escape(stated)}(.*)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if section is None:
        wrong.append(f"CHANGELOG.md has no section {stated}")
    else:
        date = re.search(r"\d{4}-\d\d-\d\d", section[1])
        if date is None:
            wrong.append(f"CHANGELOG.md: section {stated} has no date")
        elif f"date-released: {date[0]}" not in citation:
            wrong.append(f"CITATION.cff does not have date-released: {date[0]}")
    return wrong


def _run(*command: object, cwd: Path | None = None) -> None:
    print("+", *command, flush=True)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # the wheel, not this checkout
    subprocess.run([str(part) for part in command], cwd=cwd, env=alone, check=True)


def build(folder: Path) -> Path:
    """Build the sdist, and the wheel from it; return the wheel."""
    _run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for wanted in ("fastsgemm/gemm.py", "fastsgemm/cuda_src/09_pipelined.cu", "fastsgemm/tuning_db/generic.json"):
        if wanted not in names:
            raise ValueError(f"{wheel.name} does not have {wanted}")
    return wheel


def interpreter(wanted: str) -> str | None:
    """Return the path of this version of Python if it is on PATH and starts."""
    path = shutil.which(f"python{wanted}")
    if path is None or subprocess.run([path, "-c", ""], capture_output=True).returncode:
        return None  # some version managers have a command that starts nothing
    return path


def try_wheel(wheel: Path, python: str) -> None:
    """Install the wheel into a new environment, then multiply and run commands there."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _run(python, "-m", "venv", place / "venv")
        binaries = place / "venv" / "bin"
        _run(binaries / "python", "-m", "pip", "install", "--quiet", f"{wheel}[{EXTRA}]")
        _run(binaries / "python", "-c", _TRIAL, cwd=place)
        for command in _COMMANDS:
            _run(binaries / "fastsgemm", *command, cwd=place)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--files", action="store_true", help="only check what the files state")
    parser.add_argument("--tag", help="the tag that the files must be of, such as v1.2.0")
    options = parser.parse_args(arguments)
    wrong = contradictions(tag=options.tag)
    for line in wrong:
        print(line, file=sys.stderr)
    if options.files:
        return int(bool(wrong))
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    wheel = build(dist)
    wanted = {one: interpreter(one) for one in supported()}
    tried = {one: python for one, python in wanted.items() if python}
    for python in tried.values():
        try_wheel(wheel, python)
    missing = ", ".join(one for one in wanted if one not in tried)
    print(
        f"{wheel.name} works with Python {', '.join(tried)}" + (f"; not on this machine: {missing}" if missing else "")
    )
    for line in wrong:
        print(f"not ready for a release: {line}", file=sys.stderr)
    return int(bool(wrong or not tried))


if __name__ == "__main__":
    sys.exit(main())
