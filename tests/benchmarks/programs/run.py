"""Run the programs and write what they measured to a JSON file, after each of them."""

import argparse
import datetime
import importlib
import json
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support")]

import torch  # noqa: E402

PROGRAMS = ("calls", "compiled", "opinfo", "gpt2", "gaussian_process", "batch_invariance", "several_gpus")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", default=PROGRAMS, help=f"of {', '.join(PROGRAMS)}; default: all")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="tiny sizes, to check that the programs run")
    parser.add_argument("--json", type=Path, help="what it already has of other programs is kept")
    given = parser.parse_args()
    found = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    about = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if given.device == "cuda" else "CPU",
    }
    failed = False
    for name in given.programs:
        started = time.perf_counter()
        try:
            found[name] = about | importlib.import_module(name).measure(given.device, given.small)
            print(name, json.dumps(found[name], indent=1))
        except Exception:
            failed = True
            traceback.print_exc()
        print(f"{name} took {time.perf_counter() - started:.0f} s", flush=True)
        if given.json:
            given.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
