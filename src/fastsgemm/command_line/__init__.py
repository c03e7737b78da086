"""The commands of ``fastsgemm``; `fastsgemm.__main__` runs them as a process."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsgemm import __version__, device, host, preparation, rungs, settings
from fastsgemm.command_line import bars, info
from fastsgemm.command_line import bench_command as bench
from fastsgemm.errors import CompileError, ConfigError, DeviceError, FastsgemmError, ShapeError, UnknownRungError
from fastsgemm.heuristics.explanation import device_at, explain
from fastsgemm.jit import cache
from fastsgemm.measure import contenders, timed_ladder
from fastsgemm.problem import WRITTEN, Problem, parse, require_plain
from fastsgemm.progress import say, show
from fastsgemm.request import resolve
from fastsgemm.rungs import PRECISIONS, RUNGS, Rung
from fastsgemm.switches import base_report
from fastsgemm.tuning.command import DESCRIPTION, add_options, tune_as_asked
from fastsgemm.tuning.plan import tunable

if TYPE_CHECKING:
    from fastsgemm.measure.counts import Table
    from fastsgemm.measure.timed_ladder import Ladder

DEFAULT_SIZE = Problem(2048, 2048, 2048)
SIMULATED_SIZE = Problem(128, 128, 128)  # default on the simulated device, where DEFAULT_SIZE would take an hour

_ERROR = 2  # exit code for an error of the caller or the machine
_WRONG_RESULT = 1  # exit code


def _on_host(rung: Rung | None, a: Any, b: Any, c: Any) -> None:
    """Compute C = A @ B with NumPy, regardless of FASTSGEMM_DEVICE."""
    host.sgemm(resolve(rung), a, b, c, 1.0, 0.0, backend="host")


def _climb(where: str, problem: Problem | None, chosen: Sequence[Rung], overrides: Mapping[str, int]) -> Ladder | Table:
    """Run the ladder on the host, on a device of this machine or on a simulated one, with these constants."""
    if where.lower() == "host":
        if overrides:
            raise DeviceError("--config tries constants of kernels, which do not run on the host; add --device sim")
        with contenders.on_host(problem or DEFAULT_SIZE, _on_host, chosen) as contestants:
            return timed_ladder.climb(contestants)
    if overrides and not chosen:
        raise ConfigError("--config names constants of one kernel; name that, too, as in --rung blocktile_2d")
    if device.is_present(where.lower()):
        with contenders.on_device(problem or DEFAULT_SIZE, chosen, device.ordinal(where), overrides) as contestants:
            return timed_ladder.climb(contestants)
    from fastsgemm.measure import simulated_ladder  # other commands do not need it
    from fastsgemm.sim import Machine

    machine = Machine(None if where.lower() == "sim" else where)
    return simulated_ladder.climb(problem or SIMULATED_SIZE, chosen, machine, overrides=overrides)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command in this process.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: the arguments of the process.

    Returns
    -------
    int
        Exit code: 0, 1 for a wrong result or a figure that is slower, 2 for an error of the caller or the machine, 130
        after Ctrl-C in a tuning run.
    """
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except CompileError as error:
        say(f"fastsgemm: {error}")  # with the lines of NVRTC's log
        return _ERROR
    except FastsgemmError as error:
        say(f"fastsgemm: {' '.join(str(error).split())}")
        return _ERROR


def _overview(options: argparse.Namespace) -> int:
    from fastsgemm.command_line import overview  # other commands need neither these nor the simulator
    from fastsgemm.measure import stored_run

    machine = info.collect(DEFAULT_SIZE)
    if not options.json:
        show(overview.opening(machine), end="\n\n")
    climbs = {"ladder": device.host_backend()}
    if climbs["ladder"] == "host" and machine.nvrtc is not None:  # the host has no rungs to show
        climbs["simulated"] = "sim"
    ladders = {}
    for name, backend in climbs.items():
        if backend == "sim":
            say("fastsgemm: running every rung on a simulated device, for about a minute")
        # On a device use the problem of the shipped ladder, which is shown beside it.
        ladders[name] = result = _climb(backend, stored_run.problem() if backend == "cuda" else None, (), {})
        if not options.json:
            show(overview.result(result), end="\n\n")
    if options.json:
        show(_json({"info": machine.json()} | {name: result.json() for name, result in ladders.items()}))
    else:
        show(overview.closing(machine))
    return 0 if all(result.ok for result in ladders.values()) else _WRONG_RESULT


