"""Every constant that is shipped, compiled by the real NVRTC for its own architecture: no spills, no stack, at most 255
registers. `generic` holds the defaults of every rung and is compiled for every architecture.

A quick run compiles the defaults on one architecture, the largest variant of each; `make test-all` the rest.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import architectures
import compilations
import kernel_texts
import pytest
from msgspec.structs import replace
from quick_configs import quick_configs

from fastsgemm import known_devices, resources, rungs
from fastsgemm.geometry.variants import Variant
from fastsgemm.jit import source
from fastsgemm.jit.compiler import Compiled, Report
from fastsgemm.problem import DTYPES, Problem
from fastsgemm.rungs import IEEE, SKINNY_IN_ORDER
from fastsgemm.sim import nvrtc
from fastsgemm.tuning.evaluator import job_of, largest_job

ARCHITECTURES = architectures.parameters()
FILES = sorted(path.stem for path in resources.folder("tuning_db").glob("*.json"))
QUICK = "sm_90"
LAYOUTS = {"NN": (False, False), "NT": (False, True), "TN": (True, False), "TT": (True, True)}


def read(arch):
    """Return what a file holds; an architecture without one has no records."""
    if arch not in FILES:
        return {"records": []}
    return json.loads((resources.folder("tuning_db") / f"{arch}.json").read_text())


def shipped(arch):
    """Every rung and kernel of one file, once each, with the variants that its records take."""
    data = read(arch)
    found = {}
    for line in data["records"] + data.get("curves", []):
        rung = rungs.find(line["rung"])
        config = rung.config.from_constants(line["constants"])
        variants = found.setdefault((rung.file, config.kernel), (rung, set()))[1]
        if line.get("problem"):
            variants.add(job_of(arch, rung, config, Problem(**line["problem"])).variant)
    return [(rung, config, variants) for (_, config), (rung, variants) in found.items()]


def every_variant(rung, config):
    """All layouts with the widest loads and, where that makes a difference, the extreme ones with narrower loads."""
    width = 4 if rung.vectorized else 1
    wide = [Variant(*trans, width, width, width) for trans in LAYOUTS.values()]
    narrower = ((1,) if rung.vectorized else ()) + ((2,) if rung.pairs else ())
    found = wide + [Variant(both, both, each, each) for each in narrower for both in (False, True)]
    if rung.reads_source:
        found += [replace(found[0], source=4), replace(found[0], source=1), replace(found[-1], source=1)]
    if rung.narrow:
        return found + [replace(variant, trans_c=True) for variant in found]
    if rung.guarded:
        peeled = [replace(found[0], peel=True), replace(found[-1], peel=True)]
        found += [replace(variant, guard=True) for variant in found]
        symmetric = [replace(each, sym=sym) for each in (found[0], found[-1]) for sym in (1, 2, 3)]
        if not config.segment:  # with segments, K is multiplied in ascending order
            found += peeled
        found += symmetric
    return found


def recorded_variants(rung, config, variants):
    """What the config was found for, and the largest kernel, without a source and with one."""
    largest = largest_job(rung, config).variant
    found = [*sorted(variants, key=str), *([] if largest in variants else [largest])]
    symmetric = [replace(largest, source=largest.vec_c, sym=1)] if rung.guarded else []
    return [*found, *(replace(each, source=each.vec_c) for each in found if rung.reads_source), *symmetric]


def faults(jobs):
    """Compile everything, on all cores; return a line for each kernel that should not be shipped."""

    def look(job):
        rung, config, variant, arch = job
        report = compilations.report(source.rung_spec(rung, config, variant).text, rung.kernel, arch)
        clean = report.registers <= 255 and not (report.stack_bytes or report.spill_stores or report.spill_loads)
        return None if clean else f"{rung} {config} {variant} on {arch}: {report}"

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC compiles without the interpreter's lock
        return [fault for fault in pool.map(look, jobs) if fault]


@pytest.mark.parametrize(("first", "second", "usual"), [(8, 0, 0), (8, 8, 8), (0, None, 0)])
def test_a_kernel_that_spills_is_compiled_once_more(first, second, usual, monkeypatch):
    log = (
        "ptxas info    : Compiling entry function 'name' for 'sm_90'\n"
        f"    0 bytes stack frame, {first} bytes spill stores, {first} bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 1 barriers\n"
    )
    monkeypatch.setattr(nvrtc, "compile_source", lambda source, arch, cubin: Compiled(b"", log, ""))
    monkeypatch.setattr(compilations, "_report", lambda *_: Report(168, 0, second, second))
    assert compilations.report("source", "name", QUICK) == Report(168, 0, usual, usual)


def test_the_defaults_of_every_rung_compile_cleanly_for_one_architecture():
    """Where the largest variant does not spill, no other should. The slow tests compile them all."""
    jobs = [(rung, config, recorded_variants(rung, config, ())[-1], QUICK) for rung, config, _ in shipped("generic")]
    assert faults(jobs) == []


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_variant_of_the_defaults_compiles_cleanly(arch):
    jobs = [(rung, config, v, arch) for rung, config, _ in shipped("generic") for v in every_variant(rung, config)]
    assert faults(jobs) == []


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_record_compiles_cleanly_for_its_own_architecture(arch):
    known = {(rung.file, config) for rung, config, _ in shipped("generic")}
    jobs = [
        (rung, config, variant, arch)
        for rung, config, variants in shipped(arch)
        if (rung.file, config) not in known  # compiled above
        for variant in recorded_variants(rung, config, variants)
    ]
    assert faults(jobs) == []


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_configs_whose_times_are_carried_over_compile_cleanly(arch):
    """They are what an unknown device gets. A quick run leaves out the few that spill there."""
    limit, aligned, largest = known_devices.limits_of(arch).shared_limit, [], []
    for rung in rungs.DEFAULTS:
        for config in quick_configs(rung.name):
            if not rung.violations(config, limit):
                aligned.append((rung, config, Variant(vec_a=4, vec_b=4, vec_c=4), arch))
                largest.append((rung, config, largest_job(rung, config).variant, arch))
    assert len(aligned) > 30 and len(faults(aligned)) <= 1 and len(faults(largest)) <= 3


@pytest.mark.sampled(every=4 * len(ARCHITECTURES))  # the first
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("turn", "layout", "width"), [(0, "NN", 4), (1, "NT", 4), (2, "TN", 1), (3, "TT", 4)])
def test_rung_10_with_16_bit_operands_compiles_cleanly(arch, turn, layout, width):
    """The configs of records and curves, and those that an unknown device gets; one pair of types each, in turns."""
    rung = rungs.find("skinny")
    configs = [config for each, config, _ in shipped(arch if arch in ("sm_80", "sm_90") else "generic") if each is rung]
    pairs = [pair for pair in DTYPES.values() if not pair.are_float32]
    jobs = [
        (rung, config, Variant(*LAYOUTS[layout], width, width, width, dtypes=pairs[(number + turn) % len(pairs)]), arch)
        for number, config in enumerate([*configs, *quick_configs("skinny")])
    ]
    assert faults(jobs) == []


def test_the_gate_sees_all_there_is():
    assert {*FILES} <= {*architectures.KNOWN, "generic"}
    assert {rung.file for rung, _, _ in shipped("generic")} == {rung.file for rung in (*IEEE, SKINNY_IN_ORDER)}


@pytest.mark.parametrize("arch", FILES)
def test_every_record_is_legal_where_it_is_shipped(arch):
    data = read(arch)
    for line in data["records"] + data.get("curves", []):
        config = rungs.find(line["rung"]).config.from_constants(line["constants"])
        assert config.violations(data["shared_limit"]) == []


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", source.HELPERS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_kernel_without_a_config_compiles_cleanly(arch, name):
    changes = [{}, {"SOURCE": 1}, {"SYM": 1}] if "SOURCE" in source.HELPERS[name] else [{}, {"FROM": 1}, {"FROM": 2}]
    changes += [{"TO": 1}, {"TO": 2}, {"FROM": 2, "TO": 2}] if "TO" in source.HELPERS[name] else []
    changes += [{"VEC_C": 4, "SOURCE": read} for read in (0, 1, 4)] if "VEC_C" in source.HELPERS[name] else []
    for changed in changes:
        report = compilations.report(kernel_texts.helper(name, **changed), rungs.kernel_name(name), arch)
        assert report.registers <= 64 and not (report.stack_bytes or report.spill_stores or report.spill_loads)
