"""The command line under attack: whatever happens, it ends with its exit code and at most one line on stderr."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import check_records
import numpy as np
import pytest

from fastsgemm.heuristics.database_entries import SCHEMA

# Each case runs in a child of one process, so that the package is imported once. stdout and stderr of the child are
# files; `setup` is run in the child, and may replace them.
_HARNESS = """
import json, os, signal, sys, tempfile
cases, preload = json.load(sys.stdin)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with Ctrl-C ignored
from fastsgemm.__main__ import main
if preload:
    import fastsgemm.command_line, fastsgemm.sim
results = []
for case in cases:
    out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
    child = os.fork()
    if child == 0:
        os.environ.update(case["environment"])
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout = open(1, "w", encoding=case["encoding"], closefd=False)
        sys.stderr = open(2, "w", closefd=False, buffering=1)
        exec(case["setup"])
        sys.exit(main(case["arguments"]))
    _, status = os.waitpid(child, 0)
    texts = []
    for file in (out, err):
        file.seek(0)
        texts.append(file.read())
    results.append([os.waitstatus_to_exitcode(status), *texts])
print(json.dumps(results))
"""

_BROKEN_PIPE = "read, write = os.pipe(); os.close(read); os.dup2(write, 1)"
_FULL = "os.dup2(os.open('/dev/full', os.O_WRONLY), {0})"
_CLOSED_STDERR = "os.close(2); sys.stderr = None"


@dataclass(frozen=True)
class Case:
    """A command, and what is done to the process that runs it."""

    arguments: tuple[str, ...]
    code: int
    error: str = ""  # is in the one line on stderr; empty where there is none
    setup: str = ""
    encoding: str = "utf-8"
    cache: str = ""

    def __str__(self):
        return " ".join(self.arguments)[:40]


def commands(cases, preload=True):
    """Run each case; return exit code, stdout and stderr of each."""
    environment = {"FASTSGEMM_DEVICE": "host", "FASTSGEMM_DATA_DIR": os.devnull + "/none"}
    asked = [
        {
            "arguments": case.arguments,
            "setup": case.setup,
            "encoding": case.encoding,
            "environment": environment | ({"FASTSGEMM_CACHE_DIR": case.cache} if case.cache else {}),
        }
        for case in cases
    ]
    done = subprocess.run(
        [sys.executable, "-c", _HARNESS],
        input=json.dumps([asked, preload]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def judge(cases, results):
    for case, (code, out, err) in zip(cases, results, strict=True):
        told = f"{case}: exit code {code}\n{out}\n{err}"
        assert "Traceback" not in out + err and "Exception ignored" not in err, told
        assert code == case.code, told
        assert err.count("\n") == (1 if case.error else 0), told
        assert case.error in err, told


def pressed(where):
    """Return a set-up that presses Ctrl-C when a function is called."""
    return f"import {where.rpartition('.')[0]}; {where} = lambda *given, **named: signal.raise_signal(signal.SIGINT)"


def test_streams_that_take_nothing(tried):
    plan = ("tune", "--dry-run", "--quick", "--json", "--device", "sm_90")
    climb = ("ladder", "--device", "sim", "--size", "8", "--rung", "naive")
    cases = [
        Case(plan, 0, setup=_BROKEN_PIPE),
        Case(("info",), 0, setup=_BROKEN_PIPE),
        Case(("explain", "--size", "64", "--device", "sm_90"), 0, setup=_BROKEN_PIPE),
        Case(plan, 2, "No space left on device", _FULL.format(1)),
        Case(("info",), 2, "No space left on device", _FULL.format(1)),
        Case(climb, 0, setup=_CLOSED_STDERR),
        Case(climb, 0, setup=_FULL.format(2)),
        Case(("explain", "--size", "64", "--device", "sm_1"), 2, setup=_CLOSED_STDERR),
        Case(("explain", "--size", "64", "--device", "sm_1"), 2, setup=_FULL.format(2)),
        Case(("info",), 0, setup="os.close(1); sys.stdout = None"),
    ]
    judge(cases, commands(cases))
    tried("a stream that is full, closed or has no reader", len(cases))


def test_a_bar_on_a_closed_stderr(tried):
    """Bars are shown at once where stderr is a terminal: the harness's files are not, so this asks the bars."""
    script = (
        "import os, sys; from fastsgemm.progress import Bar, track\n"
        "def use():\n"
        "    bar = Bar(); bar.title('x'); bar.begin('time', 3); bar.step(); bar.best('1'); bar.note('y'); bar.end()\n"
        "    assert [*track([1, 2], 'doing')] == [1, 2]\n"
        "stderr = sys.stderr\n"
        "sys.stderr = None; use()\n"
        "sys.stderr = open('/dev/full', 'w', buffering=1); sys.stderr.isatty = lambda: True; use()\n"
        "sys.stderr = stderr; os.close(2); use()\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
    tried("a progress bar on a closed or full stderr", 3)


_OBEYED = "\x1b]0;title\x07\x1b[31m\r\x9b2J\u202e"  # a terminal obeys all of it


def test_files_with_text_that_a_terminal_obeys(tried, tmp_path, capsys):
    run = {"schema": 1, "date": "d", "device": "H200", "driver": "d", "nvrtc": "n", "packages": {}}
    run |= {"ladder": [], "calls": []}
    files = {
        "key": {_OBEYED: 1},
        "device": {**run, "device": _OBEYED},
        "package": {**run, "packages": {_OBEYED: _OBEYED}},
        "date": {**run, "date": _OBEYED, "driver": _OBEYED, "nvrtc": _OBEYED},
        "missing": {key: _OBEYED for key in run if key != "date"},
        "schema": {**run, "schema": _OBEYED},
        "rows": {**run, "shapes": [{_OBEYED: _OBEYED}]},
    }
    for name, data in files.items():
        (tmp_path / name).write_text(json.dumps(data, ensure_ascii=name in ("key", "device")))
    (tmp_path / "sound").write_text(json.dumps(run))
    for folder in ("data", "data/tuning_db"):
        (tmp_path / folder).mkdir(mode=0o700)
    lines = [{"rung": _OBEYED}, {"rung": "naive", _OBEYED: 1}]
    tuned = {"schema": SCHEMA, "arch": "sm_90", "shared_limit": 232448, "records": lines, "curves": [], _OBEYED: 1}
    (tmp_path / "data" / "tuning_db" / "sm_90.json").write_text(json.dumps(tuned))
    cases = [Case(("bench", "--input", str(tmp_path / name)), 2) for name in files]
    sound = ("bench", "--input", str(tmp_path / "sound"))
    cases += [Case((*sound, "--compare", str(tmp_path / name)), 2) for name in files]
    data = f"os.environ['FASTSGEMM_DATA_DIR'] = {str(tmp_path / 'data')!r}"
    cases += [Case(("explain", "--size", "64", "--rung", "naive", "--device", "sm_90"), 0, setup=data)]
    results = commands(cases)
    shown = 0
    for case, (code, out, err) in zip(cases, results, strict=True):
        assert code in (0, 2) and "Traceback" not in err, (case, err)
        assert all(each.isprintable() or each == "\n" for each in out + err), (case, out + err)
        shown += "]0;title" in out + err
    for name in (*files, "data/tuning_db/sm_90.json"):
        assert check_records.main([str(tmp_path / name)]) == 1
        out = capsys.readouterr().out
        assert all(each.isprintable() or each == "\n" for each in out), (name, out)
        shown += "]0;title" in out
    assert shown > len(files)  # most say what they got
    tried("a file with text that a terminal obeys", len(cases) + len(files))


def test_ctrl_c_while_a_command_runs(tried):
    cases = [
        Case(("info",), 130, "fastsgemm: interrupted", pressed("fastsgemm.command_line.info.collect")),
        Case((), 130, "fastsgemm: interrupted", pressed("fastsgemm.measure.timed_ladder.climb")),
        Case(("ladder",), 130, "fastsgemm: interrupted", pressed("fastsgemm.measure.contenders.host_operands")),
        Case(
            ("ladder", "--device", "sim", "--size", "8"),
            130, "fastsgemm: interrupted", pressed("fastsgemm.sim.schedule.run"),
        ),
        Case(
            ("explain", "--size", "8"), 130, "fastsgemm: interrupted", pressed("fastsgemm.geometry.variants.dense_call")
        ),
        Case(("cache",), 130, "fastsgemm: interrupted", pressed("fastsgemm.jit.cache.entries")),
        Case(("tune", "--dry-run"), 130, "fastsgemm: interrupted", pressed("fastsgemm.device.ordinal")),
        Case(("tune",), 130, "run the same command again to resume", pressed("fastsgemm.tuning.tuner.tune")),
    ]  # fmt: skip
    judge(cases, commands(cases))
    tried("Ctrl-C while a command runs", len(cases))


def test_ctrl_c_while_modules_are_imported(tried):
    """Some extension modules answer with another exception: it is Ctrl-C all the same."""
    press = (
        "class Press:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == {0!r}:\n"
        "            try:\n"
        "                signal.raise_signal(signal.SIGINT)\n"
        "            except KeyboardInterrupt as pressed:\n"
        "                raise {1} from pressed\n"
        "sys.meta_path.insert(0, Press())"
    )
    multiarray = "numpy.core.multiarray" if np.__version__.startswith("1.") else "numpy._core.multiarray"
    cases = [
        Case(arguments, 130, "fastsgemm: interrupted", press.format(module, error))
        for arguments in (("info",), ("ladder", "--size", "8"), ("tune",))
        for module, error in (
            ("fastsgemm.command_line", "KeyboardInterrupt"),
            ("numpy", "KeyboardInterrupt"),
            (multiarray, "ImportError('numpy._core.multiarray failed to import')"),
            ("fastsgemm.tuning.tuner", "KeyboardInterrupt"),
        )
    ]
    judge(cases, commands(cases, preload=False))
    tried("Ctrl-C while modules are imported", len(cases))


def test_paths_of_the_kernel_cache(tried, tmp_path):
    long = str(tmp_path / ("x" * 300))
    absent = tmp_path / "absent"
    cases = [
        Case(("info",), 0, cache=long),
        Case(("info", "--json"), 0, cache=long),
        Case(("cache",), 2, "File name too long", cache=long),
        Case(("cache", "--clear"), 2, "File name too long", cache=long),
        Case(("cache",), 0, encoding="ascii", cache=str(tmp_path / "käse")),
        Case(("info",), 0, encoding="ascii", cache=str(tmp_path / "käse")),
        Case(("cache", "--json"), 0, encoding="ascii", cache=str(tmp_path / "\udcff")),
        Case(("cache",), 0, cache=str(tmp_path / "\udcff")),
        Case(("cache", "--clear"), 0, cache=str(absent)),
    ]
    results = commands(cases)
    judge(cases, results)
    assert "File name too long" in results[0][1]
    assert not absent.exists()
    tried("a path of the kernel cache that is too long, absent or cannot be printed", len(cases))


def test_kernels_that_cannot_be_stored(tried, tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"
    prepare = ("prepare", "--size", "64", "--rung", "naive", "--device", "sm_90")
    cases = [
        Case(prepare, 2, "File too large", limit, cache=str(tmp_path / "limited")),
        Case(prepare, 2, "No space left", "os.fsync = lambda file: os.write(os.open('/dev/full', os.O_WRONLY), b'x')",
             cache=str(tmp_path / "full")),
        Case(prepare, 2, "Not a directory", cache="/dev/null/kernels"),
    ]  # fmt: skip
    for case, (code, out, err) in zip(cases, commands(cases), strict=True):
        assert code == 2 and out == "" and "Traceback" not in err, (case, err)
        assert case.error in err.splitlines()[-1], (case, err)  # bars are above it
    assert [*tmp_path.rglob("*.cubin*")] == []
    tried("kernels that cannot be stored where they are prepared", len(cases))


def test_sizes_that_cannot_be_had(tried):
    cases = [
        Case(("ladder", "--size", "99999999"), 2, "GiB are available"),
        Case(("ladder", "--device", "sim", "--size", "99999999"), 2, "GiB are available"),
        Case(("ladder", "--device", "sim", "--size", "1024"), 2, "the limit is 5e+09"),
        Case(("ladder", "--device", "sim", "--size", "1,1,10000000", "--rung", "9"), 2, "the limit is 5e+09"),
        Case(("ladder", "--device", "sim", "--size", "500000,1,100000", "--rung", "1"), 2, "GiB are available"),
        Case(("ladder", "--size", "30000"), 2, "choose a smaller size"),
        Case(
            ("ladder", "--size", "11000"), 2, "memory",  # 0.5 GB a matrix, and room for less than one
            "import resource; pages = int(open('/proc/self/statm').read().split()[0])\n"
            "room = pages * resource.getpagesize() + (1 << 28); resource.setrlimit(resource.RLIMIT_AS, (room, room))",
        ),
    ]  # fmt: skip
    judge(cases, commands(cases))
    tried("a size that memory or patience does not allow", len(cases))


@pytest.mark.parametrize(
    "size",
    [
        "2147483647", "1,1,2147483647", "9" * 30, "9" * 5000, "0", "-1", "1,0,1", "1,2,3,XX", "1,2", "٣", "²", "",
        "8,x", "x8", "8,x8,x8", "8,8,8,x8,NN", "8,x٣", "8,x-1", "8,x" + "9" * 5000,
    ],
)  # fmt: skip
def test_texts_that_are_no_size(tried, capsys, size):
    from fastsgemm.command_line import main

    with pytest.raises(SystemExit, match="2"):
        main(["ladder", f"--size={size}"])
    out, err = capsys.readouterr()
    assert "2147418112" in err and "Traceback" not in err and out == ""
    tried("a text that is no size", 1)
