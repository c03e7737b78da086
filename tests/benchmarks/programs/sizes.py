"""Write which products a step of each program calls, by size: what a user's ``--device cpu --sizes`` finds.

    python tests/benchmarks/programs/sizes.py docs/data/program_sizes.json

Needs no GPU and some minutes. A program that cannot run here is left out, with a reason. ``tools/write_tables.py`` then
compares predictions from these sizes with what ``run.py`` measured.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from unittest import SkipTest

import run
import torch
from harness import products


def sizes(build):
    """Return the calls of a step by size, as the report of the switch spells sizes; `build` is that of a case."""
    torch.manual_seed(0)
    with torch.compiler.set_stance("force_eager"):
        step = build("cpu")
        with products("ieee", "cpu") as switch:
            step()
    return {size: calls for size, calls, _ in switch.report().sizes}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="what it already has of other programs is kept")
    parser.add_argument("--only", nargs="+", default=run.PROGRAMS, choices=run.PROGRAMS, metavar="NAME")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to check that the programs run")
    given = parser.parse_args(arguments)
    found = json.loads(given.file.read_text()) if given.file.exists() else {}
    for name in given.only:
        try:
            for what, build in importlib.import_module(name).cases(given.small).items():
                found[what] = sizes(build)
                print(f"{name}: {what}: {sum(found[what].values())} products", flush=True)
        except (ImportError, SkipTest) as reason:
            print(f"{name}: skipped: {reason}", flush=True)
        given.file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
