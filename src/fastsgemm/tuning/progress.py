"""How far a tuning run is, on stderr: a bar with the best so far and the time left."""

from __future__ import annotations

import sys
from typing import Any


class Bar:
    """A progress bar by tqdm, one a phase; what is done leaves no trace.

    Parameters
    ----------
    enabled : bool
        False shows nothing, not even notes.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._title = ""
        self._bar: Any = None

    def title(self, text: str) -> None:
        """Say what the next phases are about."""
        self._title = text

    def begin(self, what: str, count: int) -> None:
        """Start counting to `count`."""
        from tqdm import tqdm

        self.end()
        self._bar = tqdm(
            total=count, desc=f"{self._title} {what}".strip(), file=sys.stderr, leave=False, disable=not self._enabled
        )

    def step(self) -> None:
        """Count one."""
        self._bar.update()

    def best(self, text: str) -> None:
        """Show the best so far."""
        self._bar.set_postfix_str(f"best {text}", refresh=False)

    def note(self, text: str) -> None:
        """Say something that stays."""
        if self._enabled:
            from tqdm import tqdm

            tqdm.write(text, file=sys.stderr)

    def end(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