def _info(options: argparse.Namespace) -> int:
    require_plain(options.size or DEFAULT_SIZE, "info")
    machine = info.collect(options.size or DEFAULT_SIZE)
    show(_json(machine.json()) if options.json else machine.text())
    return 0


def _ladder(options: argparse.Namespace) -> int:
    require_plain(options.size or DEFAULT_SIZE, "the ladder")
    where = options.device or device.host_backend()
    name = where.lower()
    ladder = _climb(where, options.size, options.rung, options.config)
    show(_json(ladder.json()) if options.json else ladder.text())
    if options.plot and not options.json:
        show(f"\n{bars.text(ladder.json())}")
    if name == "host" and not options.json:
        show("\nNo rung runs on the host. On a simulated device all do: fastsgemm ladder --device sim")
    return 0 if ladder.ok else _WRONG_RESULT


def _explain(options: argparse.Namespace) -> int:
    explanations = [
        explain(
            p.M, p.N, p.K, p.layout, options.rung, options.device, options.precision, options.batch_invariant, p.batch,
            options.symmetric or p.symmetric, str(p.dtypes), p.ragged.extent,
        )
        for p in options.size
    ]  # fmt: skip
    if options.json:
        data = [explanation.json() for explanation in explanations]
        show(_json(data if len(data) > 1 else data[0]))
    else:
        show("\n\n".join(map(str, explanations)))
    return 0


def _predict(options: argparse.Namespace) -> int:
    from fastsgemm.measure import prediction  # other commands need no stored ratios

    predicted = prediction.predict(device_at(options.device), base_report.read(options.file))
    show(_json(predicted.json()) if options.json else predicted)
    return 0


def _prepare(options: argparse.Namespace) -> int:
    reports = []
    for M, N, K, layout, batch, dtypes, ragged in [preparation.parse(size) for size in options.size]:
        report = preparation.prepare(
            M, N, K, layout, batch=batch, rung=options.rung, precision=options.precision,
            batch_invariant=options.batch_invariant, split=options.split, source=options.source,
            symmetric=options.symmetric, dtypes=dtypes, ragged=ragged, device=options.device,
            stored=True,  # because this process makes no calls
            check=options.check,
        )  # fmt: skip
        reports.append(dataclasses.asdict(report))
        if not options.json:
            show(report)
    if options.json:
        show(_json(reports))
    return int(options.check and any(report["compiled"] for report in reports))


def _pack(options: argparse.Namespace) -> int:
    from fastsgemm.kernel_package import build  # other commands do not need it

    devices = build.devices_of(options.arch) if options.arch else [device_at(options.device)]
    asked = [
        preparation.asked(
            M, N, K, layout, batch, options.rung, options.precision, options.batch_invariant, options.split,
            options.symmetric, dtypes, ragged,
        )
        for M, N, K, layout, batch, dtypes, ragged in map(preparation.parse, options.size)
    ]  # fmt: skip
    built = build.build(devices, options.out, asked, options.source)
    show(_json(dataclasses.asdict(built)) if options.json else built)
    return 0


def _cache(options: argparse.Namespace) -> int:
    folder = cache.required_folder()
    try:
        kernels, size = cache.entries()
        if options.clear:
            cache.clear()
    except OSError as error:
        verb = "emptied" if options.clear else "read"
        raise DeviceError(f"the kernel cache {folder} could not be {verb}: {error.strerror or error}") from error
    verb = "removed" if options.clear else "holds"
    text = f"{folder}: {verb} {kernels} kernel{'s' * (kernels != 1)}, {size / 1e6:.1f} MB"
    data = {"folder": str(folder), "kernels": kernels, "bytes": size, "cleared": options.clear}
    show(_json(data) if options.json else text)
    return 0


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, allow_nan=False)


def _problem(text: str) -> Problem:
    try:
        return parse(text)
    except ShapeError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _rung(text: str) -> Rung:
    try:
        return rungs.find(int(text) if text.isdecimal() else text)
    except UnknownRungError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _constants(text: str) -> dict[str, int]:
    pairs = [re.fullmatch(r"\s*(\w+)=(-?\d+)\s*", part) for part in text.split(",")]
    constants = {pair[1]: int(pair[2]) for pair in pairs if pair is not None}
    if len(constants) < len(pairs):
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER,..., each name once, such as BM=64,BN=64, got {text!r}")
    return constants


