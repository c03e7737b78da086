#!/usr/bin/env python3
"""Write down what fastsgemm does, so that a refactoring can show that nothing moved.

    tools/snapshot.py --write before.txt.gz       on the commit before; some minutes on two cores
    tools/snapshot.py --compare before.txt.gz     on the commit after; prints what differs, and exits with 1 if it does

One line states one fact:

- ``call``: what a product launches on an H200, an H100, an A100 and a T4. The products are drawn from a fixed seed, in
  all modes, layouts, strides, alignments and types. ``fastsgemm.sgemm`` itself runs, between an NVRTC and a driver that
  only record; so a line has kernels, grids, blocks, shared memory and all arguments as the driver gets them. Each
  operand has a fixed address.
- ``explain``: what `fastsgemm.explain` says of the same products in dense arrays: rung, constants, rule and times.
- ``kernel``: the digest of the complete source and of the options that NVRTC gets, and the constants in that source.
  Equal sources give equal machine code, so nearly all kernels are not compiled. ``cubin`` is the digest of the
  machine code of one kernel of each file for sm_90. Each config that `explain` ranks is launched once.
- ``bits``: digests of results on the simulated device.
- ``api`` and ``help``: public names with their parameters, and what the command line prints.

Below `sgemm`, `split` and `explain`, nothing of the package is imported, so that a snapshot outlives its structure.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import gzip
import hashlib
import math
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from difflib import SequenceMatcher
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
sys.path.insert(0, str(ROOT / "tests" / "support"))

DEVICES = {"H200": "NVIDIA H200", "H100": "NVIDIA H100 80GB HBM3", "A100": "NVIDIA A100-SXM4-40GB", "T4": "Tesla T4"}
MODES = (
    {}, {}, {"precision": "ieee"}, {"precision": "fp16x3"}, {"precision": "fp16x3"}, {"batch_invariant": True},
    {"symmetric": True}, {"symmetric": True, "precision": "fp16x3"}, {"symmetric": True, "batch_invariant": True},
    {"rung": "any"},
)  # fmt: skip
RUNGS = (*range(1, 12), "skinny_in_order")
ITEMS = {"float32": 4, "bfloat16": 2, "float16": 2}
SPACE = 1 << 40  # bytes between the addresses of two operands
SIZES = {"int": 4, "unsigned": 4, "float": 4, "long long": 8, "Batch": 88, "TensorMap": 128}  # of kernel parameters
OF_SOURCE = 48  # bytes of a BatchAndSource after its Batch, unless SOURCE is 0
_CONSTANT = re.compile(r"^constexpr int (\w+) = (-?\d+);", re.MULTILINE)


class Array:
    """A device array without memory."""

    def __init__(self, place: int, shape: Sequence[int], strides: Sequence[int], dtype: str = "float32") -> None:
        self.ptr, self.shape, self.strides, self.dtype = place, tuple(shape), tuple(strides), dtype
        self.device_id, self.readonly = 0, False

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0  # CUDA

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("cuda.core reads these arrays; see `recording`")

    @property
    def T(self) -> Array:
        """The same memory, transposed."""
        turned = (*self.shape[:-2], *self.shape[:-3:-1]), (*self.strides[:-2], *self.strides[:-3:-1])
        return Array(self.ptr, *turned, self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}/{list(self.strides)}@{self.ptr % 16}".replace(" ", "")


class Recorder:
    """An NVRTC whose machine code is the digest of a source, and a driver that writes down launches."""

    def __init__(self, name: str) -> None:
        import fake_driver
        from cuda.bindings import driver

        import fastsgemm

        described = fastsgemm.explain(64, 64, 64, device=name).device
        attributes = driver.CUdevice_attribute
        major, minor = divmod(int(described.arch.removeprefix("sm_")), 10)
        known = {
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: major,
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: minor,
            attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: described.shared_limit,
            attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: described.multiprocessors,
        }
        self.driver: Any = fake_driver.FakeDriver()
        self.programs: dict[str, tuple[str, str, list[str]]] = {}  # source, name and options by digest
        self.libraries: list[str] = []  # digests
        self.launches: list[str] = []
        self.allocated = 0
        answers = {
            "cuInit": lambda flags: (0,),
            "cuDeviceGetCount": lambda: (0, 1),
            "cuDeviceGetName": lambda length, device: (0, name.encode() + b"\0"),
            "cuDeviceGetAttribute": lambda which, device: (0, known[which]),
            "cuMemAllocFromPoolAsync": self._allocate,
            "cuMemFreeAsync": lambda address, handle: (0,),
            "cuLibraryLoadData": self._load,
            "cuLaunchKernelEx": self._launch,
        }
        for function, answer in answers.items():
            setattr(self.driver, function, answer)

    def _allocate(self, size: int, pool: Any, handle: int) -> tuple[int, int]:
        self.allocated += 1
        self.launches.append(f"allocate {size}")
        return 0, (16 + self.allocated) * SPACE

    def _load(self, code: bytes, *options: Any) -> tuple[int, int]:
        self.libraries.append(code.decode())
        return 0, len(self.libraries)

    def _launch(self, config: Any, function: Any, pointers: int, extra: Any) -> tuple[int]:
        digest = self.libraries[int(function) // 10 - 1]
        source, name, _ = self.programs[digest]
        sizes = parameters(source, name)
        places = (ctypes.c_void_p * len(sizes)).from_address(int(pointers))
        values = [plain(place, size) for place, size in zip(places, sizes, strict=True)]
        grid = f"{config.gridDimX},{config.gridDimY},{config.gridDimZ}"
        how = f"<{grid};{config.blockDimX};{config.sharedMemBytes}{';early' * bool(config.numAttrs)}>"
        self.launches.append(f"{name.removeprefix('fastsgemm_')}#{digest}{how}({' '.join(values)})")
        return (0,)

    def install(self, patch: Any) -> None:
        """Put this in the place of the driver and of what reads arrays, for the process, and of NVRTC by `patch`."""
        import pytest
        from cuda.bindings import driver, nvrtc
        from cuda.core import utils

        def create(source: bytes, name: bytes, *headers: Any) -> tuple[int, list[Any]]:
            return 0, [source.decode(), name.decode()]

        def compile_(program: list[Any], count: int, options: list[bytes]) -> tuple[int]:
            spelled = [each.decode() for each in options]
            digest = digest_of(repr((*program, spelled)))
            self.programs[digest] = (*program, spelled)
            program.append(digest)
            return (0,)

        def copy(program: list[Any], buffer: bytes) -> tuple[int]:
            ctypes.memmove(buffer, program[2].encode(), len(buffer))
            return (0,)

        self.driver.install(pytest.MonkeyPatch())  # finalisers call it when the process ends
        driver.cuInit, driver.cuDeviceGetCount = self.driver.cuInit, self.driver.cuDeviceGetCount
        utils.StridedMemoryView = SimpleNamespace(from_any_interface=lambda array, stream_ptr: array)
        patch.setattr(nvrtc, "nvrtcCreateProgram", create)
        patch.setattr(nvrtc, "nvrtcCompileProgram", compile_)
        patch.setattr(nvrtc, "nvrtcGetProgramLogSize", lambda program: (0, 0))
        patch.setattr(nvrtc, "nvrtcGetProgramLog", lambda program, buffer: (0,))
        patch.setattr(nvrtc, "nvrtcGetCUBINSize", lambda program: (0, len(program[2])))
        patch.setattr(nvrtc, "nvrtcGetCUBIN", copy)
        patch.setattr(nvrtc, "nvrtcDestroyProgram", lambda program: (0,))

    def record(self, multiply: Any, *operands: Any, **options: Any) -> str:
        """Return what a call launches, or its error."""
        self.launches.clear()
        self.driver.calls.clear()
        self.allocated = 0
        try:
            multiply(*operands, **options)
        except (TypeError, ValueError, RuntimeError) as error:
            self.launches.append(f"{type(error).__name__}: {error}")
        return " | ".join(self.launches)


def digest_of(text: str | bytes) -> str:
    """Return the first digits of a digest."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:12]


