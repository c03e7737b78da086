"""Run programs with PyTorch's products and with fastsgemm's; write what they measured to JSON, after each of them."""

import argparse
import datetime
import gc
import importlib
import importlib.util
import json
import statistics
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
from fastsgemm.measure import environment  # noqa: E402

PROGRAMS = (
    "adapters", "audio", "classifier", "compiled", "continuous_flow", "contrastive", "decoder", "dense_graphs",
    "encoder", "equivariant", "experts", "factorization", "gaussian_process", "generation", "generative", "gpt2",
    "hypernetwork", "kernel_methods", "likelihood", "message_passing", "meta_learning", "mixer", "mlp", "muon",
    "neighbours", "neural_ode", "newton_schulz", "pair_attention", "pca", "per_sample", "physics", "recommendation",
    "recurrent", "reinforcement", "relational_gnn", "sequence_to_sequence", "shampoo", "tensor_networks",
    "timm_vision", "transformer_layers", "transport", "vision",
)  # fmt: skip
OTHERS = (
    "calls",
    "opinfo",
    "batch_invariance",
    "bfloat16_decoder",
    "mixture",
    "log_probability",
    "several_gpus",
)  # measure something else than steps in turns
NOISE = 0.02  # a step is slower if it takes more than so much longer, or than the null run differs


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    everything = (*PROGRAMS, *OTHERS)
    names = {"nargs": "+", "metavar": "NAME", "choices": everything}
    listed = f"of {', '.join(everything)}; default: all before {OTHERS[0]}"
    parser.add_argument("--only", default=PROGRAMS, help=listed, **names)
    parser.add_argument("--exclude", default=(), help="programs that are not run", **names)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="tiny sizes, to check that the programs run")
    parser.add_argument("--seconds", type=float, default=1.5, help="of timed steps of a case, in all turns together")
    parser.add_argument("--json", type=Path, help="what it already has of other programs is kept")
    given = parser.parse_args(arguments)
    measured = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    here = {"date": datetime.date.today().isoformat(), "device": "CPU"}
    about = {"torch": torch.__version__, **(environment.facts(device.open_gpu(0)) if given.device == "cuda" else here)}
    began, cases, failures = time.perf_counter(), [], []
    print(_header(), flush=True)
    for name in given.only:
        if name in given.exclude:
            continue
        try:
            found = _measure(name, given, failures)
        except SkipTest as reason:
            print(f"{name}: skipped: {reason}", flush=True)
            continue
        except Exception:
            failures.append(name)
            print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
            continue
        cases += found.get("cases", ())
        if found.get("cases") != []:  # else every case has failed
            measured[f"{name} on {about['device']}"] = about | found
        if given.json:
            given.json.write_text(json.dumps(measured, indent=1) + "\n")
    if cases:
        print("\n".join(_summary(cases)))
    print(f"took {time.perf_counter() - began:.0f} s; failed: {', '.join(failures) or 'none'}", flush=True)
    return int(bool(failures))


def _measure(name, given, failures):
    """Return what a program measured; a case that fails is a line, and the others are measured."""
    try:
        program = importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or importlib.util.find_spec(package) is not None:  # it is there, but it is broken
            raise
        raise SkipTest(f"needs {package}, which is not installed") from None
    if name in OTHERS:
        return program.measure(given.device, given.small, given.seconds)
    tolerance = getattr(program, "TOLERANCE", harness.TOLERANCE)
    apart = getattr(program, "APART", False)
    cases = []
    for what, build in program.cases(given.small).items():
        try:
            cases.append(harness.measure(what, build, given.device, given.seconds, tolerance, apart))
            print(_line(cases[-1]), flush=True)
        except Exception as error:
            failures.append(what)
            print(f"{what}: FAILED: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
        if given.device == "cuda":
            gc.collect()  # what is left of the case, before it takes memory from the next one
            torch.cuda.empty_cache()
    return {"cases": cases}


def _header():
    columns = ("ms", "null", "ieee", "fp16x3", "alone", "alone", "replaced", "calls", "limit", "set-up", "timing")
    return f"{'program':78}" + "".join(f"{column:>9}" for column in columns)


def _line(case):
    """Return a line of the table: ratios are to PyTorch's own; the time of the device alone with ieee and fp16x3."""
    cells = [f"{case['ms']['PyTorch']:.2f}", *(f"{_ratio(case['ms'], name):.3f}" for name in harness.PRODUCTS[1:])]
    for name in harness.PRECISIONS:
        cells.append(f"{_ratio(case['device_ms'], name):.2f}" if case["device_ms"] else "")
    share, calls = (min(case[of].values()) for of in ("share", "calls"))
    cells += [f"{share:.1%}", calls, case["limit"], f"{case['setup_s']:.1f}", f"{case['timing_s']:.1f}"]
    return f"{case['what']:78}" + "".join(f"{cell:>9}" for cell in cells)


def _ratio(times, name):
    return times[name] / times["PyTorch"]


def _summary(cases):
    """Yield the geometric means, and how many cases are slower than noise."""
    for limit in ("host", "device", "unknown", ""):
        some = [case for case in cases if case["limit"] == limit or not limit]
        if some:
            means = (
                f"{name} {statistics.geometric_mean(_ratio(case['ms'], name) for case in some):.3f}"
                for name in harness.PRODUCTS[1:]
            )
            what = f"limited by the {limit}" if limit in ("host", "device") else "of unknown limit" if limit else "all"
            yield f"{len(some)} cases, {what}: geometric means {', '.join(means)}"
    for name in harness.PRECISIONS:
        slower = [case["what"] for case in cases if _ratio(case["ms"], name) > 1 + max(NOISE, _spread(case))]
        yield f"slower than {1 + NOISE:.2f} and the null run's distance with {name}: {len(slower)}" + "".join(
            f"\n  {what}" for what in slower
        )


def _spread(case):
    null = _ratio(case["ms"], "null")
    return max(null, 1 / null) - 1


if __name__ == "__main__":
    sys.exit(main())
