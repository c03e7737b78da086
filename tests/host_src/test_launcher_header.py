"""``host_src/launcher.h`` by itself: a program with a driver in its own process, plain and with sanitizers."""

import subprocess
from pathlib import Path

import pytest

from fastsgemm.jit import host_compiler

SANITIZERS = ["", *(pytest.param(each, marks=pytest.mark.slow) for each in ("thread", "address,undefined"))]
PROGRAM = Path(__file__).with_name("launcher.cpp")


@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_launcher(sanitizers, tmp_path):
    compiler = host_compiler.compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    options = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-g"] if sanitizers else []
    empty, program = tmp_path / "empty.cpp", tmp_path / "program"
    empty.write_text("int main() {}")
    for check in ([compiler, *options, "-o", program, empty], [program]) if sanitizers else ():
        if subprocess.run(check, capture_output=True).returncode:
            pytest.skip(f"a program with -fsanitize={sanitizers} cannot be made by {compiler}, or does not run here")
    command = [compiler, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", *options]
    subprocess.run([*command, "-o", program, PROGRAM, "-ldl"], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
