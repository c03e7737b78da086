#!/usr/bin/env python3
"""Write down what fastsgemm does, so that a refactoring can show that nothing moved.

    tools/snapshot.py --write before.txt.gz              on the commit before; two minutes on two cores
    tools/snapshot.py --compare before.txt.gz            on the commit after; prints what differs, and then exits with 1
    tools/snapshot.py --compare before.txt.gz --quick    a tenth of it

Each line states one fact:

- ``call``: what `sgemm` launches on an H200, an H100, an A100 and a T4. The products are drawn from a fixed seed, in
  all modes, types, layouts, strides and alignments; and each config that `explain` ranks is launched once. NVRTC and
  the driver only record, so a line has kernels, grids, blocks, shared memory and all arguments as the driver gets them.
  Every operand has a fixed address.
- ``explain``: what `explain` says of the same products in dense arrays: rung, constants, rule and times.
- ``kernel``: the digest of the complete source and the options that NVRTC gets, and the constants of that source. Equal
  sources give equal machine code, so only one kernel of each file is compiled, for sm_90: that is ``cubin``.
- ``bits``: the digest of a result on the simulated device.
- ``api`` and ``help``: public names with their parameters, and what the command line prints.

A snapshot outlives the structure of the package, because this imports nothing but `sgemm`, `split` and `explain`.
"""

from __future__ import annotations

import argparse
import ast
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.bindings import nvrtc
from cuda.core import utils

import fastsgemm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
from fake_driver import FakeDriver  # noqa: E402

COUNT = 5000  # products a device
DEVICES = {"H200": "NVIDIA H200", "H100": "NVIDIA H100 80GB HBM3", "A100": "NVIDIA A100-SXM4-40GB", "T4": "Tesla T4"}
RUNGS = (*range(1, 12), "skinny_in_order")
CONFIGS = {rung.name: rung.config for rung in fastsgemm.RUNGS[:-1]}  # rung 11 has several kernels
PRECISE, IN_ORDER, SYMMETRIC = {"precision": "fp16x3"}, {"batch_invariant": True}, {"symmetric": True}
MODES: tuple[dict[str, Any], ...] = (
    {}, {}, {"precision": "ieee"}, PRECISE, PRECISE, IN_ORDER, SYMMETRIC, SYMMETRIC | PRECISE, SYMMETRIC | IN_ORDER,
    {"rung": None},  # of any rung
)  # fmt: skip
TYPES = {"float32": ("f32", 4), "bfloat16": ("bf16", 2), "float16": ("f16", 2)}  # as `explain` calls them, and bytes
APART = 1 << 40  # bytes from the address of one operand to that of the next
PARAMETERS = {"int": 4, "float": 4, "long long": 8, "Batch": 88, "TensorMap": 128}  # bytes
REAL = SimpleNamespace(**vars(nvrtc))
ERRORS = (TypeError, ValueError, RuntimeError)


def array(place: int, shape: Sequence[int], strides: Sequence[int], dtype: str = "float32") -> SimpleNamespace:
    """Return a device array without memory, as `sgemm` and `Recorder` take it."""
    return SimpleNamespace(
        ptr=place, shape=tuple(shape), strides=tuple(strides), dtype=dtype, device_id=0, readonly=False,
        __dlpack__=None, __dlpack_device__=lambda: (2, 0),  # CUDA
    )  # fmt: skip


def written(value: Any) -> str:
    """Return an array, a number or what else a call is given, as text."""
    if not isinstance(value, SimpleNamespace):
        return str(value)
    return f"{value.dtype}{list(value.shape)}/{list(value.strides)}@{value.ptr % 16}".replace(" ", "")


