"""Finds the shipped folders `cuda_src`, `host_src`, `tuning_db` and `docs/data`.

A wheel contains them inside the package. An editable install reads them from the checkout.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """Return the path of the folder `name`: inside the package, or in the checkout of an editable install."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent.parent / name
