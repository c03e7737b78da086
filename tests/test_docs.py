"""What the pages name exists: files, rungs, errors, modules, commands, links. Their calls fit; their examples run."""

import ast
import importlib.util
import inspect
import pkgutil
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from subprocesses import environment

import fastsgemm
import fastsgemm.errors
from fastsgemm.command_line import _parser, main
from fastsgemm.rungs import RUNGS
from fastsgemm.sim.errors import KernelFault

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    path for pattern in ("*.md", "docs/*.md", "cuda_src/*.md", "tuning_db/*.md") for path in sorted(ROOT.glob(pattern))
]

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="docs/ is part of a checkout only")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)  # C++ has [&](int k)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_links_of_the_readme_work_outside_a_checkout():
    """PyPI shows this page, and a relative link is broken there."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    home, site = urls["Homepage"], urls["Documentation"]
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    pages = re.findall(rf"{re.escape(site)}([\w/-]+)\.html(?:#([\w-]+))?", text)
    assert len(pages) >= 5
    for page, anchor in pages:
        headings = re.findall(r"^#+ (.+)$", (ROOT / f"{page}.md").read_text(), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}, page
    raw = home.replace("github.com", "raw.githubusercontent.com") + "/main/"
    workflows = re.findall(rf"{re.escape(home)}/actions/(workflows/\w+\.yml)", text)
    ours = [f".github/{name}" for name in workflows]
    colab = home.replace("github.com", "colab.research.google.com/github") + "/blob/main/"
    ours += re.findall(rf"(?:{re.escape(raw)}|{re.escape(colab)}|{re.escape(home)}/(?:blob|tree)/main/)([^\")]+)", text)
    assert len(ours) > 6
    assert [path for path in ours if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_every_rung_is_explained(rung):
    text = (ROOT / "docs" / "ladder.md").read_text()
    assert f"## {rung}\n" in text
    assert f"<!-- rung-{rung.name}:begin -->\n<picture>" in text
    row = f"| `{rung.file}` | {rung} |"
    assert row in (ROOT / "cuda_src" / "README.md").read_text()


def test_every_error_is_listed():
    errors = {name for name in fastsgemm.__all__ if name.endswith("Error")} - {"FastsgemmError", "DeviceError"}
    text = (ROOT / "docs" / "usage.md").read_text()
    assert {name for name in errors if f"`{name}`" not in text} == set()


def test_every_error_has_the_bases_of_its_row():
    text = (ROOT / "docs" / "usage.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+Error`(?:, )?)+) \| (.*?) \|", text, re.MULTILINE)
    assert len(rows) > 10
    for names, bases in rows:
        for name in re.findall(r"\w+", names):
            error = getattr(fastsgemm.errors, name)
            builtin = {base.__name__ for base in error.__mro__ if base.__module__ == "builtins"} - {"object"}
            assert builtin - {"Exception", "BaseException"} == {*re.findall(r"\w+", bases)}, name


def test_every_environment_variable_is_on_some_page():
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    used = set(re.findall(r"\bFASTSGEMM_[A-Z_]+\b", source))
    pages = "".join(page.read_text() for page in PAGES)
    assert {name for name in used if name not in pages} == set()


def test_the_package_is_installed_from_where_it_can_be_had():
    """From PyPI once the changelog has a section with a date, from a clone before."""
    released = re.search(r"^## .*\d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE) is not None
    for page in [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("index", "install", "course"))]:
        lines = re.findall(r"^ *pip install (.*)$", page.read_text(), re.MULTILINE)
        assert lines and all(("fastsgemm" in line.partition("#")[0]) is released for line in lines), page.name


def test_every_make_target_of_the_pages_exists():
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"^make ([\w-]+)|`make ([\w-]+)", page.read_text(), re.MULTILINE):
            name = "".join(target)
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), name


def commands():
    """Every command line of the program in code blocks, as it is copied, and in the text of pages and templates."""
    for page in [*PAGES, *sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))]:
        for command in re.findall(r"`fastsgemm ([a-z]+ [^`]+)`", page.read_text()):
            command = command.replace("M,N,K,LAYOUT", "3,4,5,NT").replace("M,N,K", "3,4,5")
            yield pytest.param(command, id=f"{page.name}: {command}")
        for block in re.findall(r"^ *```\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
            for command in re.findall(r"^ *(?:python -m )?fastsgemm (?=[a-z])(.*)$", block, re.MULTILINE):
                yield pytest.param(command, id=f"{page.name}: {command}")


@pytest.mark.parametrize("command", list(commands()))
def test_every_command_is_spelled_right(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizes.txt").write_text("# 1 product, 100.0% of FLOPs\n--size=3,4,5,NT\n")  # some take it as @sizes.txt
    _parser().parse_args(shlex.split(command, comments=True))


def test_the_page_of_the_choice_says_what_its_commands_print(capsys):
    text = (ROOT / "docs" / "tuning.md").read_text()
    printed = []
    for command in re.findall(r"^fastsgemm (explain .*)$", text, re.MULTILINE):
        assert main(shlex.split(command)) == 0
        printed.append(capsys.readouterr().out)
    rules = [re.search(r"^rule +(\w+)", one, re.MULTILINE)[1] for one in printed]
    assert rules == re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == ["exact", "predicted", "nearest"]
    assert "\npacked     A and B first" in printed[1]


def test_a_misspelled_command_is_found():
    with pytest.raises(SystemExit):
        _parser().parse_args(["explain", "64"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_exists(page):
    # What is for a library that is not installed cannot be looked up.
    lacking = tuple(f"fastsgemm.{name}" for name in ("jax", "torch") if importlib.util.find_spec(name) is None)
    for name in re.findall(r"\bfastsgemm(?:\.[a-z_]\w*)+", page.read_text()):
        if not name.endswith((".git", ".io")) and not name.startswith(lacking):
            pkgutil.resolve_name(name)


def programs():
    """The Python examples of the simulated device's page, and the course, whose experiments share their first lines."""
    for name in ("simulated-device.md", "course.md"):
        text = (ROOT / "docs" / name).read_text()
        found = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for number, program in enumerate(["\n".join(found)] if name == "course.md" else found):
            marks = pytest.mark.slow if name == "course.md" else ()  # simulates for seconds what tests/measure counts
            yield pytest.param(program, id=f"{name}-{number}", marks=marks)


