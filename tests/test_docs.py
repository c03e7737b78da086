"""What the pages name exists: files, rungs, errors, modules, commands, links. Their examples run."""

import inspect
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fastsgemm
from fastsgemm.command_line import _parser
from fastsgemm.rungs import RUNGS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    path for pattern in ("*.md", "docs/*.md", "cuda_src/*.md", "tuning_db/*.md") for path in sorted(ROOT.glob(pattern))
]

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="docs/ is part of a checkout only")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_links_of_the_readme_work_outside_a_checkout():
    """PyPI shows this page, and a relative link is broken there."""
    home = re.search(r'^Homepage = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text())
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [
        link.removeprefix(f"{home}/blob/main/").removeprefix(f"{home}/tree/main/")
        for link in links
        if "fastsgemm" in link
    ]
    raw = "https://raw.githubusercontent.com/" + home.removeprefix("https://github.com/") + "/main/"
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', (ROOT / "README.md").read_text())
    assert len(pictures) >= 4
    ours += [picture.removeprefix(raw) for picture in pictures]
    assert len(ours) > 10
    assert [path for path in ours if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_every_rung_is_explained(rung):
    text = (ROOT / "docs" / "ladder.md").read_text()
    assert f"## {rung}\n" in text
    counted = not rung.narrow and rung.precision == "ieee"  # the counts are those of a square, by the simulated device
    assert (f"<!-- counts-{rung.name}:begin -->\n>" in text) == counted
    row = f"| `{rung.file}` | {rung} |"
    assert row in (ROOT / "cuda_src" / "README.md").read_text()


def test_every_error_is_listed():
    errors = {name for name in fastsgemm.__all__ if name.endswith("Error")} - {"FastsgemmError", "DeviceError"}
    text = (ROOT / "docs" / "usage.md").read_text()
    assert {name for name in errors if f"`{name}`" not in text} == set()


def test_every_environment_variable_is_on_some_page():
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    used = set(re.findall(r"\bFASTSGEMM_[A-Z_]+\b", source))
    pages = "".join(page.read_text() for page in PAGES)
    assert {name for name in used if name not in pages} == set()


def test_every_make_target_of_the_pages_exists():
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"^make ([\w-]+)|`make ([\w-]+)", page.read_text(), re.MULTILINE):
            name = "".join(target)
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), name


def commands():
    """Every command line of the program in the code blocks of the pages, without its comment."""
    for page in PAGES:
        for block in re.findall(r"^ *```\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in re.findall(r"^ *(?:python -m )?fastsgemm (?=[a-z])(.*)$", block, re.MULTILINE):
                command = re.split(r" {2,}", line)[0]
                yield pytest.param(command, id=f"{page.name}: {command}")


@pytest.mark.parametrize("command", list(commands()))
def test_every_command_is_spelled_right(command):
    _parser().parse_args(shlex.split(command))


def test_a_misspelled_command_is_found():
    with pytest.raises(SystemExit):
        _parser().parse_args(["explain", "64"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_exists(page):
    for name in re.findall(r"\bfastsgemm(?:\.[a-z_]\w*)+", page.read_text()):
        if not name.endswith((".git", ".io")):
            pkgutil.resolve_name(name)


def programs():
    """The Python examples of the simulated device's page, and the course, whose experiments share their first lines."""
    for name in ("simulated-device.md", "course.md"):
        text = (ROOT / "docs" / name).read_text()
        found = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for number, program in enumerate(["\n".join(found)] if name == "course.md" else found):
            marks = pytest.mark.slow if name == "course.md" else ()  # it simulates for seconds what tests/ladder counts
            yield pytest.param(program, id=f"{name}-{number}", marks=marks)


@pytest.mark.parametrize("program", list(programs()) if (ROOT / "docs").is_dir() else [])
def test_the_examples_of_the_simulated_device_run(program, capsys):
    exec(program, {})
    assert capsys.readouterr().out


@pytest.mark.parametrize(("page", "backend"), [("start", "host"), ("arrays", "host"), ("reproducible", "sim")])
def test_the_numpy_examples_run(page, backend):
    found = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    (program,) = (one for one in found if "import numpy" in one)
    environment = {**os.environ, "FASTSGEMM_DEVICE": backend, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, timeout=100)


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
