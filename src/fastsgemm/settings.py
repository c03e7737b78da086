"""Every environment variable that the package reads. It writes none.

Each is one declaration at the end of this file. Its value is read where it is needed, and not by a call whose plan is
known. ``tools/write_commands.py`` makes the table in ``docs/commands.md`` from these declarations.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from fastsgemm.errors import ConfigError, DeviceError, FastsgemmError


class Variable(Struct, frozen=True, kw_only=True):
    """An environment variable; an empty one counts as not set."""

    name: str
    meaning: str
    default: str = ""  # the value if the variable is not set
    unset: str = ""  # the behaviour if it is not set and has no default value
    values: tuple[str, ...] = ()  # the allowed values; empty: any


class Place(Variable, frozen=True, kw_only=True):
    """A variable that names a folder or a file."""

    def read(self) -> Path | None:
        """Return the path, where nothing may be, or None."""
        text = os.environ.get(self.name)
        return Path(text) if text else None


class Text(Variable, frozen=True, kw_only=True):
    """A variable with any text; surrounding blanks are ignored."""

    def read(self) -> str:
        """Return the text, or the default."""
        return os.environ.get(self.name, "").strip() or self.default


class Choice(Variable, frozen=True, kw_only=True):
    """A variable with one of a few words, in any case; surrounding blanks are ignored."""

    error: type[FastsgemmError]  # raised for other values

    def given(self) -> str:
        """Return the value or the default, unchecked."""
        return os.environ.get(self.name, "").strip().lower() or self.default

    def read(self) -> str:
        """Return the value or the default; raise `error` for an unknown value."""
        value = self.given()
        if value not in (self.default, *self.values):
            limit = " or ".join(self.values) if len(self.values) == 2 else f"one of {', '.join(self.values)}"
            raise self.error(f"{self.name} must be {limit}, got {value!r}")
        return value


CACHE_DIR = Place(
    name="FASTSGEMM_CACHE_DIR",
    meaning="folder of compiled kernels, which `fastsgemm cache` prints",
    unset="`fastsgemm` in the user's cache folder",
)
DATA_DIR = Place(
    name="FASTSGEMM_DATA_DIR",
    meaning="folder of your own tuning results",
    unset="`fastsgemm` in the user's data folder",
)
TUNE = Choice(
    name="FASTSGEMM_TUNE",
    meaning="whether the first call on an unknown device tunes it (`auto`) or not (`off`)",
    default="auto",
    values=("auto", "off"),
    error=ConfigError,
)
LAUNCHER = Choice(
    name="FASTSGEMM_LAUNCHER",
    meaning="whether PyTorch's products are launched from C++, which is compiled at first use (`auto`), "
    "or from Python, which takes some microseconds more per call (`off`)",
    default="auto",
    values=("auto", "off"),
    error=DeviceError,
)
CXX = Text(
    name="CXX",
    meaning="the machine's C++ compiler, for that launcher",
    unset="the first that is found of `g++`, `c++` and `clang++`",
)
DEVICE = Choice(
    name="FASTSGEMM_DEVICE",
    meaning="what multiplies host arrays: the first device (`cuda`; an error without one), NumPy (`host`) or a "
    "simulated device (`sim`; device arrays are then an error)",
    unset="the first device, or NumPy without one",
    values=("cuda", "host", "sim"),
    error=DeviceError,
)
SIM_DEVICE = Text(
    name="FASTSGEMM_SIM_DEVICE",
    meaning="which device is simulated, by name or architecture",
    default="NVIDIA H200",
)
LOG = Choice(
    name="FASTSGEMM_LOG",
    meaning="tell what is chosen, compiled, replaced and passed on (`info`), and what is found and loaded (`debug`)",
    default="off",
    values=("off", "info", "debug"),
    error=ConfigError,
)
LOG_FILE = Place(
    name="FASTSGEMM_LOG_FILE",
    meaning="file that these lines are appended to",
    unset="stderr",
)