_ONE_PRODUCT = """\
A problem is written N, M,N,K or M,N,K,LAYOUT. LAYOUT is NN, NT, TN or TT: A and B row-major (N) or column-major (T); or
it is SYM: NT, and B is A transposed."""
_BATCHES = """
With ,xCOUNT after it, it is a batch: so many such products in one call, as in 64,64,64,x512. Before that may stand the
types of A and B, f32, bf16 or f16, as in 64,64,64,NT,bf16xf32; without them both are float32. With ,mCOUNT, ,nCOUNT or
,kCOUNT in place of ,xCOUNT, M, N or K is divided into so many groups, as by grouped_mm: 4096,1408,2048,m64."""
_DEVICES = """
A device in this machine is written cuda or cuda:1. Any other device is written by name or a part of it, such as H200,
or by architecture, such as sm_90.
@FILE in place of arguments reads them from a file, such as python -m fastsgemm.torch --sizes FILE writes."""
_EPILOG = _ONE_PRODUCT + _BATCHES + _DEVICES


class _Parser(argparse.ArgumentParser):
    """A parser that reads arguments from ``@FILE``, one a line, past empty lines and those that begin with #."""

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        line = arg_line.strip()
        return [] if not line or line.startswith("#") else [line]


def _parser() -> argparse.ArgumentParser:
    simulated = SIMULATED_SIZE
    parser = _Parser(
        prog="fastsgemm",
        fromfile_prefix_chars="@",
        description="float32 matrix multiplication for NVIDIA GPUs. Without a command: show what this machine has, run "
        "the ladder of kernels, and show it beside the shipped result. Without a device: show the shipped result, and "
        f"count at {simulated.M} x {simulated.N} x {simulated.K} what the kernels do on a simulated device.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"fastsgemm {__version__}")
    parser.set_defaults(json=False)
    _finish_parser(parser, _overview)
    names = "{info,ladder,explain,predict,tune,prepare,pack,bench,cache}"
    commands = parser.add_subparsers(title="commands", metavar=names)
    adding = (
        _add_info,
        _add_ladder,
        _add_explain,
        _add_predict,
        _add_tune,
        _add_prepare,
        _add_pack,
        _add_bench,
        _add_cache,
    )
    for add in adding:
        add(commands)
    return parser


def _add_info(commands: Any) -> None:
    parser = commands.add_parser(
        "info", help="show devices, driver, NVRTC, PyTorch, kernel cache and the tuning record in use", epilog=_EPILOG
    )
    _add_size(parser, f"the problem whose tuning record is shown; default {DEFAULT_SIZE.N}")
    _finish_parser(parser, _info)


def _add_ladder(commands: Any) -> None:
    parser = commands.add_parser(
        "ladder",
        help="check every rung against float64, then time it and cuBLAS",
        description="Check every rung against float64, compare their bits, then time each in turns with cuBLAS, which "
        "needs PyTorch or CuPy. Without a device: time NumPy's product through sgemm. On a simulated device: run every "
        "rung and count its memory accesses and instructions. The operands are float32, and no batch.",
        epilog=_ONE_PRODUCT + _DEVICES,
    )
    _add_size(
        parser,
        f"the problem; default {DEFAULT_SIZE.N}, on a simulated device {SIMULATED_SIZE.N}",
        written="M,N,K[,LAYOUT]",
    )
    names = ", ".join(map(str, RUNGS))
    parser.add_argument(
        "--rung",
        action="append",
        type=_rung,
        default=[],
        help=f"run this rung, by name or number; repeatable ({names})",
    )
    parser.add_argument(
        "--config",
        type=_constants,
        default={},
        metavar="NAME=NUMBER,...",
        help="try these constants in place of those of the tuning database, such as BM=64,BN=64; name the --rung, too",
    )
    parser.add_argument(
        "--device",
        help="where to run: cuda or cuda:1; host for NumPy; sim for the simulated device in FASTSGEMM_SIM_DEVICE "
        f'(default "{settings.SIM_DEVICE.default}"); or the name or architecture of a device to simulate. '
        "Default: FASTSGEMM_DEVICE, else the first device, else host",
    )
    parser.add_argument("--plot", action="store_true", help="also draw the rates, or the simulated counts, as bars")
    _finish_parser(parser, _ladder)


def _add_explain(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="show which constants a problem gets, and why",
        description="Show which constants a problem gets on a device, and why.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--size", action="append", required=True, type=_problem, metavar=WRITTEN, help="the problem; repeatable"
    )
    _add_call_options(parser)
    _add_device(parser)
    _finish_parser(parser, _explain)


def _add_predict(commands: Any) -> None:
    parser = commands.add_parser(
        "predict",
        help="predict what a program's products would take, ours and cuBLAS's",
        description="Predict what the products of a program would take on a device, ours and cuBLAS's. cuBLAS's times "
        "follow from ours by the measured ratios of the problems nearest to each size.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="the products: what python -m fastsgemm.torch --sizes FILE has written"
    )
    _add_device(parser)
    _finish_parser(parser, _predict)


def _add_tune(commands: Any) -> None:
    parser = commands.add_parser(
        "tune",
        help="search the fastest constants on this device (also: python -m fastsgemm.tune)",
        description=DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--size",
        action="append",
        type=_problem,
        default=[],
        metavar=WRITTEN,
        help="tune this problem; repeatable; default: the standard set of each rung",
    )
    parser.add_argument("--rung", type=_rung, help=f"the rung: {', '.join(tunable())}; default: all of them")
    add_options(parser)
    _finish_parser(parser, tune_as_asked)


def _add_prepare(commands: Any) -> None:
    parser = commands.add_parser(
        "prepare",
        help="compile the kernels of some problems before their first call",
        description="Compile the kernels of some problems into the kernel cache, on all cores, so that no process has "
        "to wait for a compilation later, and the launcher of PyTorch's products if PyTorch is installed with CUDA. "
        "The operands are taken to be dense.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--size",
        action="append",
        required=True,
        metavar=WRITTEN,
        help="prepare this problem; a number may be a range: 1..8192,4096,4096,NT; repeatable",
    )
    _add_call_options(parser)
    _add_device(parser)
    _add_operand_options(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="only tell which kernels are not stored, without NVRTC; the exit status is 1 if any is not",
    )
    _finish_parser(parser, _prepare)


def _add_pack(commands: Any) -> None:
    parser = commands.add_parser(
        "pack",
        help="build a package of compiled kernels, for machines without NVRTC",
        description="Build a wheel of compiled kernels, on all cores and without a GPU. Installed beside fastsgemm, it "
        "is where calls find their kernels without NVRTC. Without --size it has the kernels of a census: those that "
        "95 % of regular random calls find all of theirs in. With --size it has the kernels of these problems alone, "
        "whose operands are taken to be dense.",
        epilog=_EPILOG,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--arch", help="the architecture, such as sm_90: for all known devices of it")
    where.add_argument("--device", help="for this device alone")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="where to write the wheel; default: the current folder",
    )
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar=WRITTEN,
        help="a problem; a number may be a range: 1..8192,4096,4096,NT; repeatable",
    )
    _add_call_options(parser)
    _add_operand_options(parser)
    _finish_parser(parser, _pack)


