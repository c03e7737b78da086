"""The site includes every file of device code once."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

site_code = pytest.importorskip("site_code", reason="tools/ is part of a checkout only")


def test_every_file_is_included_once():
    text = site_code.device_code(ROOT / "cuda_src")
    included = re.findall(r"^```\{literalinclude\} (\S+)$", text, re.MULTILINE)
    files = (path.relative_to(ROOT / "cuda_src").as_posix() for path in (ROOT / "cuda_src").rglob("*.cu*"))
    assert sorted(included) == sorted(files)
    assert text.count("<details") == text.count("</details>") == len(included)
