"""Entries of the tuning database, made up."""

from msgspec.structs import asdict

from fastsgemm.heuristics.database_entries import Curve, Measured, ProblemLine, Published
from fastsgemm.heuristics.fields import Tools

DEVICE = "Fake 9000"
TOOLS = Tools("580.0", "13.0", "2026-01-01")


def measured(rung, config, problem, ms, ratio=None, device=DEVICE):
    return Measured.of(rung, device, problem, config, ms, ratio, TOOLS)


def published(rung, config, problem=None, device=None, kind=Published):
    written = None if problem is None else ProblemLine.of(problem)
    return kind(rung=rung, device=device, written=written, constants=config.constants, source="a page")


def curve(rung, config, blocks_per_sm, points, device=DEVICE, multiprocessors=132):
    return Curve(
        rung=rung,
        device=device,
        multiprocessors=multiprocessors,
        constants=config.constants,
        blocks_per_sm=blocks_per_sm,
        points=points,
        **asdict(TOOLS),
    )