class Recorder(FakeDriver):  # type: ignore[misc]  # tests have no types
    """A driver that writes down launches, and an NVRTC whose machine code is the digest of a source.

    It takes the places of both for the rest of the process.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.programs: dict[str, list[str]] = {}  # by digest: source, name and options
        self.codes: list[str] = []  # digests, of what is loaded
        self.done: list[str] = []  # by the call
        traits = fastsgemm.explain(64, 64, 64, device=device).device
        major, minor = divmod(int(traits.arch.removeprefix("sm_")), 10)
        known = {"MAJOR": major, "MINOR": minor, "OPTIN": traits.shared_limit, "COUNT": traits.multiprocessors}
        self.cuInit = lambda flags: (0,)
        self.cuDeviceGetCount = lambda: (0, 1)
        self.cuDeviceGetName = lambda length, device: (0, traits.name.encode() + b"\0")
        self.cuDeviceGetAttribute = lambda which, device: (0, known[which.name.rpartition("_")[2]])
        self.cuMemFreeAsync = lambda address, handle: (0,)
        self.install(SimpleNamespace(setattr=setattr))
        utils.StridedMemoryView = SimpleNamespace(from_any_interface=lambda array, stream_ptr: array)
        nvrtc.nvrtcCreateProgram = lambda source, name, *headers: (0, [source.decode(), name.decode()])
        nvrtc.nvrtcCompileProgram = self._compile
        nvrtc.nvrtcGetProgramLogSize = lambda program: (0, 0)
        nvrtc.nvrtcGetProgramLog = lambda program, buffer: (0,)
        nvrtc.nvrtcGetCUBINSize = lambda program: (0, len(program[0]))
        nvrtc.nvrtcGetCUBIN = lambda program, buffer: (ctypes.memmove(buffer, program[0], len(buffer)) * 0,)
        nvrtc.nvrtcDestroyProgram = lambda program: (0,)

    def _compile(self, program: list[Any], count: int, options: list[bytes]) -> tuple[int]:
        given = [*program, *(each.decode() for each in options)]
        self.programs[digest_of(repr(given))] = given
        program[:] = [digest_of(repr(given)).encode()]
        return (0,)

    def cuMemAllocFromPoolAsync(self, size: int, pool: Any, handle: int) -> tuple[int, int]:
        self.done.append(f"allocate {size}")
        return 0, (16 + len(self.done)) * APART

    def cuLibraryLoadData(self, code: bytes, *options: Any) -> tuple[int, int]:
        self.codes.append(code.decode())
        return 0, len(self.codes)

    def cuLaunchKernelEx(self, config: Any, function: Any, pointers: int, extra: Any) -> tuple[int]:
        digest = self.codes[int(function) // 10 - 1]  # by how `FakeDriver` counts
        sizes = parameters(*self.programs[digest][:2])
        places = (ctypes.c_void_p * len(sizes)).from_address(int(pointers))
        words = [np.frombuffer(ctypes.string_at(place, size), "u4") for place, size in zip(places, sizes, strict=True)]
        values = [str(each.view("u8" if len(each) == 2 else "u4").tolist())[1:-1].replace(" ", "") for each in words]
        how = f"{config.gridDimX},{config.gridDimY},{config.gridDimZ};{config.blockDimX};{config.sharedMemBytes}"
        early = ";early" * bool(config.numAttrs)
        self.done.append(f"{self.programs[digest][1]}#{digest}<{how}{early}>({' '.join(values)})")
        return (0,)

    def launched(self, multiply: Callable[..., Any], *operands: Any, **options: Any) -> str:
        """Return what a call launches, or its error."""
        self.done, self.calls = [], []
        try:
            multiply(*operands, **options)
        except ERRORS as error:
            self.done.append(f"{type(error).__name__}: {error}")
        return " | ".join(self.done)


def digest_of(what: str | bytes) -> str:
    """Return the first digits of a digest."""
    return hashlib.sha256(what.encode() if isinstance(what, str) else what).hexdigest()[:12]


def parameters(source: str, name: str) -> list[int]:
    """Return the bytes of each parameter of a kernel."""
    last = 88 if "constexpr int SOURCE = 0;" in source else 136
    grouped = 0 if "constexpr int GROUPED = 0;" in source else 16
    sizes = PARAMETERS | {"BatchAndSource<SOURCE>": last, "GroupedBatch<SOURCE, GROUPED>": last + grouped}
    sizes["LastArgument<GROUPED>::Type"] = 40 if grouped else 8
    declared = re.split(r",(?![^<]*>)", re.findall(rf"\b{name}\((.*?)\)", source, re.DOTALL)[0])
    types = [re.sub(r"const |__grid_constant__ |\w+$", "", " ".join(each.split())).strip() for each in declared]
    return [8 if "*" in each else sizes[type_] for each, type_ in zip(declared, types, strict=True)]


def draw(generator: random.Random) -> SimpleNamespace:
    """Return a call of `sgemm`: `operands` and `options`; and what `explain` is `asked`."""
    pick = generator.choice
    mode, gram, tidy, layout = dict(pick(MODES)), pick([0] * 7 + [1]), pick([0, 1]), pick(["NN", "NT", "TN", "TT"])
    mode |= {"rung": pick(RUNGS)} if "rung" in mode else {}
    steps = generator.choices([1, 2, 4, 16, 128], k=3)
    M, N, K = (max(1, int(2 ** generator.uniform(0, 13)) // step * step) for step in steps)
    N = M if gram or "symmetric" in mode else N
    batch = pick([(), (), (), (), (pick([2, 3, 17, 300]),), (2, 3), (2, 1, 3, 2)])
    of_a = of_b = of_out = "float32"
    if ("precision" in mode or "batch_invariant" in mode) and pick([0, 1]):
        of_a, of_b, of_out = (pick([*TYPES]) for _ in range(3))
        of_b = of_a if "symmetric" in mode or pick([0, 1]) else of_b

    def lay(place: int, shape: tuple[int, ...], turned: bool, dtype: str) -> SimpleNamespace:
        """Return an array somewhere: dense and aligned if it is `tidy`."""
        item, (*extents, rows, columns) = TYPES[dtype][1], shape
        padding, unit = (0, 1) if tidy else (pick([0, 0, 1, 2, 4, 32]), pick([1] * 9 + [2]))
        line = unit * ((rows if turned else columns) + padding)
        steps = [line * max(rows, columns)]
        for extent in reversed(extents):
            steps.insert(0, steps[0] * extent)
        repeats = not tidy and place < 3 and pick([0, 0, 0, 1])
        address = place * APART + (0 if tidy else pick([0, 0, item, 2 * item]))
        steps = [0] * len(extents) if repeats else steps[1:]
        return array(address, shape, (*steps, *((unit, line) if turned else (line, unit))), dtype)

    a = lay(1, (*batch, M, K), layout[0] == "T", of_a)
    if gram:
        b = array(a.ptr, (*batch, K, M), (*a.strides[:-2], *a.strides[:-3:-1]), a.dtype)
        layout = "NT" if layout[0] == "N" else "TN"
    else:
        b = lay(2, (*(batch if pick([0, 1]) else ()), K, N), layout[1] == "T", of_b)
    C = lay(3, (*batch, M, N), not tidy and pick([0, 0, 1]), "float32")
    options = mode | {"alpha": pick([1.0, 1.0, 0.5, 0.0]), "beta": pick([0.0, 0.0, 1.0, 0.25]), "C": C}
    if not tidy and pick([0, 0, 0, 1]):
        options["out"] = lay(4, (*batch, M, N), pick([0, 0, 1]), of_out)
        options["C"] = C if options["beta"] else None
    dtypes = f"{TYPES[a.dtype][0]}x{TYPES[b.dtype][0]}"
    asked = mode | {"M": M, "N": N, "K": K, "layout": layout, "batch": math.prod(batch), "dtypes": dtypes}
    asked["symmetric"] = bool(gram or "symmetric" in mode)
    named = {"gram": gram} | {f"{name}={value}": name != "rung" for name, value in mode.items()}
    named |= {"rung": "rung" in mode, "16-bit": dtypes != "f32xf32", "batch": batch}
    name = "+".join(name for name, holds in named.items() if holds) or "plain"
    return SimpleNamespace(operands=[a, b], options=options, asked=asked, mode=name)


def products(device: str, part: int, parts: int, count: int) -> Iterator[str]:
    """Yield the lines of a share of the products on one device, and of what they compile."""
    recorder, ranked = Recorder(DEVICES[device]), {}
    for number in range(part, count, parts):
        case = draw(random.Random(f"{device} {number}"))
        given = " ".join(f"{name}={written(value)}" for name, value in case.options.items() if value is not None)
        what = f"{device} {case.mode} {number}: {' '.join(map(written, case.operands))} {given}"
        if number % 3 == 0 and "fp16x3" in what and case.asked["batch"] == 1 and device != "T4":
            side = number % 2
            case.operands[side] = fastsgemm.split(case.operands[side], "AB"[side])
            what += f" {'AB'[side]} is split"
        yield f"call {what} -> {recorder.launched(fastsgemm.sgemm, *case.operands, **case.options)}"
        try:
            explanation = fastsgemm.explain(**case.asked, device=DEVICES[device])
        except ERRORS as error:
            yield f"explain {what} -> {type(error).__name__}: {error}"
            continue
        data = explanation.json()
        ways = data.pop("ways", [])
        text = f"{len(ways)} ways {digest_of(spelled(ways))} as text {digest_of(str(explanation))}"
        yield f"explain {what} -> {spelled(data)} {text}"
        if case.asked["batch"] == 1 and case.asked["dtypes"] == "f32xf32" and "batch_invariant" not in case.asked:
            for way in (each for each in ways if each["rung"] in CONFIGS):
                ranked.setdefault(f"{way['rung']} {spelled(way['constants'])}", (case.asked, way))
    if count == COUNT:
        for text, (asked, way) in ranked.items():
            M, N, K, rung = *(asked[name] for name in "MNK"), way["rung"]
            a, b, c = array(APART, (M, K), (K, 1)), array(2 * APART, (K, N), (N, 1)), array(3 * APART, (M, N), (N, 1))
            config = CONFIGS[rung].from_constants(way["constants"])
            launched = recorder.launched(fastsgemm.sgemm, a, b, C=c, rung=rung, config=config)
            yield f"call {device} config {M}x{N}x{K} {text} -> {launched}"
    one_each = {}
    for digest, (source, name, *options) in sorted(recorder.programs.items()):
        constants = re.findall(r"^constexpr int (\w+ = -?\d+);", source, re.MULTILINE)
        yield f"kernel {name} {' '.join(options)} {digest} -> {', '.join(constants)}"
        one_each[name] = digest
    for name, digest in one_each.items() if (device, part, count) == ("H200", 0, COUNT) else ():
        yield f"cubin {name} {digest} -> {digest_of(compiled(*recorder.programs[digest]))}"


def spelled(value: Any) -> str:
    """Return a value of JSON as text, floats with 6 digits."""
    if isinstance(value, dict):
        return " ".join(f"{name}={spelled(each)}" for name, each in value.items())
    if isinstance(value, list):
        return f"[{'; '.join(map(spelled, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def compiled(source: str, name: str, *options: str) -> bytes:
    """Return the machine code that the real NVRTC makes."""
    _, program = REAL.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    (result,) = REAL.nvrtcCompileProgram(program, len(options), [each.encode() for each in options])
    assert int(result) == 0, f"NVRTC refused {name}"
    code = bytes(REAL.nvrtcGetCUBINSize(program)[1])
    REAL.nvrtcGetCUBIN(program, code)
    return code


def bits(device: str) -> Iterator[str]:
    """Yield digests of results on a simulated device."""
    os.environ |= {"FASTSGEMM_DEVICE": "sim", "FASTSGEMM_SIM_DEVICE": DEVICES[device]}
    generator = np.random.default_rng(20)
    modes = [{"rung": rung} for rung in RUNGS if device == "H200" or rung in (1, 9, 10)]
    modes += [each for each in MODES[1:-1] if device != "T4" or "precision" not in each]
    for number, mode in enumerate(modes):
        M, N, K = (40, 40, 70) if "symmetric" in mode else (45, 33, 70) if number % 2 else (3, 68, 257)
        a, b, c = (generator.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N), (M, N)))
        a, b = a.copy("CF"[number % 2]), a.T if "symmetric" in mode else b.copy("CF"[number // 2 % 2])
        try:
            result = digest_of(fastsgemm.sgemm(a, b, 0.5, 0.25, c, **mode).tobytes())
        except Exception as error:  # what the simulated device refuses
            result = f"{type(error).__name__}: {error}"
        yield f"bits {device} {number} {M}x{N}x{K} {spelled(mode)} -> {result}"


def interface() -> Iterator[str]:
    """Yield the public names, read from the sources because no environment has all libraries, and the help texts."""
    for module in ("fastsgemm", "fastsgemm.blas", "fastsgemm.torch", "fastsgemm.jax"):
        tree = parsed(module)
        listed = [each.value for each in tree.body if isinstance(each, ast.Assign) and "__all__" in ast.unparse(each)]
        defined = [each.name for each in tree.body if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]
        for name in ast.literal_eval(listed[0]) if listed else defined:
            yield f"api {module}.{name} -> {' '.join(signatures(module, name))}"
    yield f"api fastsgemm.RUNGS themselves -> {fastsgemm.RUNGS}"
    commands = re.findall(r"\{([\w,-]+)\}", help_of("fastsgemm"))[0].split(",")
    for words in (["fastsgemm"], *(["fastsgemm", each] for each in commands), ["fastsgemm.torch"]):
        for number, line in enumerate(help_of(*words).splitlines()):
            yield f"help {' '.join(words)} {number} -> {line}"


def parsed(module: str) -> ast.Module:
    """Return the syntax tree of a module, whose functions have no annotations."""
    place = ROOT.joinpath("src", *module.split("."))
    tree = ast.parse((place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
    return tree


def signatures(module: str, name: str) -> Iterator[str]:
    """Yield the parameters of a function, or the fields and methods of a class, from the module that defines it."""
    tree = parsed(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in (each.asname or each.name for each in node.names):
            if str(node.module).startswith("fastsgemm"):
                yield from signatures(str(node.module), name)
        elif node in tree.body and getattr(node, "name", None) == name:
            for base in getattr(node, "bases", ()):
                yield from signatures(module, ast.unparse(base))
            for each in [node] if isinstance(node, ast.FunctionDef) else getattr(node, "body", ()):
                if isinstance(each, ast.FunctionDef) and (each.name[0] != "_" or each.name == "__init__"):
                    yield f"{each.name}({ast.unparse(each.args)})"
                elif isinstance(each, ast.AnnAssign) and ast.unparse(each.target)[0] != "_":
                    yield ast.unparse(each.target) + (f"={ast.unparse(each.value)}" if each.value else "")


def help_of(*words: str) -> str:
    """Return the help text of a command."""
    command, environment = [sys.executable, "-m", *words, "--help"], os.environ | {"COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stdout or done.stderr.splitlines()[-1]


def section(make: Callable[..., Iterator[str]], *arguments: Any) -> list[str]:
    """Return the lines of a section, made in a process of its own with nothing of the user's."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as empty:
        os.environ |= {"FASTSGEMM_TUNE": "off", "FASTSGEMM_DATA_DIR": empty, "FASTSGEMM_CACHE_DIR": "/dev/null/none"}
        return list(make(*arguments))


