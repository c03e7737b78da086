"""The wheel of a package of kernels, written by hatchling, which also builds fastsgemm's own: the same bytes each time.

`fastsgemm.jit.packs` reads what is installed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fastsgemm.errors import DeviceError, MissingExtraError
from fastsgemm.jit import packs
from fastsgemm.jit.packs import Pack


def require(folder: Path) -> None:
    """Make the folder if it is missing.

    Raises
    ------
    MissingExtraError
        hatchling is not installed.
    DeviceError
        The folder cannot be written.
    """
    try:
        import hatchling  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "fastsgemm pack needs hatchling; install it with pip install 'fastsgemm[pack]'"
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"you may not write {folder}")
    except OSError as error:
        raise _not_written(folder, error) from error


def write(pack: Pack, files: Mapping[str, bytes], folder: Path) -> Path:
    """Write the wheel with these files into a folder; return its path.

    Raises
    ------
    DeviceError
        The folder cannot be written.
    """
    from hatchling.builders.wheel import WheelBuilder

    module = f"fastsgemm_kernels_{pack.arch.replace('_', '')}"
    about = f"Compiled kernels of fastsgemm {pack.fastsgemm} for {pack.arch}"
    project = {
        "name": module.replace("_", "-"),
        "version": pack.fastsgemm,
        "description": about,
        "license": "MIT",
        "requires-python": ">=3",  # else the wheel is named as one for Python 2, too
        "dependencies": [f"fastsgemm=={pack.fastsgemm}"],
        "entry-points": {packs.GROUP: {pack.arch: module}},
    }
    target = {"packages": [module], "ignore-vcs": True}
    with tempfile.TemporaryDirectory(prefix="fastsgemm-") as root:
        inside = Path(root) / module
        inside.mkdir()
        (inside / "__init__.py").write_text(f'"""{about}: data only."""\n', encoding="utf-8")
        (inside / packs.DESCRIPTION).write_bytes(msgspec.json.format(msgspec.json.encode(pack)) + b"\n")
        for name, content in files.items():
            (inside / name).write_bytes(content)
        config = {"project": project, "tool": {"hatch": {"build": {"targets": {"wheel": target}}}}}
        try:
            return Path(next(WheelBuilder(root, config=config).build(directory=str(folder), versions=["standard"])))
        except OSError as error:
            raise _not_written(folder, error) from error


def _not_written(folder: Path, error: OSError) -> DeviceError:
    return DeviceError(f"the wheel cannot be written into {folder}: {error}")
