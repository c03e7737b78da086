#!/usr/bin/env python3
"""Change one line of the code at a time and say which tests notice: what tests are worth is counted in such mutants.

    tools/mutants.py                each mutant against the test that killed it before; seconds each
    tools/mutants.py grid.py wgmma  those whose file or text has one of these words
    tools/mutants.py --new          those that no test has killed yet, against all of their tests
    tools/mutants.py --full         each mutant against all of its tests; keeps one killer of each test file

``tests/mutants.json`` has a mutant on each line: a file, an old text that it has exactly once, a new text, and the
files or folders of tests that should notice; by default these are the test of the same name, then the room. The killers
are written there after each mutant, so that ``--new`` goes on after a run that was stopped. The tests are those that
need no GPU: first the quick ones, then the slow ones. Exits with 1 if a mutant survives.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 1800.0  # that a run of tests may take; what takes longer has not noticed anything
LEFT_OUT = shutil.ignore_patterns(".*", "build", "__pycache__")  # of the copy that is changed
MARKS = "not gpu and not slow", "not gpu and slow"
_FAILED = re.compile(r"^(?:FAILED|ERROR) ([\w/.-]+\.py(?:::\w+)*(?:\[\S+\])?)", re.MULTILINE)

Mutant = dict[str, Any]


def save(mutants: Sequence[Mutant], path: Path) -> None:
    """Write the mutants, one on each line."""
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in mutants)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def fault_of(mutant: Mutant) -> str | None:
    """Return what is wrong with a mutant, or None: its old text and its tests must be there."""
    path = ROOT / mutant["file"]
    count = path.read_text(encoding="utf-8").count(mutant["old"]) if path.is_file() else 0
    if count != 1:
        return f"{name_of(mutant)}: the old text is found {count} times"
    missing = [each for each in tests_of(mutant) if not (ROOT / each).exists()]
    return f"{name_of(mutant)}: there is no {missing[0]}" if missing else None


def name_of(mutant: Mutant) -> str:
    """Return a mutant in a line: where the texts differ."""
    old, new = mutant["old"].split(), mutant["new"].split()
    same = [*takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))]
    shown = slice(max(0, len(same) - 2), len(same) + 6)
    return f"{mutant['file']}: {' '.join(old[shown])} -> {' '.join(new[shown])}"


def tests_of(mutant: Mutant) -> list[str]:
    """Return the files and folders of tests that should notice, in the order in which they run."""
    if "tests" in mutant:
        return list(mutant["tests"])
    path = Path(mutant["file"])
    room = Path("tests", *path.relative_to("src/fastsgemm").parts[:-1])
    beside = room / f"test_{path.name}"
    return [str(beside)] * (ROOT / beside).is_file() + [str(room)] * (room != Path("tests"))


def run(folder: Path, arguments: Sequence[str], stop: bool = True) -> list[str]:
    """Run pytest in the copy and return the tests that failed, with `stop` the first one."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *["-x"] * stop, *arguments]
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            print(f"{' '.join(arguments)}: not done in {SECONDS:.0f} s", file=sys.stderr)
            return []
        finally:
            with suppress(ProcessLookupError):  # it is done
                os.killpg(process.pid, signal.SIGKILL)
    failed = list(dict.fromkeys(_FAILED.findall(output)))
    return failed or ["pytest ends"] * (process.returncode not in (0, 5))  # 5: no tests were there


def killers(folder: Path, mutant: Mutant, full: bool) -> Iterator[str]:
    """Yield tests that notice the mutant that is in the copy: the first one, or with `full` one of each test file."""
    before = known(mutant)
    if before and not full and run(folder, before) == before:
        yield from before
        return
    files = set()
    for arguments in ([path, "-m", marks] for path in tests_of(mutant) for marks in MARKS):
        for test in run(folder, arguments, stop=not full):
            if test.partition("::")[0] not in files:
                yield test
                if not full:
                    return
            files.add(test.partition("::")[0])


def known(mutant: Mutant) -> list[str]:
    """Return the test that killed a mutant before, if there is one."""
    return [test for test in mutant.get("killers", ()) if "::" in test][:1]


def copied(folder: Path) -> Path:
    """Copy the checkout into a folder and return the copy, in which tests find what they compiled before."""
    copy = Path(shutil.copytree(ROOT, folder / "checkout", ignore=LEFT_OUT))
    compilations = Path("build", "compilations")
    (ROOT / compilations).mkdir(parents=True, exist_ok=True)
    (copy / "build").mkdir()
    (copy / compilations).symlink_to(ROOT / compilations)
    return copy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutants with one of these in their file or text")
    parser.add_argument("--new", action="store_true", help="only mutants without a killer")
    parser.add_argument("--full", action="store_true", help="run all tests, and keep one killer of each test file")
    options = parser.parse_args(arguments)
    data = ROOT / "tests" / "mutants.json"
    mutants: list[Mutant] = json.loads(data.read_text(encoding="utf-8"))
    if faults := list(filter(None, map(fault_of, mutants))):
        print("\n".join(faults), file=sys.stderr)
        return 2
    chosen = [each for each in mutants if not (options.new and each.get("killers"))]
    chosen = [each for each in chosen if not options.words or any(word in str(each) for word in options.words)]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        unchanged = sorted({test for each in chosen for test in known(each)})
        if unchanged and (failed := run(copy, unchanged)):
            print(f"{failed[0]} fails without a mutant", file=sys.stderr)
            return 2
        for number, each in enumerate(chosen, 1):
            path, begin = copy / each["file"], time.monotonic()
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(each["old"], each["new"]), encoding="utf-8")
            found = list(killers(copy, each, options.full))
            path.write_text(text, encoding="utf-8")
            survivors += [each] * (not found)
            if options.full or found != known(each):
                each["killers"] = found
                save(mutants, data)
            took = f"{number}/{len(chosen)}, {time.monotonic() - begin:.0f} s"
            print(f"{took}: {name_of(each)}: {' '.join(found) or 'survives'}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants are killed", *map(name_of, survivors), sep="\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
