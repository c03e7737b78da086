"""The table of packages of kernels, from reports that are made up."""

import pytest

packs = pytest.importorskip("page_tables.packs", reason="tools/ is part of a checkout only")
KINDS = ("all", "regular", "plain", "source", "batch", "16-bit", "symmetric", "irregular")


def test_a_line_for_each_architecture_the_oldest_first():
    coverage = {kind: number / 10 for number, kind in enumerate(KINDS, 1)}
    run = {"arch": "sm_100", "kernels": 1234, "bytes": 15_260_000, "nvrtc": "13.5", "coverage": coverage}
    data = {"pack-sm_100": run, "pack-sm_80": run | {"arch": "sm_80", "nvrtc": "13.0"}, "packages": {}}
    *_, first, second = packs.texts(data)["packs"].splitlines()
    assert first.startswith("| sm_80 | 1,234 | 15.3 | 10.0 | 20.0 |") and second.startswith("| sm_100 |")
    assert "NVRTC 13.0, 13.5." in packs.texts(data)["packs"]
    assert packs.texts({}) == {"packs": packs.NOT_MEASURED}
