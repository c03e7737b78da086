"""``python -m fastsgemm.torch``: a program runs with the switch on, and is otherwise run as by ``python``."""

import json
import os
import py_compile
import subprocess
import sys
import zipfile

import pytest

pytest.importorskip("torch")

import fastsgemm
from fastsgemm import command_line
from fastsgemm.torch.torch_command import main

WHERE = "import fastsgemm; print(fastsgemm.__file__)"

# What it prints depends on nothing but how it is run. `helper` lies beside it.
PROGRAM = """\
import atexit, pickle, sys, threading
try:
    import helper
except ModuleNotFoundError as error:
    helper = error


class Thing:
    pass


def at_the_end(who):
    return who, __name__, type(pickle.loads(pickle.dumps(Thing()))).__module__


thread = threading.Thread(target=lambda: (threading.main_thread().join(), print(at_the_end("thread"))))
thread.start()
atexit.register(lambda: print(at_the_end("atexit")))
print(sorted(globals()))
print(__name__, __doc__, __package__, __file__, __cached__, type(__loader__).__name__)
print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent))
print(sys.argv, [entry for entry in sys.path[:3] if "site-packages" not in entry], helper)
print(sys.modules["__main__"].__dict__ is globals())
"""
PACKAGE = "import sys, torch\nprint('package', sys.argv, torch.mm.__name__)\n"

# The same programs by `python` and by us: arguments of `python` before it, and what is run.
RUN = {
    "its arguments": ([], ["programs/one.py", "--precision", "7", "--", "-m", "--help"]),
    "a script": ([], ["programs/one.py"]),
    "a path with dots": ([], ["programs/../programs/./one.py"]),
    "behind two dashes": ([], ["--", "programs/one.py", "--", "x"]),
    "a link": ([], ["link.py"]),
    "compiled": ([], ["programs/one.pyc"]),
    "a module of a package": ([], ["-m", "pk.run", "x"]),
    "nothing that is Python's": ([], ["programs/text.txt"]),
    "with -I": (["-I"], ["programs/one.py"]),
    "a module": ([], ["-m", "programs.one", "--precision", "7"]),
    "a package": ([], ["-m", "pk", "x"]),
    "a module with -P": (["-P"], ["-m", "programs.one"]),
    "an archive": ([], ["programs/all.zip", "x"]),
    "a module above": ([], ["-m", "..pk"]),
    "a module that is not there": ([], ["-m", "nowhere.one"]),
    "a module that fails": ([], ["-m", "pk.failing"]),
    "a folder": ([], ["programs/folder", "x"]),
    "a folder with a slash": ([], ["programs/folder/"]),
    "with -P": (["-P"], ["programs/one.py"]),
    "a folder with -P": (["-P"], ["programs/folder"]),
    "a folder without a program": ([], ["programs"]),
    "a script that is not there": ([], ["programs/nowhere.py"]),
    "an exit": ([], ["programs/exit.py"]),
    "an error": ([], ["programs/error.py"]),
}


def run(options, program, folder, **environment):
    return subprocess.run(
        [sys.executable, "-W", "ignore", *options, *program],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        env={**os.environ, **environment},
    )