def _add_bench(commands: Any) -> None:
    parser = commands.add_parser(
        "bench", help="time sgemm beside cuBLAS on many problems", description=bench.DESCRIPTION, epilog=_EPILOG
    )
    bench.add_options(parser, _problem)
    _finish_parser(parser, bench.bench_as_asked)


def _add_cache(commands: Any) -> None:
    parser = commands.add_parser("cache", help="show or empty the folder of compiled kernels")
    parser.add_argument("--clear", action="store_true", help="delete all compiled kernels; calls compile them again")
    _finish_parser(parser, _cache)


def _finish_parser(parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int]) -> None:
    parser.set_defaults(command=command)
    # No default here: the default of a command would overwrite a --json before it.
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def _add_call_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a call of `sgemm`."""
    parser.add_argument("--rung", type=_rung, help="the rung; default: the rung that sgemm picks")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=PRECISIONS[0],
        help="the precision of sgemm; with fp16x3, rung 11 is used where it is quicker; default %(default)s",
    )
    parser.add_argument("--batch-invariant", action="store_true", help="the order of summation that depends on K alone")
    parser.add_argument(
        "--symmetric", action="store_true", help="the result is symmetric; with NT and TN, B is A transposed"
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="the device; default cuda, the first one in this machine")


def _add_operand_options(parser: argparse.ArgumentParser) -> None:
    """Add the options on the operands of prepared problems."""
    parser.add_argument(
        "--split", choices=("A", "B", "AB"), default="", help="operands that were split before, by fastsgemm.split"
    )
    parser.add_argument(
        "--source",
        choices=preparation.SOURCES,
        default="",
        help="what C is in calls that also have out; a bias is a row",
    )


def _add_size(parser: argparse.ArgumentParser, text: str, written: str = WRITTEN) -> None:
    parser.add_argument("--size", type=_problem, metavar=written, help=text)
