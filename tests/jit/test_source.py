"""Generated sources: constants, inlined includes, and messages that name the real files."""

import re

import pytest

from fastsgemm import resources
from fastsgemm.config import Config
from fastsgemm.errors import CompileError
from fastsgemm.geometry.variants import Variant
from fastsgemm.jit import compiler, source
from fastsgemm.rungs import RUNGS, find

CONFIG = Config(128, 128, 8, 8, 8)


@pytest.fixture
def cuda_folder(tmp_path, monkeypatch):
    """A copy of cuda_src that a test may break."""
    real = resources.folder("cuda_src")
    (tmp_path / "device").mkdir()
    for path in real.rglob("*.cu*"):
        (tmp_path / path.relative_to(real)).write_text(path.read_text())
    monkeypatch.setattr("fastsgemm.resources.folder", lambda name: tmp_path)
    source._inlined.cache_clear()
    yield tmp_path
    source._inlined.cache_clear()


def constants(text):
    return {name: int(value) for name, value in re.findall(r"^constexpr int (\w+) = (-?\d+);$", text, re.MULTILINE)}


def test_the_variants_are_spelled_as_in_blas():
    assert [Variant(a, b).layout for a in (False, True) for b in (False, True)] == ["NN", "NT", "TN", "TT"]


def test_constants_come_first_a_line_each():
    text = source.generate(find("vectorized"), CONFIG, Variant(True, False, 4, 1, 4))
    head = text.partition("#line")[0]
    assert constants(head) == {
        "BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8,
        "TRANS_A": 1, "TRANS_B": 0, "VEC_A": 4, "VEC_B": 1, "VEC_C": 4,
    }  # fmt: skip
    assert len(head.splitlines()) == len(constants(head))


def test_rungs_without_vectors_have_no_vector_constants():
    text = source.generate(find("naive"), Config(32, 32), Variant())
    assert constants(text.partition("#line")[0]).keys() == {"BM", "BN", "TRANS_A", "TRANS_B"}


@pytest.mark.parametrize("rung", RUNGS, ids=str)
def test_a_source_is_whole_and_holds_each_file_once(rung):
    text = source.generate(rung, CONFIG, Variant())
    assert "#include" not in text and "#pragma once" not in text
    opened = re.findall(r'^#line 1 "(.*)"$', text, re.MULTILINE)
    assert opened[0] == rung.file and len(opened) == len(set(opened)) > 1


@pytest.mark.parametrize("file", [rung.file for rung in RUNGS] + ["copy_strided.cu"])
def test_every_line_is_where_its_marker_says(file):
    place, number, seen = None, 0, 0
    for line in source.plain(file).splitlines():
        marker = re.fullmatch(r'#line (\d+) "(.*)"', line)
        if marker:
            number, place = int(marker[1]), marker[2]
            continue
        real = (resources.folder("cuda_src") / place).read_text().splitlines()
        if line:
            assert line == real[number - 1], f"{place}:{number}"
            seen += 1
        number += 1
    assert seen > 10


def test_a_helper_that_two_others_include_is_inlined_once(cuda_folder):
    (cuda_folder / "device" / "a.cuh").write_text('#pragma once\n#include "device/b.cuh"\nint a;\n')
    (cuda_folder / "device" / "b.cuh").write_text("#pragma once\nint b;\n")
    (cuda_folder / "top.cu").write_text('#include "device/a.cuh"\n  #include "device/b.cuh"\nint top;\n')
    text = source.plain("top.cu")
    assert [line for line in text.splitlines() if line.startswith("int")] == ["int b;", "int a;", "int top;"]


def test_a_source_depends_on_nothing_but_its_arguments():
    rung = find("warptiled")
    assert source.generate(rung, CONFIG, Variant()) == source.generate(rung, CONFIG, Variant())
    assert source.generate(rung, CONFIG, Variant()) != source.generate(rung, CONFIG, Variant(True))


@pytest.mark.parametrize("file", ["06_vectorized.cu", "device/tile_copy.cuh", "device/epilogue.cuh"])
def test_a_message_of_the_compiler_names_the_real_file_and_line(cuda_folder, file):
    path = cuda_folder / file
    lines = path.read_text().splitlines()
    lines.insert(len(lines), "this is no C++;")
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(CompileError, match=rf"{file}\({len(lines)}\): error: "):
        compiler.report(source.generate(find("vectorized"), CONFIG, Variant()), "vectorized", "sm_90")
