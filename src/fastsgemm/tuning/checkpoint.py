"""The checkpoint of a tuning run: a file with one line per measurement, from which an interrupted run resumes."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any, BinaryIO

from fastsgemm import private_files, rungs, strict_json
from fastsgemm.config import Config
from fastsgemm.errors import FastsgemmError, RecordError
from fastsgemm.heuristics.database_reading import checked_ms
from fastsgemm.problem import Problem, checked

Key = tuple[Any, ...]

_MOST_BYTES = 256 * 1024 * 1024  # largest checkpoint that is read; a full run writes a few MB


class Checkpoint:
    """The measurements of one device with one driver and one NVRTC.

    Lines that are damaged (a killed run leaves half a line) or that have another stamp are ignored.

    Parameters
    ----------
    path : Path or None
        If None, measurements are kept in memory only.
    stamp : dict
        What the measurements depend on: device, driver, NVRTC and kernels. It is written into every line.

    Raises
    ------
    RecordError
        The file cannot be written.
    """

    def __init__(self, path: Path | None, stamp: dict[str, str]) -> None:
        self.path = path
        self._stamp = stamp
        self._seen: dict[Key, float | str] = {}
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                private_files.make_folder(path.parent)
                self._read(private_files.read(path, _MOST_BYTES) if path.exists() else b"")
                self._file = private_files.open_to_append(path)
                self._file.write(b"\n")  # ends a line that an interrupted run left incomplete
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
        """Return the recorded time in ms, the recorded reason of a failure, or None if nothing is recorded.

        Parameters
        ----------
        problem : Problem or None
            None for results that do not depend on the problem.
        rung : str
        config : Config
        turn : str
            Which measurement it is: the phase of the search, the round and the repeat.
        """
        return self._seen.get((problem, rung, config, turn))

    def put(self, problem: Problem | None, rung: str, config: Config, turn: str, result: float | str) -> None:
        """Record a time in ms or the reason of a failure; the line is flushed at once."""
        self._seen[problem, rung, config, turn] = result
        if self._file is not None:
            line = {
                **self._stamp,
                "problem": problem and astuple(problem),
                "rung": rung,
                "constants": config.constants,
                "turn": turn,
                "failed" if isinstance(result, str) else "ms": result,
            }
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()

    def finish(self) -> None:
        """Remove the file, because the tuning database now has the results."""
        if self._file is not None and self.path is not None:
            self._file.close()
            self.path.unlink(missing_ok=True)

    def _read(self, text: bytes) -> None:
        for line in text.splitlines():
            try:
                entry = strict_json.decode(line, dict[str, Any])
                if all(entry[name] == value for name, value in self._stamp.items()):
                    key, result = _parsed(entry)
                    self._seen[key] = result
            except (FastsgemmError, KeyError):
                continue


def _parsed(entry: dict[str, Any]) -> tuple[Key, float | str]:
    """Return the key and the result of a line, or raise `FastsgemmError` or `KeyError`."""
    extents, constants, turn = entry["problem"], entry["constants"], entry["turn"]
    if extents is not None and (not isinstance(extents, list) or len(extents) != 5):
        raise RecordError(f"a problem is [M, N, K, layout, batch], got {extents!r}")
    if not isinstance(constants, dict) or not isinstance(turn, str):
        raise RecordError("constants must be an object and turn must be text")
    problem = None if extents is None else checked(Problem(*extents))
    rung = rungs.find(entry["rung"])
    key = (problem, rung.name, rung.config.from_constants(constants), turn)
    if "failed" not in entry:
        return key, checked_ms(entry["ms"])
    reason = entry["failed"]
    if not isinstance(reason, str) or not reason.strip():
        raise RecordError(f"the reason of a failure is text, got {reason!r}")
    return key, reason
