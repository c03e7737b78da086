"""The wheel: what is in it, the same bytes each time."""

import sys
import zipfile

import pytest

from fastsgemm.errors import DeviceError, MissingExtraError
from fastsgemm.jit.packs import Pack
from fastsgemm.kernel_package import wheel

PACK = Pack("1.2.3", "sm_90", "13.0", 2)
FILES = {"one.xz": b"first", "two.xz": b"second"}


def test_it_has_the_files_and_asks_for_this_version(tmp_path):
    pytest.importorskip("hatchling")
    path = wheel.write(PACK, FILES, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "fastsgemm_kernels_sm90-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert all(archive.read(f"fastsgemm_kernels_sm90/{name}") == content for name, content in FILES.items())
        about = {name.rpartition("/")[2]: archive.read(name).decode() for name in names if ".dist-info/" in name}
        assert len(names) == len(FILES) + len(about) + 2  # __init__.py and pack.json
    assert "\nRequires-Dist: fastsgemm==1.2.3\n" in about["METADATA"]
    assert about["entry_points.txt"].split() == ["[fastsgemm.kernels]", "sm_90", "=", "fastsgemm_kernels_sm90"]


def test_the_same_files_make_the_same_bytes(tmp_path):
    pytest.importorskip("hatchling")
    one, two = (wheel.write(PACK, dict(sorted(FILES.items(), reverse=up)), tmp_path / str(up)) for up in (False, True))
    assert one.read_bytes() == two.read_bytes()


def test_a_folder_that_cannot_be_written(tmp_path):
    pytest.importorskip("hatchling")
    (tmp_path / "file").touch()
    with pytest.raises(DeviceError, match=r"the wheel cannot be written into .*file"):
        wheel.write(PACK, FILES, tmp_path / "file")


def test_without_hatchling_the_message_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "hatchling", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fastsgemm\[pack\]'"):
        wheel.require(tmp_path)
