"""The command line: ``python -m fastsgemm``, also installed as ``fastsgemm``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fastsgemm import __version__, device, rungs
from fastsgemm.errors import DeviceError, FastsgemmError, UnknownRungError
from fastsgemm.jit import cache
from fastsgemm.ladder import contenders, info, measured
from fastsgemm.problem import Problem
from fastsgemm.rungs import RUNGS, Rung
from fastsgemm.rungs import ladder as ladder_of

DEFAULT_SIZE = Problem(2048, 2048, 2048)
SIMULATED_SIZE = Problem(128, 128, 128)  # of the ladder on the simulated device: seconds, where the above takes an hour

_USAGE_ERROR = 2  # the exit code for what the caller can mend
_WRONG_RESULT = 1


class Climbed(Protocol):
    """What a ladder found: `ladder.Ladder`, or anything else that can be shown."""

    @property
    def ok(self) -> bool:
        """Whether every result was right."""

    def text(self) -> str:
        """Return it for people."""

    def json(self) -> dict[str, Any]:
        """Return it for machines."""


def _on_device(problem: Problem, chosen: Sequence[Rung]) -> Climbed:
    with contenders.on_device(problem, chosen or ladder_of(problem.M, problem.N)) as place:
        return measured.climb(place)


def _on_host(problem: Problem, chosen: Sequence[Rung]) -> Climbed:
    with contenders.on_host(problem, chosen) as place:
        return measured.climb(place)


def _on_simulation(problem: Problem, chosen: Sequence[Rung]) -> Climbed:
    from fastsgemm.ladder import simulated  # no other command needs it

    return simulated.climb(problem, chosen or ladder_of(problem.M, problem.N))


# How the ladder is climbed, by the value of FASTSGEMM_DEVICE or --device that asks for it.
_LADDERS: dict[str, Callable[[Problem, Sequence[Rung]], Climbed]] = {
    "cuda": _on_device,
    "host": _on_host,
    "sim": _on_simulation,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of the process.

    Returns
    -------
    int
        Exit code: 0, 1 for a wrong result, 2 for an error of the caller or the machine.
    """
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except FastsgemmError as error:
        print(f"fastsgemm: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except BrokenPipeError:  # whoever reads, head for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains as it ends
        return 0


def _everything(options: argparse.Namespace) -> int:
    found = info.collect(DEFAULT_SIZE)
    if not options.json:
        print(found.text(), end="\n\n", flush=True)
    climbs = {"ladder": device.host_backend()}
    if climbs["ladder"] == "host" and found.nvrtc is not None:  # no device to see the rungs on
        climbs["simulated"] = "sim"
    ladders = {}
    for name, backend in climbs.items():
        ladders[name] = climbed = _LADDERS[backend](_default_size(backend), ())
        if not options.json:
            print(climbed.text(), end="\n\n", flush=True)
    if options.json:
        _print_json({"info": found.json()} | {name: climbed.json() for name, climbed in ladders.items()})
    return 0 if all(climbed.ok for climbed in ladders.values()) else _WRONG_RESULT


def _default_size(backend: str) -> Problem:
    return SIMULATED_SIZE if backend == "sim" else DEFAULT_SIZE


def _info(options: argparse.Namespace) -> int:
    found = info.collect(options.size or DEFAULT_SIZE)
    if options.json:
        _print_json(found.json())
    else:
        print(found.text())
    return 0


def _ladder(options: argparse.Namespace) -> int:
    if options.device:
        os.environ["FASTSGEMM_DEVICE"] = options.device
        device.host_backend.cache_clear()
    backend = device.host_backend()
    climbed = _LADDERS[backend](options.size or _default_size(backend), options.rung)
    if options.json:
        _print_json(climbed.json())
    else:
        print(climbed.text())
    return 0 if climbed.ok else _WRONG_RESULT


def _cache(options: argparse.Namespace) -> int:
    kernels, size = cache.entries()
    if options.clear:
        try:
            cache.clear()
        except OSError as error:
            raise DeviceError(f"the kernel cache {cache.folder()} could not be emptied: {error}") from error
    if options.json:
        _print_json({"folder": str(cache.folder()), "kernels": kernels, "bytes": size, "cleared": options.clear})
    else:
        verb = "removed" if options.clear else "holds"
        print(f"{cache.folder()}: {verb} {kernels} kernels, {size / 1e6:.1f} MB")
    return 0


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(data, indent=2, allow_nan=False))


def _problem(text: str) -> Problem:
    parts = text.split(",")
    if len(parts) not in (1, 3) or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"must be N or M,N,K, each at least 1, got {text!r}")
    M, N, K = (int(part) for part in (parts if len(parts) == 3 else 3 * parts))
    return Problem(M, N, K)


def _rung(text: str) -> Rung:
    try:
        return rungs.find(int(text) if text.isdecimal() else text)
    except UnknownRungError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fastsgemm",
        description="float32 matrix multiplication for NVIDIA GPUs. Without a command: show what was found on this "
        f"machine and climb the ladder of kernels at {DEFAULT_SIZE.M} x {DEFAULT_SIZE.N} x {DEFAULT_SIZE.K}; where "
        "there is no device, on the host and, small, on a simulated one.",
    )
    parser.add_argument("--version", action="version", version=f"fastsgemm {__version__}")
    parser.set_defaults(json=False)
    _command(parser, _everything)
    commands = parser.add_subparsers(title="commands", metavar="{info,ladder,cache}")

    found = commands.add_parser("info", help="show device, driver, NVRTC, kernel cache and the tuning record in use")
    _command(found, _info)
    _size(found, f"the problem to name the tuning record for; default {DEFAULT_SIZE.N}")

    climb = commands.add_parser(
        "ladder",
        help="check every rung against float64, then time it beside cuBLAS",
        description="Check every rung against float64, compare their bits, then time each in turns with cuBLAS, which "
        "needs PyTorch or CuPy. Without a device: time NumPy's product through sgemm. With --device sim: run every rung "
        "on a simulated device (FASTSGEMM_SIM_DEVICE, or an H200) and count what it does to memory and arithmetic units.",
    )
    _command(climb, _ladder)
    _size(climb, f"the problem; default {DEFAULT_SIZE.N}, simulated {SIMULATED_SIZE.N}")
    names = ", ".join(map(str, RUNGS))
    climb.add_argument(
        "--rung",
        action="append",
        type=_rung,
        default=[],
        help=f"run this rung, by name or number; repeatable ({names})",
    )
    climb.add_argument(
        "--device", choices=device.BACKENDS, help="where to run; default: FASTSGEMM_DEVICE, or the first device if any"
    )

    stored = commands.add_parser("cache", help="show the folder of compiled kernels, or empty it")
    _command(stored, _cache)
    stored.add_argument("--clear", action="store_true", help="remove every stored kernel; they are compiled again")
    return parser


def _command(parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int]) -> None:
    parser.set_defaults(command=command)
    # No default here: a command's would overwrite a --json that stands before it.
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for machines")


def _size(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--size", type=_problem, metavar="N|M,N,K", help=what)


if __name__ == "__main__":
    sys.exit(main())
