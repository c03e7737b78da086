"""The wheel of a package of kernels, written by hatchling, which also builds fastsgemm's own: the same bytes each time.

`fastsgemm.jit.packs` reads what is installed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fastsgemm.errors import DeviceError, MissingExtraError
from fastsgemm.jit import packs
from fastsgemm.jit.packs import Pack


def require() -> None:
    """Raise `MissingExtraError` if hatchling is not installed."""
    try:
        import hatchling  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "fastsgemm pack needs hatchling; install it with pip install 'fastsgemm[pack]'"
        ) from error


def write(pack: Pack, files: Mapping[str, bytes], folder: Path) -> Path:
    """Write the wheel with these files into a folder, which is made if it is missing; return its path.

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
            folder.mkdir(parents=True, exist_ok=True)
            return Path(next(WheelBuilder(root, config=config).build(directory=str(folder), versions=["standard"])))
        except OSError as error:
            raise DeviceError(f"the wheel cannot be written into {folder}: {error}") from error