@pytest.mark.parametrize("program", list(programs()) if (ROOT / "docs").is_dir() else [])
def test_the_examples_of_the_simulated_device_run(program, capsys):
    exec(program, {})
    assert capsys.readouterr().out


def test_the_command_that_prints_a_kernel_runs(capsys):
    text = (ROOT / "cuda_src" / "README.md").read_text()
    (program,) = re.findall(r'^python -c "(.*?)"$', text, re.MULTILINE | re.DOTALL)
    exec(program, {})
    assert "fastsgemm_naive(" in capsys.readouterr().out


def blocks(page):
    return re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "backend"),
    [("index", "host"), ("usage", "host"), pytest.param("batch-invariance", "sim", marks=pytest.mark.slow)],
)
def test_the_numpy_examples_run(page, backend):
    found = [textwrap.dedent(one) for one in blocks(ROOT / "docs" / f"{page}.md")]
    program = "\n".join(one for one in found if "import numpy" in one)
    assert "sgemm(" in program
    program = program.replace("200", "40")  # the simulated device takes seconds for each 100 steps of a large tile
    variables = environment(FASTSGEMM_DEVICE=backend)
    subprocess.run([sys.executable, "-c", program], env=variables, check=True, capture_output=True, timeout=100)


def on_the_host(program):
    """The same program for small tensors in host memory, where the switch replaces products, too."""
    program = textwrap.dedent(program).replace("cuda", "cpu").replace("torch.cpu", "torch.cuda")
    program = re.sub(r"(enabled?)\(", r'\1(device="cpu", ', program)
    return re.sub(r"\b\d{3,}\b", lambda number: str(int(number[0]) // 64), program)


def test_the_pytorch_examples_run_on_the_host():
    """In one process: importing PyTorch takes seconds. Captures and split operands need a device."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not hasattr(torch.library, "get_kernel"):
        pytest.skip("the switch needs PyTorch 2.9 or later")
    pages = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("index", "pytorch"))]
    found = [one for page in pages for one in blocks(page) if "torch" in one]
    assert len(found) >= 4
    given = "import torch\nmodel = torch.nn.Linear(8, 4)\nx = torch.randn(2, 8)\nA = B = torch.randn(3, 3)\n"
    program = "\n".join(f"exec({given + on_the_host(one)!r}, {{}})" for one in found)
    command, variables = [sys.executable, "-c", program], environment(FASTSGEMM_DEVICE="host")
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "fastsgemm computed" in done.stdout


# Functions that pages call by a short name.
_SHORT = {name: getattr(fastsgemm, name) for name in ("sgemm", "split", "prepare", "explain", "tune")}


def calls():
    """Every call of a public function in the Python blocks and in the text of the pages, with its source."""
    for page in PAGES:
        inline = re.findall(rf"`((?:fastsgemm\.[a-z_.]+|{'|'.join(_SHORT)})\([^`]*\))`", page.read_text())
        for text in [textwrap.dedent(one) for one in blocks(page)] + inline:
            if "*, " in text:
                continue  # a signature
            imported = re.search(r"^from fastsgemm\.sim import", text, re.MULTILINE)
            for node in ast.walk(ast.parse(text)):
                name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                short = None if imported or page.name == "course.md" else _SHORT.get(name)
                if short or re.fullmatch(r"fastsgemm(\.[a-z_]+)+", name):
                    yield pytest.param(short or name, node, id=f"{page.name}: {ast.unparse(node)}")


@pytest.mark.parametrize(("function", "call"), list(calls()))
def test_every_call_on_the_pages_fits_its_function(function, call):
    if isinstance(function, str):
        for library in ("jax", "torch"):
            if function.startswith(f"fastsgemm.{library}"):
                pytest.importorskip(library)
        module, _, name = function.rpartition(".")
        function = getattr(importlib.import_module(module), name)
    given = [one for one in call.args if not (isinstance(one, ast.Constant) and one.value is ...)]
    bind = inspect.signature(function).bind if given == call.args else inspect.signature(function).bind_partial
    bind(*given, **{one.arg: one.value for one in call.keywords})


def test_the_signature_on_the_page_is_that_of_sgemm():
    shown = re.search(r"```python\n(sgemm\(.*?\))\n```", (ROOT / "docs" / "usage.md").read_text(), re.DOTALL)[1]
    plain = [each.replace(annotation=each.empty) for each in inspect.signature(fastsgemm.sgemm).parameters.values()]
    assert ast.dump(ast.parse(f"def {shown}: 0")) == ast.dump(ast.parse(f"def sgemm{inspect.Signature(plain)}: 0"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page):
    named = re.findall(r"`([\w.-]+/[\w./-]*)`|(?:python|pytest) ([\w-]+/[\w./-]+)", page.read_text())
    for path in filter(None, (one for pair in named for one in pair)):
        if not re.match("build/|dist/", path) and not re.search("[A-Z]{2}", path):  # made by a program, or a pattern
            assert any((folder / path).exists() for folder in (ROOT, ROOT / "src" / "fastsgemm", page.parent)), path


def test_every_error_of_the_simulated_device_is_in_its_table():
    text = (ROOT / "docs" / "simulated-device.md").read_text()
    errors = {error.__name__ for error in KernelFault.__subclasses__()}
    assert len(errors) > 10 and {name for name in errors if f"`{name}`" not in text} == set()


def test_every_public_name_is_on_the_page_of_the_api():
    text = (ROOT / "docs" / "api.rst").read_text()
    missing = {name for name in fastsgemm.__all__ if not name.endswith("Error") and f"fastsgemm.{name}" not in text}
    assert missing == {"__version__"}
    assert "automodule:: fastsgemm.errors\n   :members:" in text


@pytest.mark.parametrize("name", ["sgemm", "split", "explain", "tune"])
def test_every_parameter_is_documented(name):
    function = getattr(fastsgemm, name)
    section = function.__doc__.split("Parameters\n")[1].split("Returns\n")[0]
    described = {word for line in re.findall(r"^ *([\w, ]+?) : ", section, re.MULTILINE) for word in line.split(", ")}
    assert set(inspect.signature(function).parameters) == described


def test_every_page_is_in_the_navigation():
    text = (ROOT / "docs" / "index.md").read_text()
    listed = re.findall(r"^(?:[\w ]+<)?([\w./-]+)>?$", text, re.MULTILINE)
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"api"}
    assert pages - {*listed} == {"index"}


def test_a_workflow_asks_for_the_runner_in_steps_only():
    """GitHub refuses a workflow that reads `runner` in the env of a job, which is made before a runner is chosen."""
    for path in sorted(ROOT.glob(".github/workflows/*.yml")):
        jobs = path.read_text(encoding="utf-8").split("\njobs:\n")[1]
        for job in re.split(r"^  (?=\w+:)", jobs, flags=re.MULTILINE)[1:]:
            assert "runner." not in job.partition("    steps:\n")[0], path.name
