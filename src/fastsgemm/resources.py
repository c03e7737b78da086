"""Where the shipped folders `cuda_src` and `tuning_db` are.

Wheels and sdists carry them inside the package; an editable install reads them where they lie in the checkout.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """Return the folder `name` of the installed package or, in an editable install, of the checkout."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent.parent / name
