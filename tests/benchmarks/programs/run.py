"""Run programs with PyTorch's products and with fastsgemm's; write what they measured to JSON, after each of them."""

import argparse
import datetime
import importlib
import importlib.util
import json
import sys
import time
import traceback
from pathlib import Path
from unittest import SkipTest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support")]

import harness  # noqa: E402
import torch  # noqa: E402

from fastsgemm import device  # noqa: E402
from fastsgemm.measure import machine  # noqa: E402

PROGRAMS = (
    "encoder", "decoder", "gpt2", "vision", "mlp", "newton_schulz", "shampoo", "pca", "neighbours", "relational_gnn",
    "equivariant", "gaussian_process", "compiled",
)  # fmt: skip
OTHERS = (
    "calls",
    "opinfo",
    "batch_invariance",
    "mixture",
    "log_probability",
    "several_gpus",
)  # measure something else than steps in turns


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    everything = (*PROGRAMS, *OTHERS)
    parser.add_argument("programs", nargs="*", default=everything, help=f"of {', '.join(everything)}; default: all")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="tiny sizes, to check that the programs run")
    parser.add_argument("--seconds", type=float, default=5.0, help="to spend on timing a program, after its set-up")
    parser.add_argument("--json", type=Path, help="what it already has of other programs is kept")
    given = parser.parse_args(arguments)
    if unknown := {*given.programs} - {*everything}:
        parser.error(f"there is no program {', '.join(sorted(unknown))}; there are {', '.join(everything)}")
    measured = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    here = {"date": datetime.date.today().isoformat(), "device": "CPU"}
    about = {"torch": torch.__version__, **(machine.facts(device.open_gpu(0)) if given.device == "cuda" else here)}
    failed = False
    for name in given.programs:
        began = time.perf_counter()
        print(name, flush=True)
        try:
            measured[f"{name} on {about['device']}"] = about | _measure(name, given)
        except SkipTest as reason:
            print(f"  skipped: {reason}", flush=True)
            continue
        except Exception:
            failed = True
            traceback.print_exc()
        if given.device == "cuda":
            torch.cuda.empty_cache()
        print(f"  took {time.perf_counter() - began:.0f} s", flush=True)
        if given.json:
            given.json.write_text(json.dumps(measured, indent=1) + "\n")
    _print([measured[key] for name in given.programs if (key := f"{name} on {about['device']}") in measured])
    return int(failed)


def _measure(name, given):
    try:
        program = importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = error.name.partition(".")[0]
        if importlib.util.find_spec(package) is not None:
            raise
        raise SkipTest(f"needs {package}, which is not installed") from None
    if name in OTHERS:
        return program.measure(given.device, given.small, given.seconds)
    tolerance = getattr(program, "TOLERANCE", harness.TOLERANCE)
    apart = getattr(program, "APART", False)
    return harness.measure(program.cases(given.small), given.device, given.seconds, tolerance, apart)


def _print(programs):
    """Print a line for each case: the times, and those of fastsgemm's products relative to PyTorch's."""
    print(f"{'':72} {'PyTorch':>9} {'ieee':>17} {'fp16x3':>17}")
    for program in programs:
        for case in program.get("cases", ()):
            print(_line(f"{case['what']}, ms", case["ms"]))
            if case["device_ms"]:
                print(_line("  the device alone", case["device_ms"]))
        for call in program.get("calls", ()):
            print(_line(f"{call['call']}, host, us", {name: us["between"] for name, us in call["host_us"].items()}))


def _line(what, times):
    plain, *ours = times.values()
    return f"{what:72} {plain:9.2f}" + "".join(f" {time:9.2f} ({time / plain:5.2f})" for time in ours)


if __name__ == "__main__":
    sys.exit(main())
