"""The tutorial, step by step, without a GPU: its program, its commands and its server."""

import json
import re
import shlex
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from subprocesses import environment

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorial.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is part of a checkout only"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the program of step 2 and, as `served.py`, that of step 3."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch.library, "get_kernel"):
        pytest.skip("the switch needs PyTorch 2.9 or later")
    folder = tmp_path_factory.mktemp("tutorial")
    program, enabled, reported = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (folder / "serve.py").write_text(program)
    enabled = enabled.replace("enable()", 'enable(device="cpu")')
    program = program.replace("\nmodel =", f"\n{enabled}model =")
    (folder / "served.py").write_text(program.replace('if "--serve"', f'{reported}if "--serve"'))
    return folder


def commands(word):
    """The commands of the page that begin with this word."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(rf"^{word} .*$", "".join(text for language, text in blocks if not language), re.MULTILINE)


def run(command, folder):
    words = shlex.split(command)
    words[:1] = [sys.executable] if words[0] == "python" else [sys.executable, "-m", words[0]]
    variables = environment(FASTSGEMM_DEVICE="host", FASTSGEMM_CACHE_DIR=str(folder / "kernels"))
    return subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=200)


def test_its_commands_report_predict_and_compile(folder):
    (reported,), (prepared, checked) = commands("python"), commands("fastsgemm")
    done = run(reported, folder)
    assert done.returncode == 0, done.stderr
    assert "fastsgemm computed 6 products" in done.stderr and "100.0% of float32 FLOPs" in done.stderr
    assert "predicted for NVIDIA H100 80GB HBM3" in done.stderr and "These products would take 0." in done.stderr
    assert run(checked, folder).returncode == 1
    done = run(prepared, folder)
    assert done.returncode == 0 and done.stdout.count("1 problem ready") == 6, done.stderr
    assert run(checked, folder).returncode == 0
    assert f"RUN umask 022 && {prepared}\n" in PAGE.read_text()


def test_its_server_answers_by_fastsgemm(folder):
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    program = folder / "served.py"
    program.write_text(program.read_text().replace("8000", str(port)))
    server = subprocess.Popen(
        [sys.executable, program, "--serve"],
        env=environment(FASTSGEMM_DEVICE="host"), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert "fastsgemm computed 6 products, 172 MFLOP, 100.0%" in server.stdout.readline()
        rows = [[*range(1, 513)], *np.random.default_rng(0).standard_normal((2, 512)).tolist()]  # the first as by curl
        found = [json.loads(_post(port, json.dumps(part).encode())) for part in (rows, rows[:1])]
        assert np.shape(found[0]) == (3, 512) and np.allclose(found[0][:1], found[1], rtol=1e-4, atol=1e-2)
    finally:
        server.kill()
        server.communicate()


def _post(port, data):
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"http://localhost:{port}", data, timeout=20) as reply:
                return reply.read()
        except ConnectionRefusedError:  # it has told its report, but does not listen yet
            pass
        except OSError as error:
            if not isinstance(getattr(error, "reason", None), ConnectionRefusedError):
                raise
    raise AssertionError("the server does not listen")
