"""The command line of ``python -m fastsgemm.jax``."""

from __future__ import annotations

from collections.abc import Sequence

from fastsgemm.jax import lowering_switch
from fastsgemm.switches import program_runner


def main(arguments: Sequence[str] | None = None) -> None:
    """Turn the switch on for the rest of the process, and run the program as ``python`` would."""
    parser = program_runner.parser_for("fastsgemm.jax", "JAX")
    parser.epilog = (
        "Without a GPU nothing is replaced: XLA's products for the host stay as they are. To see what would be "
        "replaced, lower a function for a device that you name; docs/jax.md, Without a GPU, has an example."
    )
    program_runner.main(
        parser, lambda options: lowering_switch.enable(options.precision, options.batch_invariant), arguments
    )
