#!/usr/bin/env python3
"""Count the instructions of the main loops of rungs 9 and 11 in SASS, for docs/sass.md.

    tools/sass.py                              4096 x 4096 x 4096 in the four layouts, into docs/data/sass.json
    tools/sass.py 1024,1024,1024,TN            print the counts of another problem
    tools/sass.py 512,512,512 --json one.json  and write them to a file

This compiles the kernel with the constants that the tuning database has for the problem on an H200, disassembles it,
and takes the loop with the most FMAs, or for rung 11 with the most products of tensor cores. With the constants of the
first problem it does so for every known architecture. It needs NVRTC and nvdisasm, but no device.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from generated import ROOT

from fastsgemm import device, known_devices, rungs
from fastsgemm.errors import FastsgemmError
from fastsgemm.geometry import fp16x3 as geometry
from fastsgemm.geometry import variants
from fastsgemm.geometry.variants import dense_operands
from fastsgemm.heuristics.choice import choose, choose_config
from fastsgemm.heuristics.explanation import device_at
from fastsgemm.jit import compiler, source
from fastsgemm.problem import LAYOUTS, Problem, format_problem, parse
from fastsgemm.request import resolve
from fastsgemm.tuning import evaluator

KEPT = ROOT / "docs" / "data" / "sass.json"
ARCH = "sm_90"
RUNG = "pipelined"
TYPICAL = tuple(Problem(4096, 4096, 4096, layout) for layout in LAYOUTS)
FMAS = {"FFMA": 1, "FFMA2": 2}  # that a thread does by one instruction
TENSOR = {"HGMMA": 1}  # a product of tensor cores, of 64 x BN x 16 FP16 numbers
COPIES = ("LDG", "LDGSTS", "STS")  # global memory to registers, global to shared memory, registers to shared memory

_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")  # the address, then the instruction
_LABEL = re.compile(r"\s*(\.L_\w+:)")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_\w+)\)")
_PREDICATE = re.compile(r"@!?U?P[0-9T]\s+")

Data = dict[str, Any]


class SassError(Exception):
    """nvdisasm is missing, failed, or printed no loop with an FMA."""


def find_nvdisasm(folders: Iterable[str] = sys.path) -> str:
    """Return the path of nvdisasm, searched on PATH, in installed packages and in installed CUDA toolkits."""
    on_path = shutil.which("nvdisasm")
    if on_path is not None:
        return on_path
    for folder in folders:
        for place in ("triton/backends/nvidia/bin", "nvidia/*/bin"):
            for path in sorted(Path(folder or ".").glob(f"{place}/nvdisasm")):
                return str(path)
    for path in sorted(Path("/usr/local").glob("cuda*/bin/nvdisasm")):
        return str(path)
    raise SassError(
        "nvdisasm was not found on PATH, in an installed package (triton and nvidia-cuda-nvcc contain it) or in "
        "/usr/local/cuda*/bin"
    )


def disassemble(nvdisasm: str, cubin: bytes) -> str:
    """Return the SASS of a cubin as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return _output([nvdisasm, "--print-code", str(path)])


