"""What a tuning run has measured so far, a line each, so that a run that is cut short goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

from fastsgemm.config import Config
from fastsgemm.errors import RecordError
from fastsgemm.problem import Problem

Key = tuple[Any, ...]


class Checkpoint:
    """The measurements of one device with one driver and one NVRTC.

    A line that is damaged (a run that was killed leaves half of one) or of another device is passed over.

    Parameters
    ----------
    path : Path or None
        None keeps nothing.
    stamp : dict
        What the measurements hold for: device, driver and NVRTC.

    Raises
    ------
    RecordError
        The file cannot be written.
    """

    def __init__(self, path: Path | None, stamp: dict[str, str]) -> None:
        self.path = path
        self._stamp = stamp
        self._seen: dict[Key, float | str] = {}
        self._file: TextIO | None = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("a", encoding="utf-8")
                self._read(path)
                self._file.write("\n")  # ends a line that was cut short
            except OSError as error:
                hint = "FASTSGEMM_DATA_DIR names another folder"
                raise RecordError(f"the checkpoint {path} cannot be written ({error}); {hint}") from error
        self.found = len(self._seen)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def get(self, problem: Problem | None, rung: str, config: Config, turn: str) -> float | str | None:
        """Return the time in ms or the reason of the failure that is on record, or None.

        Parameters
        ----------
        problem : Problem or None
            None for what does not depend on it.
        rung : str
        config : Config
        turn : str
            Which measurement of the run it is.
        """
        return self._seen.get((problem, rung, config, turn))

    def put(self, problem: Problem | None, rung: str, config: Config, turn: str, result: float | str) -> None:
        """Put a time in ms or the reason of a failure on record, at once."""
        self._seen[problem, rung, config, turn] = result
        if self._file is not None:
            line = {
                **self._stamp,
                "problem": problem and [problem.M, problem.N, problem.K, problem.layout],
                "rung": rung,
                "constants": config.constants,
                "turn": turn,
                "failed" if isinstance(result, str) else "ms": result,
            }
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def finish(self) -> None:
        """Remove the file: everything in it is in the database now."""
        if self._file is not None and self.path is not None:
            self._file.close()
            self.path.unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                if all(entry[name] == value for name, value in self._stamp.items()):
                    problem = entry["problem"] and Problem(*entry["problem"])
                    key = (problem, entry["rung"], Config(**entry["constants"]), entry["turn"])
                    self._seen[key] = str(entry["failed"]) if "failed" in entry else float(entry["ms"])
            except (ValueError, KeyError, TypeError):
                continue
