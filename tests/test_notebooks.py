"""The notebooks are valid and have no outputs; cells that need no GPU run on the simulated device."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
from subprocesses import run

from fastsgemm.command_line import _parser

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="notebooks/ is part of a checkout only")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

# What IPython does with a line that begins with an exclamation mark.
SHELL = (
    "import subprocess as _subprocess, sys as _sys\n"
    "def _shell(*words): _subprocess.run([_sys.executable, '-m', *words], check=True)\n"
)


def cells(path, gpu=True):
    """Return the sources of the code cells, without those that install; with `gpu`, also of those that need one."""
    found = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    wanted = [cell for cell in found if gpu or "gpu" not in cell["metadata"].get("tags", [])]
    return [source for source in map("".join, (cell["source"] for cell in wanted)) if not source.startswith("%pip ")]


def as_python(source):
    """Return a cell as Python without IPython."""
    return re.sub(r"^!(.*)$", lambda line: f"_shell(*{shlex.split(line[1])!r})", source, flags=re.MULTILINE)


def output_of(sources, **variables):
    return run(SHELL + "\n".join(map(as_python, sources)), timeout=300, **variables).stdout


@each_notebook
def test_it_is_valid_and_has_no_outputs(path):
    notebook = json.loads(path.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["language"] == "python"
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert cell["cell_type"] in ("code", "markdown")
        assert cell.keys() == {"cell_type", "id", "metadata", "source"} | code
        assert re.fullmatch(r"[\w-]{1,64}", cell["id"]) and all(isinstance(line, str) for line in cell["source"])
        assert not cell.get("outputs") and cell.get("execution_count") is None


@each_notebook
def test_its_cells_parse_and_its_commands_are_spelled_right(path):
    for source in cells(path):
        ast.parse(as_python(source))
        for command in re.findall(r"^!fastsgemm (.*)$", source, re.MULTILINE):
            _parser().parse_args(shlex.split(command))


@each_notebook
def test_what_needs_no_gpu_runs_without_one(path):
    sources = cells(path, gpu=False)
    assert len(sources) >= 3
    assert output_of(sources, FASTSGEMM_DEVICE="sim")


@pytest.mark.gpu
@each_notebook
def test_it_runs_on_a_gpu(path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert output_of(cells(path))


@each_notebook
def test_pages_lead_to_it(path):
    address = f"https://colab.research.google.com/github/fastsgemm/fastsgemm/blob/main/notebooks/{path.name}"
    for name in ("README.md", "docs/index.md", "docs/course.md"):
        assert address in (ROOT / name).read_text(), name
