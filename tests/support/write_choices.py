"""Write ``tests/heuristics/choices.json``: what the shipped database chooses for a sample of problems.

Run it after an intended change:

    python tests/support/write_choices.py
"""

import json
import random
from pathlib import Path

from fastsgemm import rungs
from fastsgemm.device import DeviceInfo
from fastsgemm.geometry import variants
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.problem import LAYOUTS, Problem, format_problem, parse

FILE = Path(__file__).parents[1] / "heuristics" / "choices.json"
DEVICES = {
    "NVIDIA H200": DeviceInfo("NVIDIA H200", "sm_90", 232448, 132),  # tuned
    "another sm_90": DeviceInfo("another sm_90", "sm_90", 232448, 114),  # predicted from the curves of an H200
    "an A100": DeviceInfo("an A100", "sm_80", 166912, 108),  # published and generic records only
}
RUNGS = (None, "warptiled")  # None: of the default rungs, the fastest


def draw(count: int = 100) -> list[Problem]:
    """Return problems of 1 to 8192 rows, columns and steps of k, in all layouts, aligned and not."""
    generator = random.Random(20)
    tuned = [Problem(4096, 4096, 4096, layout) for layout in LAYOUTS]
    found = []
    while len(found) < count - len(tuned):
        steps = [generator.choice([1, 2, 4, 16, 128]) for _ in range(3)]
        M, N, K = (max(1, int(2 ** generator.uniform(0, 13)) // step * step) for step in steps)
        found.append(variants.dense_call(Problem(M, N, K, generator.choice(LAYOUTS))).problem)
    return [*tuned, *found]


def chosen(device: DeviceInfo, rung: str | None, problem: Problem) -> list[str]:
    """Return the rung, the rule and the constants that a problem gets."""
    choice = choose_config(device, None if rung is None else rungs.find(rung), problem, only="shipped")
    return [choice.rung.name, choice.rule, str(choice.config)]


def line(problem: Problem) -> dict[str, object]:
    """Return one line of the file: the problem, and its choice for each device and rung."""
    return {
        "problem": format_problem(problem),
        "choices": {
            f"{name}, {rung or 'default'}": chosen(device, rung, problem)
            for name, device in DEVICES.items()
            for rung in RUNGS
        },
    }


def stored() -> list[dict[str, object]]:
    """Return the lines of the file."""
    return json.loads(FILE.read_text())


if __name__ == "__main__":
    lines = [json.dumps(line(parse(format_problem(problem)))) for problem in draw()]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")
