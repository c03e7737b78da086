"""The sets of problems: what a report calls each, and for how long each of its problems is timed.

`problem_sets` has the problems. This module imports nothing, so that the command line can name the sets.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProblemSet:
    """A set of problems."""

    what: str  # its name in a report
    seconds: float  # time spent on each of its problems with each of the two, `sgemm` and cuBLAS


SETS = {  # in the order of a report
    "shapes": ProblemSet("named shapes", 0.3),
    "layouts": ProblemSet("4096 x 4096 x 4096 in four layouts", 0.5),
    "narrow": ProblemSet("narrow results", 0.1),
    "squares": ProblemSet("squares in four layouts", 0.1),
    "batches": ProblemSet("batches", 0.1),
    "random": ProblemSet("random problems of all sizes", 0.06),
    "large": ProblemSet("random problems of 1 to 300 GFLOP", 0.08),
}
GIVEN = "given"  # the set of the problems that the command line names
SETS_OF_A_RUN = SETS | {GIVEN: ProblemSet("problems that were asked for", 0.5)}
