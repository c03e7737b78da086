"""The command line of ``python -m fastsgemm.torch``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from fastsgemm.switches import program_runner
from fastsgemm.torch import kernel_switch


def main(arguments: Sequence[str] | None = None) -> None:
    """Turn the switch on for the rest of the process, and run the program as ``python`` would."""
    parser = program_runner.parser_for("fastsgemm.torch", "PyTorch")
    parser.add_argument("--only", metavar="NAMES", help=f"operators to replace, of {','.join(kernel_switch.OPERATORS)}")
    parser.add_argument("--device", default="cuda", help="cuda (default), or cpu for tests without a GPU")
    program_runner.main(parser, _enable, arguments)


def _enable(options: Namespace) -> kernel_switch.Switch:
    only = options.only and options.only.split(",")
    return kernel_switch.enable(options.precision, options.batch_invariant, only, device=options.device)