def by_us(options, program, folder, *given, **environment):
    switched = ["-m", "fastsgemm.torch", "--device", "cpu", *given]
    return run([*options, *switched], program, folder, **environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    files = {
        "programs/one.py": PROGRAM,
        "programs/text.txt": PROGRAM,
        "programs/helper.py": "",
        "programs/__init__.py": "",
        "programs/folder/__main__.py": PROGRAM,
        "programs/folder/helper.py": "",
        "programs/exit.py": "import sys; sys.exit(7)",
        "programs/error.py": "from __future__ import annotations\n1 / 0",
        "programs/products.py": "import torch, atexit\nprint(torch.ones(2, 3) @ torch.ones(3, 4))\n"
        "atexit.register(lambda: torch.ones(2, 3) @ torch.ones(3, 4))\n",
        "pk/__init__.py": PACKAGE,
        "pk/__main__.py": PROGRAM,
        "pk/run.py": PROGRAM,
        "pk/failing.py": "import missing",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link.py").symlink_to(folder / "programs" / "one.py")
    py_compile.compile(folder / "programs/one.py", folder / "programs/one.pyc")
    with zipfile.ZipFile(folder / "programs/all.zip", "w") as archive:
        archive.writestr("__main__.py", PROGRAM)
        archive.writestr("helper.py", "")
    return folder


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("case", RUN)
def test_as_python_runs_it(folder, case, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "host")
    options, program = RUN[case]
    if "-I" in options and run(options, ["-c", WHERE], folder).stdout.strip() != fastsgemm.__file__:
        pytest.skip("with -I another fastsgemm is imported")
    wanted, found = run(options, program, folder), by_us(options, program, folder)
    assert found.stdout == wanted.stdout
    assert found.returncode == wanted.returncode, found.stderr
    assert found.stderr.splitlines()[-1:] == wanted.stderr.splitlines()[-1:]
    assert wanted.returncode or "thread" in wanted.stdout


def test_safe_path_by_the_environment(folder):
    more = {"FASTSGEMM_DEVICE": "host", "PYTHONSAFEPATH": "1"}
    wanted, found = (each([], ["programs/one.py"], folder, **more) for each in (run, by_us))
    assert found.stdout == wanted.stdout
    assert (found.returncode, found.stderr) == (0, "")


def test_the_report_counts_what_runs_after_the_last_line(folder):
    ran = by_us([], ["programs/products.py"], folder, "--report", FASTSGEMM_DEVICE="host")
    assert ran.returncode == 0, ran.stderr
    assert "fastsgemm computed 2 products, 96 FLOP" in ran.stderr


def test_the_sizes_of_a_program_are_arguments_of_the_commands(folder, capsys):
    (folder / "programs" / "layers.py").write_text(
        "import torch\nx, w = torch.ones(6, 40), torch.ones(30, 40)\n"
        "y = torch.nn.functional.linear(x, w); z = torch.bmm(torch.ones(4, 2, 3), torch.ones(4, 3, 5)); g = x @ x.T\n"
        "x.bfloat16() @ w.T.bfloat16()\n"
    )
    given = "--report", "--sizes", "sizes.txt", "--predict", "H200"
    ran = by_us([], ["programs/layers.py"], folder, *given, FASTSGEMM_DEVICE="host")
    assert ran.returncode == 0, ran.stderr
    assert "by size:" in ran.stderr and "dtype bfloat16" in ran.stderr
    sizes = folder / "sizes.txt"
    given = [line for line in sizes.read_text().splitlines() if not line.startswith("#")]
    assert given == ["--size=6,30,40,NT", "--size=6,6,40,SYM", "--size=2,5,3,x4"]
    assert command_line.main(["explain", f"@{sizes}", "--device", "H200"]) == 0
    assert capsys.readouterr().out.count("problem ") == 3
    assert command_line.main(["prepare", f"@{sizes}", "--device", "H200", "--check"]) in (0, 1)
    assert capsys.readouterr().out.count("1 problem on NVIDIA H200") == 3
    assert command_line.main(["explain", f"@{sizes}", "--device", "H200", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert command_line.main(["predict", str(sizes), "--device", "H200"]) == 0
    predicted = capsys.readouterr().out
    assert predicted in ran.stderr and "\n  6,30,40,NT     1 " in predicted and "These products would take" in predicted


def test_a_file_of_sizes_that_cannot_be_written_is_said(folder):
    ran = by_us([], ["programs/products.py"], folder, "--sizes", "none/sizes.txt", FASTSGEMM_DEVICE="host")
    assert ran.returncode == 0
    assert "the sizes of products could not be written to none/sizes.txt: No such file" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "a program is missing"),
        (("--",), "a program is missing"),
        (("--only", "gemm", "programs/one.py"), "only must name operators of"),
        (("--predict", "H300", "programs/one.py"), "nothing is known of a device 'H300'"),
    ],
)
def test_wrong_arguments(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as error:
        main(["--device", "cpu", *arguments])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
