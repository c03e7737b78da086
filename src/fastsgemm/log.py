"""What is chosen, compiled, loaded, replaced and passed on, a line each, if ``FASTSGEMM_LOG`` asks for it.

Only what happens once for a problem or a kernel is told, so a known call costs nothing. The variables are read once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache

from fastsgemm import settings
from fastsgemm.progress import printable, say, warn

_LEVELS = ("off", "info", "debug")


@cache
def _level() -> int:
    return _LEVELS.index(settings.LOG.read())


def info(text: Callable[[], str]) -> None:
    """Tell what a user may want to know: what was chosen, compiled, replaced and passed on."""
    if _level() >= 1:
        _tell(text())


def debug(text: Callable[[], str]) -> None:
    """Tell also what was found in the cache and loaded."""
    if _level() >= 2:
        _tell(text())


def _tell(text: str) -> None:
    line = f"fastsgemm {time.strftime('%H:%M:%S')} [{os.getpid()}] {' '.join(text.split())}"
    path = settings.LOG_FILE.read()
    if path is None:
        say(line)
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{printable(line)}\n")
    except OSError as error:
        _warn_of_file(f"{path} cannot be written ({error.strerror})")


@cache
def _warn_of_file(problem: str) -> None:
    warn(f"the log is lost: {problem}; {settings.LOG_FILE.name} names another file")