def collect(count: int) -> dict[str, str]:
    """Return a snapshot of so many products a device: each fact by what it is about."""
    sections: list[tuple[Any, ...]] = [(products, each, part, 2, count) for each in DEVICES for part in range(2)]
    sections += [(bits, each) for each in DEVICES if each != "H100"] + [(interface,)]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        waiting = [pool.submit(section, *each) for each in sections]
        return facts(line for each in waiting for line in each.result())


def facts(lines: Iterable[str]) -> dict[str, str]:
    """Return what lines say, by what they are about."""
    return dict(each.rstrip("\n").split(" -> ", 1) for each in lines)  # type: ignore[arg-type]  # pairs


def differences(before: dict[str, str], after: dict[str, str], shown: int) -> list[str]:
    """Return the first facts that differ, then how many of each kind do; nothing if none does."""
    changed = [key for key in before | after if before.get(key) != after.get(key)]
    report = []
    for key in changed[:shown]:
        words = zip_longest(*(facts.get(key, "(nothing)").split(" ") for facts in (before, after)), fillvalue="")
        report += [key, *(f"    {old} -> {new}" for old, new in words if old != new)]
    kinds = Counter(" ".join(key.split(" ")[: 3 if key.startswith(("call", "explain")) else 2]) for key in changed)
    return [*report, *(f"{number} differ: {kind}" for kind, number in kinds.most_common())]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--write", type=Path, metavar="FILE", help="the file to write, compressed")
    which.add_argument("--compare", type=Path, metavar="FILE", help="the file to compare with")
    parser.add_argument("--quick", action="store_true", help="compare a tenth of the products")
    parser.add_argument("--lines", type=int, default=10, help="differences to print; default: 10")
    options = parser.parse_args(arguments)
    after = collect(COUNT // 10 if options.quick else COUNT)
    if options.write:
        with gzip.open(options.write, "wt", encoding="utf-8") as file:
            file.writelines(f"{key} -> {value}\n" for key, value in after.items())
        return 0
    with gzip.open(options.compare, "rt", encoding="utf-8") as file:
        before = facts(file)
    if options.quick:  # of what depends on the number of products, what is here
        before = {
            key: value for key, value in before.items() if key in after or key.startswith(("bits", "api", "help"))
        }
    report = differences(before, after, options.lines)
    print("\n".join(report) or f"nothing moved: {len(after)} facts are the same")
    return 1 if report else 0


if __name__ == "__main__":
    sys.exit(main())