def nvdisasm_version(nvdisasm: str) -> str:
    """Return the CUDA version of nvdisasm, such as 13.1."""
    match = re.search(r"release (\d+\.\d+)", _output([nvdisasm, "--version"]))
    return match[1] if match else "unknown"


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SassError(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def code_of(text: str) -> list[str]:
    """Return the instructions and labels in nvdisasm's output, without addresses and encodings."""
    matches = (_LABEL.match(line) or _INSTRUCTION.match(line) for line in text.splitlines())
    return [one[1] for one in matches if one]


def main_loop(code: list[str], work: Mapping[str, int] = FMAS) -> list[str]:
    """Return the loop that does the most work, FMAs or others, from its label to its branch; in a tie, the shorter one.

    Raises
    ------
    SassError
        No loop does any.
    """
    places = {line[:-1]: place for place, line in enumerate(code) if line.endswith(":")}
    loops: list[list[str]] = [[]]
    for place, line in enumerate(code):
        branch = _BRANCH.search(line)
        if branch and places.get(branch[1], place) < place:
            loops.append(code[places[branch[1]] : place + 1])
    best = max(loops, key=lambda loop: (_done(_opcodes(loop), work), -len(loop)))
    if not _done(_opcodes(best), work):
        raise SassError(f"none of {len(loops) - 1} loops has an {next(iter(work))}")
    return best


def _done(opcodes: Counter[str], work: Mapping[str, int]) -> int:
    return sum(number * opcodes[name] for name, number in work.items())


def _instructions(code: list[str]) -> list[str]:
    return [_PREDICATE.sub("", line, count=1) for line in code if not line.endswith(":")]


def _opcodes(code: list[str]) -> Counter[str]:
    return Counter(line.split()[0].split(".")[0] for line in _instructions(code))


def count(code: list[str]) -> Data:
    """Count the instructions by kind.

    Returns
    -------
    dict
        ``instructions``, ``ffma`` (FMAs: two for an FFMA2), ``ffma2`` (of the instructions), ``lds`` (loads from shared
        memory by bits per thread), ``copies`` (by instruction and bits), ``barriers``, ``others`` (by instruction), and
        ``reuse`` (operands with that flag).
    """
    lines = _instructions(code)
    names = Counter(_name(line.split()[0]) for line in lines)
    kinds: dict[str, Counter[str]] = {kind: Counter() for kind in ("ffma", "lds", "copies", "barriers", "others")}
    for name, number in names.most_common():
        base, _, bits = name.partition(".")
        if base in FMAS or base == "BAR":
            kinds["ffma" if base in FMAS else "barriers"][base] += number
        elif base == "LDS":
            kinds["lds"][bits] += number
        else:
            kinds["copies" if base in COPIES else "others"][name] += number
    return {
        "instructions": len(lines),
        "ffma": _done(kinds["ffma"], FMAS),
        "ffma2": kinds["ffma"]["FFMA2"],
        "lds": dict(kinds["lds"]),
        "copies": dict(kinds["copies"]),
        "barriers": kinds["barriers"].total(),
        "others": dict(kinds["others"]),
        "reuse": sum(line.count(".reuse") for line in lines),
    }


def _name(opcode: str) -> str:
    """Return an opcode without modifiers. Loads and copies keep the bits per thread."""
    base, *modifiers = opcode.split(".")
    if base == "LDS" or base in COPIES:
        return f"{base}.{next((one for one in modifiers if one in ('64', '128')), '32')}"
    return base


def look(problem: Problem, nvdisasm: str, arch: str = ARCH) -> tuple[Data, list[str]]:
    """Return the counts of the kernel that a problem gets on an H200, compiled for `arch`, and its main loop."""
    choice = choose_config(device_at(ARCH), rungs.find(RUNG), variants.dense_call(problem).problem, only="shipped")
    job = evaluator.job_of(ARCH, choice.rung, choice.config, problem)
    text = source.rung_spec(job.rung, job.config, job.variant).text
    loop, resources = compiled_loop(text, job.rung.kernel, arch, nvdisasm)
    about = {"problem": format_problem(problem), "layout": problem.layout, "constants": choice.config.constants}
    return about | count(loop) | resources, loop


def look_fp16x3(nvdisasm: str) -> Data:
    """Return the instructions of rung 11's main loop on a square by opcode."""
    config = choose(device_at(ARCH), resolve("fp16x3"), *dense_operands(TYPICAL[0])).config
    assert isinstance(config, geometry.TileConfig)
    file = geometry.file_of(config)
    text = source.with_constants(file, source.defaults(file) | config.compiled | {"VEC_C": 4})
    target = source.target(file, ARCH)
    loop, resources = compiled_loop(text, rungs.kernel_name(file), target, nvdisasm, TENSOR)
    about = {"arch": target, "problem": format_problem(TYPICAL[0]), "constants": config.compiled}
    return about | {"opcodes": dict(_opcodes(loop).most_common())} | resources


def compiled_loop(
    text: str, kernel: str, arch: str, nvdisasm: str, work: Mapping[str, int] = FMAS
) -> tuple[list[str], dict[str, int]]:
    """Compile a kernel; return its main loop, and the registers and spilled bytes of a thread."""
    loop = main_loop(code_of(disassemble(nvdisasm, compiler.cubin(text, kernel, arch))), work)
    report = compiler.report(text, kernel, arch)
    return loop, {"registers": report.registers, "spilled_bytes": report.spill_stores + report.spill_loads}


def collect(wanted: Sequence[Problem], nvdisasm: str) -> Data:
    """Return the counts of all problems, and the main loop of the first."""
    looked_at = [look(problem, nvdisasm) for problem in wanted]
    architectures = sorted({*known_devices.known().values()}, key=known_devices.compute_capability)
    return {
        "arch": ARCH,
        "device": device_at(ARCH).name,
        "nvrtc": device.nvrtc_text(),
        "nvdisasm": nvdisasm_version(nvdisasm),
        "rows": [row for row, _ in looked_at],
        "architectures": {arch: _without_config(look(wanted[0], nvdisasm, arch)[0]) for arch in architectures},
        "loop": looked_at[0][1],
        "fp16x3": look_fp16x3(nvdisasm),
    }


def _without_config(row: Data) -> Data:
    return {name: value for name, value in row.items() if name not in ("problem", "layout", "constants")}


def main(arguments: Sequence[str] | None = None, kept: Path = KEPT) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("problems", nargs="*", metavar="M,N,K[,LAYOUT]", help="default: 4096,4096,4096 in all layouts")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="output file; default: docs/data/sass.json, if no problem is given"
    )
    options = parser.parse_args(arguments)
    try:
        wanted = [parse(text) for text in options.problems]
        counts = collect(wanted or TYPICAL, find_nvdisasm())
    except (FastsgemmError, SassError) as error:
        print(error, file=sys.stderr)
        return 2
    for row in counts["rows"]:
        print(
            f"{row['problem']}: {row['ffma']} of {row['instructions']} instructions are FFMAs "
            f"({row['ffma'] / row['instructions']:.1%}), {row['reuse']} .reuse, {row['registers']} registers, "
            f"{row['spilled_bytes']} bytes spilled"
        )
    for arch, row in counts["architectures"].items():
        print(f"{arch}: {row['instructions']} instructions for {row['ffma']} FMAs, {row['ffma2']} of them FFMA2")
    tensor = counts["fp16x3"]
    print(f"rung 11: {tensor['opcodes']}, {tensor['registers']} registers, {tensor['spilled_bytes']} bytes spilled")
    path = options.json or (None if wanted else kept)
    if path is not None:
        path.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
