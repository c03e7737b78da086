"""Snapshots: what is written down of a call is what the driver gets, and a difference is found and shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

snapshot = pytest.importorskip("snapshot", reason="tools/ is part of a checkout only")

TOOLS = Path(snapshot.__file__).parent
CALLS = """
import fastsgemm, snapshot
recorder = snapshot.Recorder("NVIDIA H200")
places = {1 << 40: (3, 7), 2 << 40: (7, 5), 3 << 40: (3, 5)}
a, b, c = (snapshot.array(place, shape, (shape[1], 1)) for place, shape in places.items())
print(recorder.launched(fastsgemm.sgemm, a, b, 2.0, 0.0, c, rung="naive"))
print(recorder.launched(fastsgemm.sgemm, a, a, C=c))
strided = snapshot.array(1 << 40, (3, 7), (20, 2))
print(recorder.launched(fastsgemm.sgemm, strided, b, 1.0, 0.0, c, rung="naive"))
"""
PRODUCTS = """
import snapshot
for line in snapshot.section(snapshot.products, "A100", 3, 4, 8):
    print(line)
"""


def printed(script):
    """Return the lines of a script in a process of its own, whose driver is replaced for good.

    A real kernel from the user's cache would stand where the digest of its source should.
    """
    environment = os.environ | {"FASTSGEMM_CACHE_DIR": "/dev/null/none", "FASTSGEMM_TUNE": "off"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TOOLS, check=True, env=environment)
    return done.stdout.splitlines()


def test_a_call_is_written_down_as_the_driver_gets_it():
    naive, refused, packed = printed(CALLS)
    batch = ",".join(["1"] * 3 + ["0"] * 19)
    arguments = f"3 5 7 1073741824 {1 << 40} 7 {2 << 40} 5 0 {3 << 40} 5 {batch}"  # alpha by its bits
    assert re.fullmatch(rf"fastsgemm_naive#[0-9a-f]{{12}}<1,1,1;1024;0>\({arguments}\)", naive)
    assert refused.startswith("ShapeError: A's columns must equal B's rows, got 7 and 3")
    allocated, copied, multiplied = packed.split(" | ")
    assert allocated == "allocate 256"
    assert re.match(rf"fastsgemm_copy_strided#[0-9a-f]{{12}}<1,1,1;256;0>\(3 7 {1 << 40} 20 2 ", copied)
    assert multiplied.split("<")[0] == naive.split("<")[0] and multiplied != naive


def test_two_snapshots_are_the_same_and_have_every_kernel():
    lines = printed(PRODUCTS)
    assert printed(PRODUCTS) == lines
    about = [line.split(" ")[0] for line in lines]
    assert about[:4] == ["call", "explain"] * 2 and {*about[4:]} == {"kernel"}
    launched = {*re.findall(r"#([0-9a-f]{12})<", "".join(lines[:4]))}
    assert launched and launched <= {line.split(" -> ")[0].split(" ")[-1] for line in lines[4:]}


def test_what_is_public_is_found_where_it_is_defined():
    assert [*snapshot.signatures("fastsgemm", "split")] == ["split(X, side='B', *, stream=None)"]
    assert {"STAGES=7", "replace(self, **constants)"} <= {*snapshot.signatures("fastsgemm", "Fp16x3Config")}
    assert [*snapshot.signatures("fastsgemm.jax", "disable")] == ["disable()"]


def test_a_difference_is_shown_and_counted(tmp_path, monkeypatch, capsys):
    facts = {
        "call H200 plain 1: a b": "k#1<1,1,1;64;0>(3 5)",
        "call H200 plain 2: a b": "k#1<1>",
        "api fastsgemm.x": "x(a)",
    }
    found = dict(facts)
    monkeypatch.setattr(snapshot, "collect", lambda count: found)
    file = tmp_path / "snapshot.txt.gz"
    assert snapshot.main(["--write", str(file)]) == 0
    assert snapshot.main(["--compare", str(file)]) == 0
    assert capsys.readouterr().out == "nothing moved: 3 facts are the same\n"
    found["call H200 plain 1: a b"] = "k#1<1,1,1;64;0>(3 6)"
    del found["call H200 plain 2: a b"]
    assert snapshot.main(["--compare", str(file), "--lines", "1"]) == 1
    assert capsys.readouterr().out == "call H200 plain 1: a b\n    5) -> 6)\n2 differ: call H200 plain\n"
    assert snapshot.main(["--compare", str(file), "--quick"]) == 1
    assert capsys.readouterr().out.endswith("1 differ: call H200 plain\n")
    del found["call H200 plain 1: a b"], found["api fastsgemm.x"]
    assert snapshot.main(["--compare", str(file), "--quick"]) == 1  # a name that is gone