def parameters(source: str, name: str) -> list[int]:
    """Return the bytes of each parameter of the kernel of this name."""
    listed = re.search(rf"\b{name}\((.*?)\)", source, re.DOTALL)
    assert listed is not None
    with_source = SIZES["Batch"] + OF_SOURCE * ("constexpr int SOURCE = 0;" not in source)
    sizes = SIZES | {"BatchAndSource<SOURCE>": with_source}
    declared = [" ".join(each.split()) for each in listed[1].split(",")]
    kinds = [re.sub(r"const |__grid_constant__ |\w+$", "", each).strip() for each in declared]
    return [8 if "*" in each else sizes[kind] for each, kind in zip(declared, kinds, strict=True)]


def plain(place: int, size: int) -> str:
    """Return an argument as text: small numbers in decimal digits, bits of others."""
    data = ctypes.string_at(place, size)
    value = int.from_bytes(data, "little")
    return str(value) if size <= 8 else ",".join(f"{word:x}" for word in memoryview(data).cast("I"))


def draw(generator: random.Random) -> tuple[list[Array], dict[str, Any], dict[str, Any]]:
    """Return A, B and what is written, the options of `sgemm`, and the arguments of `explain` for dense arrays."""
    pick = generator.choice
    mode = dict(pick(MODES))
    if "rung" in mode:
        mode["rung"] = pick(RUNGS)
    steps = [pick([1, 2, 4, 16, 128]) for _ in range(3)]
    M, N, K = (max(1, int(2 ** generator.uniform(0, 13)) // step * step) for step in steps)
    gram = pick([False] * 7 + [True])
    if gram or "symmetric" in mode:
        N = M
    named = "precision" in mode or "batch_invariant" in mode
    types = [pick([*ITEMS, "float32"]) if named and pick([0, 1]) else "float32" for _ in range(2)]
    batch = pick([(), (), (), (), (pick([2, 3, 17, 300]),), (2, 3), (2, 1, 3, 2)])
    layout = pick(["NN", "NT", "TN", "TT"])
    tidy = pick([False, True])
    a = lay(generator, 1, batch, M, K, layout[0] == "T", types[0], tidy)
    b = a.T if gram else lay(generator, 2, batch if pick([0, 1]) else (), K, N, layout[1] == "T", types[1], tidy)
    c = lay(generator, 3, batch, M, N, not tidy and pick([0, 0, 1]) == 1, "float32", tidy)
    options = mode | {"alpha": pick([1.0, 1.0, 0.5, 0.0]), "beta": pick([0.0, 0.0, 1.0, 0.25]), "C": c}
    if not tidy and pick([0, 0, 0, 1]):
        written = pick([*ITEMS]) if named else "float32"
        options["out"] = lay(generator, 4, batch, M, N, pick([0, 0, 1]) == 1, written, pick([False, True]))
        options["C"] = None if options["beta"] == 0 else c
    asked = {"layout": ("NT" if layout[0] == "N" else "TN") if gram else layout, "batch": math.prod(batch)} | mode
    asked["dtypes"] = "x".join({"float32": "f32", "bfloat16": "bf16"}.get(each.dtype, "f16") for each in (a, b))
    asked["symmetric"] = gram or "symmetric" in mode
    return [a, b], options, {"M": M, "N": N, "K": K, **asked}


def lay(
    generator: random.Random, place: int, batch: Sequence[int], rows: int, columns: int, turned: bool, dtype: str,
    tidy: bool,
) -> Array:  # fmt: skip
    """Return an array somewhere; a `tidy` one is dense and aligned."""
    pick, item = generator.choice, ITEMS[dtype]
    line = rows if turned else columns
    padding = 0 if tidy else pick([0, 0, 1, 2, 4, 32])
    unit = 1 if tidy else pick([1] * 9 + [2])
    inner = (unit, unit * (line + padding)) if turned else (unit * (line + padding), unit)
    step, steps = rows * columns * 2 + padding * (rows + columns) * 2, []
    for extent in reversed(batch):
        steps.insert(0, 0 if not tidy and place < 3 and pick([0, 0, 0, 1]) else step)
        step *= extent
    address = place * SPACE + (0 if tidy else pick([0, 0, item, 2 * item]))
    return Array(address, (*batch, rows, columns), (*steps, *inner), dtype)


def of_device(device: str, part: int, parts: int, count: int) -> Iterator[str]:
    """Yield the lines of a share of the products on one device, and of what they compile."""
    import pytest

    import fastsgemm

    recorder = Recorder(DEVICES[device])
    ranked: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        recorder.install(patch)
        for number in range(part, count, parts):
            generator = random.Random(f"{device} {number}")
            (a, b), options, asked = draw(generator)
            spelled = " ".join(f"{name}={value}" for name, value in options.items() if value is not None)
            mode = mode_of(options, a, b)
            operands: list[Any] = [a, b]
            if mode == "fp16x3" and len(a.shape) == 2 and generator.random() < 0.3:
                side = generator.choice("AB")
                with contextlib.suppress(RuntimeError):  # an older device
                    operands["AB".index(side)] = fastsgemm.split(operands["AB".index(side)], side)
                    mode = f"split {side}"
            what = f"{device} {mode} {number}: {a} {b} {spelled}"
            yield f"call {what} -> {recorder.record(fastsgemm.sgemm, *operands, **options)}"
            yield f"explain {what} -> {explained(DEVICES[device], asked, ranked)}"
        for text, (problem, rung, config) in sorted(ranked.items()):
            M, N, K = problem
            a, b, c = Array(SPACE, (M, K), (K, 1)), Array(2 * SPACE, (K, N), (N, 1)), Array(3 * SPACE, (M, N), (N, 1))
            launched = recorder.record(fastsgemm.sgemm, a, b, C=c, rung=rung, config=config)
            yield f"call {device} config {text} -> {launched}"
    sample = {}
    for digest, (source, name, options) in sorted(recorder.programs.items()):
        constants = " ".join("=".join(each) for each in _CONSTANT.findall(source))
        yield f"kernel {name} {' '.join(options)} {digest} -> {constants}"
        sample.setdefault(name, digest)
    if device == "H200" and part == 0:
        for name, digest in sample.items():
            yield f"cubin {name} {digest} -> {digest_of(compiled(*recorder.programs[digest]))}"


def mode_of(options: dict[str, Any], a: Array, b: Array) -> str:
    """Return the mode of a call, for the summary."""
    words = [str(options.get("precision", "")), "batch_invariant" * ("batch_invariant" in options)]
    words += ["symmetric" * ("symmetric" in options), "gram" * (a.ptr == b.ptr), "rung" * ("rung" in options)]
    words += ["16-bit" * (a.dtype != "float32" or b.dtype != "float32"), "batch" * (len(a.shape) > 2)]
    return "+".join(filter(None, words)) or "plain"


def explained(device: str, asked: dict[str, Any], ranked: dict[str, Any]) -> str:
    """Return what `explain` says, and add the configs that it ranks to `ranked`."""
    import fastsgemm

    try:
        explanation = fastsgemm.explain(**asked, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    data = explanation.json()
    ways = data.pop("ways", [])
    if asked["dtypes"] == "f32xf32" and asked["batch"] == 1 and "batch_invariant" not in asked:
        for way, shown in zip(explanation.ways, ways, strict=True):
            problem = asked["M"], asked["N"], asked["K"]
            ranked.setdefault(f"{shown['rung']} {shown['constants']}", (problem, shown["rung"], way.config))
    seen = " ".join(f"{name}={spelled(value)}" for name, value in data.items() if name not in ("device", "problem"))
    return f"{seen} {len(ways)} ways {digest_of(spelled(ways))} as text {digest_of(str(explanation))}"


def spelled(value: Any) -> str:
    """Return a value of JSON as text, floats with 6 digits."""
    if isinstance(value, dict):
        return "{" + " ".join(f"{name}={spelled(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(spelled, value)) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def compiled(source: str, name: str, options: list[str]) -> bytes:
    """Return the machine code that the real NVRTC makes."""
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [each.encode() for each in options])
    assert int(result) == 0, f"NVRTC refused {name}"
    code = bytes(nvrtc.nvrtcGetCUBINSize(program)[1])
    nvrtc.nvrtcGetCUBIN(program, code)
    return code


def bits(device: str) -> Iterator[str]:
    """Yield digests of results on a simulated device."""
    os.environ |= {"FASTSGEMM_DEVICE": "sim", "FASTSGEMM_SIM_DEVICE": DEVICES[device]}
    import numpy as np

    import fastsgemm

    generator = np.random.default_rng(20)
    asked: list[dict[str, Any]] = [{"rung": rung} for rung in RUNGS if device == "H200" or rung in (1, 9, 10)]
    asked += [{}, {"batch_invariant": True}, {"symmetric": True}]
    asked += [{"precision": "fp16x3"}, {"precision": "fp16x3", "symmetric": True}] if device != "T4" else []
    for number, options in enumerate(asked):
        M, N, K = (40, 40, 70) if "symmetric" in options else (45, 33, 70) if number % 2 else (3, 68, 257)
        a, b, c = (generator.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N), (M, N)))
        a, b = a.copy("CF"[number % 2]), b.copy("CF"[number // 2 % 2])
        try:
            c = fastsgemm.sgemm(a, a.T if "symmetric" in options else b, 0.5, 0.25, c, **options)
            result = digest_of(c.tobytes())
        except Exception as error:  # what the simulated device refuses
            result = f"{type(error).__name__}: {error}"
        yield f"bits {device} {number} {M}x{N}x{K} {options} -> {result}"


def api() -> Iterator[str]:
    """Yield the public names with their parameters, read from the sources, as not every library is installed."""
    for module in ("fastsgemm", "fastsgemm.blas", "fastsgemm.torch", "fastsgemm.jax"):
        tree = parsed(module)
        defined = [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
        exported = next((each.value for each in tree.body if _assigns(each, "__all__")), None)
        for name in ast.literal_eval(exported) if exported else (each for each in defined if each[0] != "_"):
            yield f"api {module}.{name} -> {' '.join(signatures(module, name))}"
    import fastsgemm

    yield f"api fastsgemm.RUNGS themselves -> {fastsgemm.RUNGS}"


def parsed(module: str) -> ast.Module:
    """Return the source of a module."""
    place = SOURCE.joinpath(*module.split("."))
    return ast.parse((place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text("utf-8"))


def _assigns(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)


def signatures(module: str, name: str) -> Iterator[str]:
    """Yield parameters without annotations of a function, or fields and methods of a class, wherever it is defined."""
    tree = parsed(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name and node in tree.body:
            yield f"({_parameters(node)})"
        elif isinstance(node, ast.ClassDef) and node.name == name:
            for base in node.bases:
                yield from signatures(module, ast.unparse(base))
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and (each.name[0] != "_" or each.name == "__init__"):
                    yield f".{each.name}({_parameters(each)})"
                elif isinstance(each, ast.AnnAssign) and ast.unparse(each.target)[0] != "_":
                    yield f".{ast.unparse(each.target)}" + (f"={ast.unparse(each.value)}" if each.value else "")
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("fastsgemm"):
            for each in node.names:
                if (each.asname or each.name) == name and not SOURCE.joinpath(
                    *str(node.module).split("."), name
                ).exists():
                    yield from signatures(str(node.module), each.name)


def _parameters(function: ast.FunctionDef) -> str:
    for each in ast.walk(function.args):
        if isinstance(each, ast.arg):
            each.annotation = None
    return ast.unparse(function.args)


def helps() -> Iterator[str]:
    """Yield what the command line says of itself."""
    commands = re.search(r"\{([\w,-]+)\}", _help("fastsgemm"))
    assert commands is not None
    for words in (["fastsgemm"], *(["fastsgemm", each] for each in commands[1].split(",")), ["fastsgemm.torch"]):
        for number, line in enumerate(_help(*words).splitlines()):
            yield f"help {' '.join(words)} {number} -> {line}"


def _help(*words: str) -> str:
    command = [sys.executable, "-m", *words, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "100"})
    return done.stdout or done.stderr.splitlines()[-1]


def section(name: str, *arguments: Any) -> list[str]:
    """Return the lines of a section, made in a process of its own with nothing of the user's."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as empty:
        os.environ |= {
            "FASTSGEMM_TUNE": "off",
            "FASTSGEMM_DATA_DIR": empty,
            "FASTSGEMM_CACHE_DIR": f"{os.devnull}/none",
        }
        return list(globals()[name](*arguments))


def collect(count: int) -> list[str]:
    """Return all lines of a snapshot with so many products a device."""
    parts = 2
    sections: list[tuple[Any, ...]] = [
        ("of_device", each, part, parts, count) for each in DEVICES for part in range(parts)
    ]
    sections += [("bits", each) for each in DEVICES if each != "H100"] + [("api",), ("helps",)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), spawn, max_tasks_per_child=1) as pool:
        waiting = [pool.submit(section, *each) for each in sections]
        lines = {line: None for each in waiting for line in each.result()}
    return list(lines)  # two processes compile some kernels both


def differences(before: Iterable[str], after: Iterable[str], shown: int) -> list[str]:
    """Return a report of what differs, empty if nothing does: the first lines, and a count by section and mode."""
    old, new = (dict(each.partition(" -> ")[::2] for each in lines) for lines in (before, after))
    changed = [key for key in [*old, *(key for key in new if key not in old)] if old.get(key) != new.get(key)]
    report = []
    for key in changed[:shown]:
        report.append(key)
        for sign, value in (("-", old.get(key)), ("+", new.get(key))):
            report.append(f"  {sign} {'(no such line)' if value is None else value}")
        both = [old.get(key), new.get(key)]
        if None not in both:
            words = [value.split() for value in both]
            for how, i, j, k, m in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
                if how != "equal":
                    report.append(
                        f"    {' '.join(words[0][i:j]) or 'nothing'} -> {' '.join(words[1][k:m]) or 'nothing'}"
                    )
    counts = Counter(
        " ".join(key.split(" ")[:3]) if key.startswith(("call", "explain")) else key.split(" ")[0] for key in changed
    )
    return [*report, *(f"{number} differ: {what}" for what, number in counts.most_common())]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--write", type=Path, metavar="FILE", help="file to write; compressed if its name ends in .gz")
    which.add_argument("--compare", type=Path, metavar="FILE", help="file to compare with")
    parser.add_argument("--count", type=int, default=5000, help="products per device; default: 5000")
    parser.add_argument("--lines", type=int, default=10, help="differences to print; default: 10")
    options = parser.parse_args(arguments)
    path = options.write or options.compare
    open_ = gzip.open if path.suffix == ".gz" else open
    lines = collect(options.count)
    if options.write:
        with open_(path, "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        print(f"{path}: {len(lines)} lines")
        return 0
    with open_(path, "rt", encoding="utf-8") as file:
        report = differences(file.read().splitlines(), lines, options.lines)
    print("\n".join(report) or f"nothing moved: {len(lines)} lines are equal")
    return 1 if report else 0


if __name__ == "__main__":
    sys.exit(main())
