"""The checkpoint of a tuning run: a file with one line per measurement, from which an interrupted run resumes."""

from __future__ import annotations

import json
from io import FileIO
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fastsgemm import private_files, rungs, strict_json
from fastsgemm.config import Config
from fastsgemm.errors import FastsgemmError, RecordError
from fastsgemm.heuristics.fields import Ms
from fastsgemm.problem import Problem, of

Key = tuple[Problem | None, str, Config, str]  # problem, rung, config and turn; see `Checkpoint.get`

_MOST_BYTES = 256 * 1024 * 1024  # largest checkpoint that is read; a full run writes a few MB


class _Line(msgspec.Struct):
    """A line, apart from its stamp. It has either a time or the reason of a failure."""

    problem: tuple[int, int, int, str, int] | None
    rung: str
    constants: dict[str, int]
    turn: str
    ms: Ms | None = None
    failed: Annotated[str, Meta(pattern=r"\S")] | None = None

    @property
    def key(self) -> Key:
        """The key of the measurement; `FastsgemmError` where there is no such problem, rung or config."""
        rung = rungs.find(self.rung)
        problem = None if self.problem is None else of(*self.problem)
        return problem, rung.name, rung.config.from_constants(self.constants), self.turn


class Checkpoint:
    """The measurements of one device with one driver and one NVRTC; without a path they are kept in memory only.

    What they depend on is the stamp: device, driver, NVRTC and kernels. It is written into every line. Lines that are
    damaged (a killed run leaves half a line) or that have another stamp are ignored.

    Raises
    ------
    RecordError
        The file cannot be written.
    """

    def __init__(self, path: Path | None, stamp: dict[str, str]) -> None:
        self.path = path
        self._stamp = stamp
        self._seen: dict[Key, float | str] = {}
        self._used: set[Key] = set()  # what this run has asked for or measured
        self._file: FileIO | None = None
        if path is not None:
            try:
                private_files.make_folder(path.parent)
                self._read(private_files.read(path, _MOST_BYTES) if path.exists() else b"")
                self._file = private_files.open_to_append(path)
                self._file.write(b"\n")  # ends a line that an interrupted run left incomplete
            except OSError as error:
                raise self._unwritable(error) from error
        self.found = len(self._seen)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def get(self, problem: Problem | None, rung: str, config: Config, turn: str) -> float | str | None:
        """Return the recorded time in ms, the recorded reason of a failure, or None if nothing is recorded.

        Results that do not depend on a problem have none. `turn` says which measurement it is: the phase of the search,
        the round and the repeat.
        """
        self._used.add((problem, rung, config, turn))
        return self._seen.get((problem, rung, config, turn))

    def put(self, problem: Problem | None, rung: str, config: Config, turn: str, result: float | str) -> None:
        """Record a time in ms or the reason of a failure; the line is written at once.

        Raises
        ------
        RecordError
            The file cannot be written, because the disk is full for example.
        """
        key = (problem, rung, config, turn)
        self._seen[key] = result
        self._used.add(key)
        if self._file is not None:
            try:
                self._file.write(self._line(key))
            except OSError as error:
                raise self._unwritable(error) from error

    def finish(self) -> None:
        """Remove what this run has used, because it has all its results. What another run has left is for that one."""
        if self._file is None or self.path is None:
            return
        self._file.close()
        left = [self._line(key) for key in self._seen if key not in self._used]
        try:
            if left:
                private_files.replace(self.path, b"".join(left))
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def _line(self, key: Key) -> bytes:
        problem, rung, config, turn = key
        result = self._seen[key]
        line = {
            **self._stamp,
            "problem": problem and (problem.M, problem.N, problem.K, problem.word, problem.batch),
            "rung": rung,
            "constants": config.constants,
            "turn": turn,
            "failed" if isinstance(result, str) else "ms": result,
        }
        return json.dumps(line).encode() + b"\n"

    def _read(self, text: bytes) -> None:
        for line in text.splitlines():
            try:
                entry = strict_json.decode(line, dict[str, Any])
                if self._stamp.items() <= entry.items():
                    measured = msgspec.convert(entry, _Line)
                    result = measured.ms if measured.failed is None else measured.failed
                    if result is not None:
                        self._seen[measured.key] = result
            except (FastsgemmError, msgspec.ValidationError):
                continue

    def _unwritable(self, error: OSError) -> RecordError:
        hint = "FASTSGEMM_DATA_DIR names another folder"
        return RecordError(f"the checkpoint {self.path} cannot be written ({error}); {hint}")
