"""The last lesson of the course, done as it is written: the reader's own rung appears in the ladder."""

import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from subprocesses import environment

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "course.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="docs/ is part of a checkout only")


@pytest.fixture
def clone(tmp_path):
    for name in ("src", "cuda_src", "tuning_db", "tools", "docs/data"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def blocks(lesson):
    """Each code block of a lesson: its language and its text."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", lesson, re.MULTILINE | re.DOTALL)
    return [(language, textwrap.dedent(text)) for language, text in found]


def edit(path, diff):
    """Change a file as a diff without numbers says: what a part of it removes or keeps stands once in the file."""
    text = path.read_text()
    for part in re.split(r"^@@\n", diff, flags=re.MULTILINE):
        old, new = ("".join(f"{line[1:]}\n" for line in part.splitlines() if line[:1] != other) for other in ("+", "-"))
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.slow  # NVRTC compiles the rung, and the simulated device runs it
def test_the_last_lesson_ends_in_the_ladder(clone):
    lesson = PAGE.read_text().split("## 9. Your own rung in the ladder\n")[1]
    (_, copy), (first, kernel), (second, entry), (_, commands) = blocks(lesson)
    assert first == second == "diff"
    variables = environment(PYTHONPATH=str(clone / "src"))
    add, ladder = commands.splitlines()

    def run(*command):
        done = subprocess.run(command, cwd=clone, env=variables, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(*shlex.split(copy))
    edit(clone / "cuda_src" / "12_interleaved.cu", kernel)
    edit(clone / "src" / "fastsgemm" / "rungs.py", entry)
    run(sys.executable, *shlex.split(add)[1:])
    assert ladder == "fastsgemm ladder --device sim"
    # Of all rungs only the two that the answer compares, to save seconds.
    shown = run(sys.executable, "-m", *shlex.split(ladder), "--rung", "5", "--rung", "12")
    five, twelve = (
        re.search(rf"^{name} .*$", shown, re.MULTILINE)[0].split() for name in ("5 blocktile_2d", "12 interleaved")
    )
    sectors_c, wavefronts = 4, 6
    assert (float(five[sectors_c]), float(twelve[sectors_c])) == (32.0, 4.0)
    assert (float(five[wavefronts]), float(twelve[wavefronts])) == (5.0, 1.2)
    assert "the results of the 2 rungs are the same bits" in shown
    answer = lesson.split("<summary>Answer</summary>")[1]
    assert "4 sectors instead of 32" in answer and "1.2 wavefronts instead of 5" in answer
