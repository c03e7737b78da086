"""Generated sources: constants, inlined includes, and messages that name the real files."""

import dataclasses
import re

import compilations
import pytest

from fastsgemm import resources
from fastsgemm.config import BlockConfig, VectorizedConfig
from fastsgemm.errors import CompileError, ConfigError
from fastsgemm.geometry.variants import Variant
from fastsgemm.heuristics import database, database_entries
from fastsgemm.jit import compiler, source
from fastsgemm.rungs import IEEE, find, kernel_name

CONFIG = VectorizedConfig(128, 128, 8, 8, 8)
FILES = sorted(path.name for path in resources.folder("cuda_src").glob("*.cu"))


@pytest.fixture
def cuda_folder(tmp_path, monkeypatch):
    """A copy of cuda_src that a test may break."""
    real = resources.folder("cuda_src")
    (tmp_path / "device").mkdir()
    for path in real.rglob("*.cu*"):
        (tmp_path / path.relative_to(real)).write_text(path.read_text())
    monkeypatch.setattr("fastsgemm.resources.folder", lambda name: tmp_path)
    source.plain.cache_clear()
    yield tmp_path
    source.plain.cache_clear()


def constants(text):
    """The constants of the block at the top of a file, by name."""
    block = text.partition("// constants:begin")[2].partition("// constants:end")[0]
    return {name: int(value) for name, value in re.findall(r"^constexpr int (\w+) = (-?\d+);", block, re.MULTILINE)}


@pytest.fixture(scope="module")
def configs():
    """A legal config for every rung."""
    records = database.load(database_entries.GENERIC).records
    generic = {record.rung: record.config for record in reversed(records)}  # of one order of summation last
    return {rung.name: generic.get(rung.name, CONFIG) for rung in IEEE}


def test_the_variants_are_spelled_as_in_blas():
    assert [Variant(a, b).layout for a in (False, True) for b in (False, True)] == ["NN", "NT", "TN", "TT"]


def test_the_values_of_the_block_are_replaced():
    text = source.rung_spec(find("vectorized"), CONFIG, Variant(True, False, 4, 1, 4)).text
    assert constants(text) == {
        "BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8,
        "TRANS_A": 1, "TRANS_B": 0, "VEC_A": 4, "VEC_B": 1, "VEC_C": 4, "BATCHED": 0,
    }  # fmt: skip


def test_rungs_without_vectors_have_no_vector_constants():
    text = source.rung_spec(find("naive"), BlockConfig(32, 32), Variant()).text
    assert constants(text).keys() == {"BM", "BN", "TRANS_A", "TRANS_B", "BATCHED"}


def test_fields_that_are_none_and_fields_of_another_name(configs):
    config = configs["pipelined"]
    found = constants(source.rung_spec(find("pipelined"), config, Variant()).text)
    assert (found["STAGES"], found["SLICED_K"], found["CHAINS"]) == (2, 1, 0)
    assert found["CP_ASYNC"] == config.CP_ASYNC
    config = dataclasses.replace(config, STAGES=3, SLICED_K=2, PARTIAL_ACCUMULATORS=4)
    found = constants(source.rung_spec(find("pipelined"), config, Variant()).text)
    assert (found["STAGES"], found["SLICED_K"], found["CHAINS"]) == (3, 2, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"WIDTH": 4}, r"does not declare \['WIDTH'\]"), ({"BK": None}, r"was not given \['BK'\]")],
)
def test_constants_that_are_unknown_or_missing_are_refused(change, message):
    given = constants(source.plain("05_blocktile_2d.cu")) | change
    with pytest.raises(ConfigError, match=message):
        source.with_constants("05_blocktile_2d.cu", {k: v for k, v in given.items() if v is not None})


@pytest.mark.parametrize("file", FILES)
def test_every_kernel_compiles_alone_with_its_defaults(file):
    """Every constant has a meaning beside it, and the defaults fit together."""
    text = (resources.folder("cuda_src") / file).read_text()
    block = text.partition("// constants:begin")[2].partition("// constants:end")[0]
    lines = [line for line in block.splitlines()[1:] if not line.startswith(" ")]  # others go on with a comment
    assert lines and all(re.fullmatch(r"constexpr int \w+ = -?\d+; +// \w.*", line) for line in lines)
    report = compilations.report(source.plain(file), kernel_name(file), source.target(file, "sm_90"))
    assert report.spill_stores == report.spill_loads == report.stack_bytes == 0


@pytest.mark.parametrize("file", sorted(path.name for path in resources.folder("cuda_src").glob("device/*.cuh")))
def test_a_header_depends_on_nothing_that_is_defined_before_it(file):
    """Each compiles alone, with all that its templates do not depend on."""
    text = source.plain(f"device/{file}") + 'extern "C" __global__ void empty() {}\n'
    compilations.report(text, "empty", "sm_90")


@pytest.mark.parametrize("file", [file for file in FILES if file[0].isdigit()])
def test_a_rung_is_one_file_of_at_most_250_lines(file):
    assert len((resources.folder("cuda_src") / file).read_text().splitlines()) <= 250


@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_a_source_is_whole_and_holds_each_file_once(rung, configs):
    text = source.rung_spec(rung, configs[rung.name], Variant()).text
    assert "#include" not in text and "#pragma once" not in text
    opened = re.findall(r'^#line 1 "(.*)"$', text, re.MULTILINE)
    assert opened[0] == rung.file and len(opened) == len(set(opened)) > 1


@pytest.mark.parametrize("file", FILES)
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
    rung = find("vectorized")
    assert source.rung_spec(rung, CONFIG, Variant()).text == source.rung_spec(rung, CONFIG, Variant()).text
    assert source.rung_spec(rung, CONFIG, Variant()).text != source.rung_spec(rung, CONFIG, Variant(True)).text


@pytest.mark.parametrize("file", ["06_vectorized.cu", "device/tile_copy.cuh", "device/epilogue.cuh"])
def test_a_message_of_the_compiler_names_the_real_file_and_line(cuda_folder, file):
    path = cuda_folder / file
    lines = path.read_text().splitlines()
    lines.insert(len(lines), "this is no C++;")
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(CompileError, match=rf"{file}\({len(lines)}\): error: "):
        compiler.report(source.rung_spec(find("vectorized"), CONFIG, Variant()).text, "fastsgemm_vectorized", "sm_90")
