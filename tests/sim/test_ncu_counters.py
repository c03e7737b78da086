"""The program that compares with Nsight Compute, on an ncu made of Python."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from fastsgemm import rungs
from fastsgemm.problem import Problem
from fastsgemm.sim import Machine

PROGRAM = Path(__file__).with_name("ncu_counters.py")

CSV = """==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Profiling "naive": 0%....50%....100% - 3 passes
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value"
"0","4242","python3.12","127.0.0.1","naive","1","7","(1024, 1, 1)","(64, 1, 1)","0","9.0",\
"Command line profiler metrics","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","sector","17,301,504"
"0","4242","python3.12","127.0.0.1","naive","1","7","(1024, 1, 1)","(64, 1, 1)","0","9.0",\
"Command line profiler metrics","sm__maximum_warps_per_active_cycle_pct","%","99.5"
"10","4242","python3.12","127.0.0.1","coalesced(int, int)","1","7","(1024, 1, 1)","(64, 1, 1)","0","9.0",\
"Command line profiler metrics","smsp__inst_executed.sum","inst","n/a"
"2","4242","python3.12","127.0.0.1","vectorized","1","7","(256, 1, 1)","(4, 1, 1)","0","9.0",\
"Command line profiler metrics","smsp__inst_executed.sum","inst","12"
hello from the program
==PROF== Disconnected from process 4242
""".replace("\\\n", "")

# Refuses a metric as ncu does, then writes what the simulator counted, with one count 3 % too large.
FAKE_NCU = """#!{python}
import json, pathlib, sys
arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
log, metrics = pathlib.Path(value("--log-file")), value("--metrics").split(",")
assert value("--clock-control") == "none"
if "{refused}" in metrics:
    log.write_text("==ERROR== Failed to find metric {refused}\\n")
    sys.exit(1)
folder = pathlib.Path(value("--on-device"))
known = json.loads(pathlib.Path("{known}").read_text())
launches = json.loads((folder / "launches.json").read_text())
lines = ['==PROF== hello', '"ID","Kernel Name","Metric Name","Metric Value"']
for number, one in enumerate(launches):
    assert (folder / f"{{number}}.cubin").read_bytes().startswith(b"\\x7fELF") and "extern" in one["source"]
    for metric in metrics:
        wrong = 1.03 if (one["rung"], metric) == ("warptiled", "{wrong}") else 1
        count = known[one["rung"]][metric] * wrong
        lines.append(f'"{{number}}","{{known[one["rung"]]["kernel"]}}","{{metric}}","{{count:,}}"')
log.write_text("\\n".join(lines))
same_bits = {{one["rung"]: True for one in launches}}
(folder / "device.json").write_text(json.dumps({{"device": "a fake", "same_bits": same_bits}}))
"""


@pytest.fixture(scope="module")
def ncu_counters():
    spec = importlib.util.spec_from_file_location("ncu_counters", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ncu_counters"] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


def test_the_csv_of_ncu(ncu_counters):
    sectors, occupancy = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sm__maximum_warps_per_active_cycle_pct"
    assert ncu_counters.parse(CSV) == [
        ("naive", {sectors: 17301504.0, occupancy: 99.5}),
        ("vectorized", {"smsp__inst_executed.sum": 12.0}),
        ("coalesced(int, int)", {}),  # n/a is no number
    ]
    assert ncu_counters.parse("==ERROR== no permission\n") == []


def test_metrics_that_ncu_refuses(ncu_counters):
    wanted = ["smsp__inst_executed.sum", "smsp__inst_executed_op_shared_ld.sum", "launch__registers_per_thread"]
    text = "==ERROR== Failed to find metric smsp__inst_executed_op_shared_ld.sum\nmetric launch__registers_per_thread"
    assert ncu_counters.refused_metrics(text, wanted) == wanted[1:2]
    assert ncu_counters.refused_metrics("==ERROR== ERR_NVGPUCTRPERM - no permission", wanted) == []


def test_another_kernel_than_the_one_expected_is_an_error(ncu_counters):
    with pytest.raises(ncu_counters.NcuError, match=r"saw the kernels \['fill'\], expected \[\]"):
        ncu_counters.compare([], [("fill", {})])


@pytest.mark.parametrize(
    ("sim", "ncu", "percent"),
    [(103, 100, 3.0), (0, 0, 0.0), (5, 0, 100.0), (0, 5, None), (7, None, None), (None, 7, None)],
)
def test_percent(ncu_counters, sim, ncu, percent):
    assert ncu_counters._percent(sim, ncu) == percent


@pytest.fixture
def fake_ncu(ncu_counters, tmp_path, monkeypatch):
    known = {}
    simulate = ncu_counters.simulate

    def remember(*how):
        one = simulate(*how)
        counts = {metric.ncu: one.counts.get(metric.name, 7.0) for metric in ncu_counters.METRICS}
        known[one.rung] = counts | {"kernel": one.kernel}
        (tmp_path / "known.json").write_text(json.dumps(known))
        return one

    monkeypatch.setattr(ncu_counters, "simulate", remember)
    text = FAKE_NCU.format(
        python=sys.executable,
        refused="smsp__inst_executed_op_shared_st.sum",
        wrong="smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
        known=tmp_path / "known.json",
    )
    path = tmp_path / "ncu"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_the_whole_comparison(ncu_counters, fake_ncu):
    found, rows = ncu_counters.measure(Problem(40, 36, 12), Machine("sm_90"), fake_ncu)
    assert found["unknown"] == ["smsp__inst_executed_op_shared_st.sum"]
    assert found["beyond"] == ["warptiled: shared load wavefronts"]
    assert {row.rung for row in rows} == {rung.name for rung in rungs.IEEE}
    assert [row.gated for row in rows if row.metric == "shared store wavefronts"] == [
        rung.name != "pipelined"
        for rung in rungs.IEEE  # which copies asynchronously
    ]
    copies = [(row.sim, row.ncu, row.gated) for row in rows if row.metric == "copy requests"]
    assert copies == [(None, 7.0, False)] * len(rungs.IEEE)
    wrong = [row for row in rows if row.percent]
    assert [(row.rung, round(row.percent, 2)) for row in wrong] == [("warptiled", -2.91)]
    text = ncu_counters.table(rows)
    assert text.count("must agree") == 1 and text.count("unknown") == 4 * len(rungs.IEEE)
    json.dumps(found)


def test_an_ncu_that_cannot_measure_is_one_message(ncu_counters, tmp_path, monkeypatch, capsys):
    broken = tmp_path / "ncu"
    broken.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setattr(rungs, "IEEE", rungs.IEEE[:1])  # what is simulated before ncu runs
    monkeypatch.setattr(sys, "argv", ["ncu_counters.py", "--size", "33", "--ncu", str(broken)])
    assert ncu_counters.main() == 2
    assert "ncu ended with 7" in capsys.readouterr().err
