"""The program that measures the FMA pipe, on an ncu made of Python."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "tools").is_dir(), reason="tools/ is part of a checkout only")

# Refuses a metric as ncu does, then gives each launch the others but one, which has no value.
FAKE_NCU = """#!{python}
import json, pathlib, sys
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.4.0.0 (build 1)")
    sys.exit()
value = lambda name: arguments[arguments.index(name) + 1]
log, metrics = pathlib.Path(value("--log-file")), value("--metrics").split(",")
assert value("--clock-control") == "none" and value("--kernel-name") == "regex:fastsgemm_pipelined|fastsgemm_fp16x3"
assert pathlib.Path(arguments[arguments.index("--on-device") - 1]).name == "ncu_pipe.py"
if "{refused}" in metrics:
    log.write_text("==ERROR== Failed to find metric {refused}\\n")
    sys.exit(1)
lines = ['"ID","Kernel Name","Metric Name","Metric Value"']
for number in range({launches}):
    for metric in sorted(metrics):
        count = "n/a" if metric == "{empty}" else f"{{3000000 + number:,}}"
        lines.append(f'"{{number}}","pipelined","{{metric}}","{{count}}"')
log.write_text("\\n".join(lines))
constants = {{"BM": 64, "BN": 128}}
layouts = ("NN", "NT", "TN", "TT")
rows = [{{"rung": "pipelined", "layout": layout, "constants": constants}} for layout in layouts]
device = {{"device": "a fake", "arch": "sm_90", "driver": "580", "nvrtc": "13.0", "rows": rows}}
(pathlib.Path(value("--on-device")) / "device.json").write_text(json.dumps(device))
"""


@pytest.fixture(scope="module")
def ncu_pipe():
    spec = importlib.util.spec_from_file_location("ncu_pipe", ROOT / "tools" / "ncu_pipe.py")
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def fake_ncu(ncu_pipe, folder, launches):
    path = folder / "ncu"
    text = FAKE_NCU.format(
        python=sys.executable, refused=ncu_pipe.METRICS[2], empty=ncu_pipe.METRICS[0], launches=launches
    )
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_what_comes_back_with_a_value_is_kept_in_the_order_of_the_candidates(ncu_pipe, tmp_path, capsys):
    kept = tmp_path / "ncu.json"
    assert ncu_pipe.main(["--ncu", fake_ncu(ncu_pipe, tmp_path, 4), "--json", str(kept)]) == 0
    found = json.loads(kept.read_text())
    assert found["device"] == "a fake" and found["ncu"] == "2025.4.0.0 (build 1)" and found["M"] == 4096
    assert [row["layout"] for row in found["rows"]] == ["NN", "NT", "TN", "TT"]
    given = [name for name in ncu_pipe.METRICS if name not in (ncu_pipe.METRICS[0], ncu_pipe.METRICS[2])]
    assert [list(row["metrics"]) for row in found["rows"]] == [given] * 4
    assert found["rows"][3]["metrics"]["gpu__time_duration.sum"] == 3000003.0
    assert capsys.readouterr().out.count("ncu gave no") == 2


def test_a_launch_that_ncu_did_not_see_is_an_error(ncu_pipe, tmp_path, capsys):
    assert ncu_pipe.main(["--ncu", fake_ncu(ncu_pipe, tmp_path, 3), "--json", str(tmp_path / "ncu.json")]) == 2
    assert "saw 3 kernels" in capsys.readouterr().err
    assert not (tmp_path / "ncu.json").exists()
