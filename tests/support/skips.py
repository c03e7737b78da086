"""Skipped tests of one reason are one line of the summary, not one per file and line."""

from pathlib import Path


def pytest_terminal_summary(terminalreporter):
    """Take the place from every skip: pytest folds those whose place and reason are the same."""
    for report in terminalreporter.stats.get("skipped", ()):
        if isinstance(report.longrepr, tuple):
            *_, reason = report.longrepr
            report.longrepr = (str(Path(__file__).parents[1]), None, reason.removeprefix("Skipped: "))
