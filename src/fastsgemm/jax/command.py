"""The command line of ``python -m fastsgemm.jax``."""

from __future__ import annotations

from collections.abc import Sequence

from fastsgemm import program
from fastsgemm.jax import switch


def main(arguments: Sequence[str] | None = None) -> None:
    """Turn the switch on for the rest of the process, and run the program as ``python`` would."""
    parser = program.parser_for("fastsgemm.jax", "JAX")
    program.main(parser, lambda given: switch.enable(given.precision, given.batch_invariant), arguments)
