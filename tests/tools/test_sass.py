"""The program that counts rung 9's machine code, and what is kept of it."""

import json
import sys
from pathlib import Path

import architectures
import compilations
import pytest

from fastsgemm import device, rungs
from fastsgemm.geometry import variants
from fastsgemm.heuristics.choice import choose_config
from fastsgemm.heuristics.explanation import device_at
from fastsgemm.problem import format_problem, parse

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "docs" / "data" / "sass.json"

sass = pytest.importorskip("sass", reason="tools/ is part of a checkout only")

# As nvdisasm writes it: a small loop, the main loop with another one in it, and a jump to itself at the end.
SASS = """
\t.section\t.text.pipelined,"ax",@progbits
pipelined:
.text.pipelined:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_1) ;
.L_x_0:
        /*0020*/                   FFMA R1, R2, R3, R1 ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0040*/                   LDS.128 R4, [R9] ;
        /*0050*/                   LDS.128 R8, [R9+0x10] ;                /* 0x0000100009087984 */
                                                                          /* 0x000e280000000c00 */
        /*0060*/                   LDS.64 R12, [R9+0x20] ;
        /*0070*/                   LDS R13, [R9+0x28] ;
.L_x_2:
        /*0080*/                   FFMA R20, R4.reuse, R8.reuse, R20 ;
        /*0090*/                   FFMA R21, R4.reuse, R9, R21 ;
        /*00a0*/               @P1 BRA `(.L_x_2) ;
        /*00b0*/              @!PT LDG.E.128.CONSTANT R24, desc[UR6][R20.64] ;
        /*00c0*/                   LDGSTS.E.BYPASS.128 [R3], [R4.64] ;
        /*00d0*/              @!P2 STS [R7], R24 ;
        /*00e0*/              @UP0 UIADD3 UR4, UR4, 0x1, URZ ;
        /*00f0*/                   IADD3.X R9, R9, 0x1, RZ, P0, !PT ;
        /*0100*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0110*/                   FFMA R22, R4, R10, R22 ;
        /*0120*/               @P0 BRA `(.L_x_1) ;
.L_x_5:
        /*0122*/                   HGMMA.64x128x16.F32 R24, gdesc[UR8], R24, gsb0 ;
        /*0124*/               @P0 FADD R20, R20, R24 ;
        /*0126*/               @P0 BRA `(.L_x_5) ;
        /*0130*/                   EXIT ;
.L_x_3:
        /*0140*/                   BRA `(.L_x_3);
        /*0150*/                   NOP;
.L_x_4:
"""


def test_labels_and_instructions_without_addresses_and_encodings():
    code = sass.code_of(SASS)
    assert code[:4] == ["LDC R1, c[0x0][0x28]", "@!P0 BRA `(.L_x_1)", ".L_x_0:", "FFMA R1, R2, R3, R1"]
    assert "LDS.128 R8, [R9+0x10]" in code
    assert code[-3:] == ["BRA `(.L_x_3)", "NOP", ".L_x_4:"]
    assert len(code) == 31


def test_the_main_loop_of_rung_11_is_the_one_with_most_products_of_tensor_cores():
    loop = sass.main_loop(sass.code_of(SASS), sass.TENSOR)
    assert loop[0] == ".L_x_5:" and sass._opcodes(loop) == {"HGMMA": 1, "FADD": 1, "BRA": 1}


def test_the_main_loop_is_the_one_with_most_ffmas():
    loop = sass.main_loop(sass.code_of(SASS))
    assert loop[0] == ".L_x_1:" and loop[-1] == "@P0 BRA `(.L_x_1)"
    assert len(loop) == 17  # two labels among them


def test_of_two_loops_with_as_many_ffmas_the_inner_one():
    code = sass.code_of(SASS)
    code.remove("FFMA R22, R4, R10, R22")
    loop = sass.main_loop(code)
    assert loop[0] == ".L_x_2:" and len(loop) == 4


def test_an_ffma2_is_two_fmas():
    loop = ["FFMA2 R2, R4.F32, R6.reuse.F32x2.HI_LO, R2.F32x2.HI_LO"] * 2
    longer = ["FFMA R1, R2, R3, R1"] * 3
    code = [".L_x_0:", *longer, "@P0 BRA `(.L_x_0)", ".L_x_1:", *loop, "@P0 BRA `(.L_x_1)"]
    counted = sass.count(sass.main_loop(code))
    assert (counted["instructions"], counted["ffma"], counted["ffma2"]) == (3, 4, 2)
    assert (counted["others"], counted["reuse"]) == ({"BRA": 1}, 2)


def test_code_without_a_loop_of_ffmas_is_refused():
    with pytest.raises(sass.SassError, match="none of 1 loops has an FFMA"):
        sass.main_loop([".L_x_0:", "NOP", "BRA `(.L_x_0)", "FFMA R1, R2, R3, R1"])


def test_what_is_counted():
    assert sass.count(sass.main_loop(sass.code_of(SASS))) == {
        "instructions": 15,
        "ffma": 3,
        "ffma2": 0,
        "lds": {"128": 2, "64": 1, "32": 1},
        "copies": {"LDG.128": 1, "LDGSTS.128": 1, "STS.32": 1},
        "barriers": 1,
        "others": {"BRA": 2, "UIADD3": 1, "IADD3": 1},
        "reuse": 3,
    }


@pytest.mark.parametrize("package", ["triton/backends/nvidia/bin", "nvidia/cu13/bin", "nvidia/cuda_nvcc/bin"])
def test_nvdisasm_of_an_installed_package_is_found(tmp_path, monkeypatch, package):
    monkeypatch.setattr(sass.shutil, "which", lambda name: None)
    folder = tmp_path / package
    folder.mkdir(parents=True)
    (folder / "nvdisasm").touch()
    assert sass.find_nvdisasm([str(tmp_path / "none"), str(tmp_path)]) == str(folder / "nvdisasm")


def test_nvdisasm_on_the_path_comes_first(monkeypatch):
    monkeypatch.setattr(sass.shutil, "which", lambda name: f"/somewhere/{name}")
    assert sass.find_nvdisasm() == "/somewhere/nvdisasm"


def test_without_nvdisasm_the_message_says_what_brings_it(monkeypatch, capsys):
    monkeypatch.setattr(sass.shutil, "which", lambda name: None)
    monkeypatch.setattr(sass.Path, "glob", lambda path, pattern: iter(()))
    assert sass.main([]) == 2
    assert "nvdisasm was not found" in capsys.readouterr().err


def test_a_misspelled_problem_is_one_message(capsys):
    assert sass.main(["4096,4096"]) == 2
    assert "M,N,K" in capsys.readouterr().err


def fake_nvdisasm(folder, code=0):
    (folder / "listing").write_text(SASS)
    path = folder / "nvdisasm"
    path.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "if sys.argv[1] == '--version':\n"
        "    print('Cuda compilation tools, release 13.1, V13.1.80')\n"
        "else:\n"
        "    assert pathlib.Path(sys.argv[2]).read_bytes().startswith(b'\\x7fELF')\n"
        "    print(pathlib.Path(__file__).with_name('listing').read_text())\n"
        f"sys.exit({code})\n"
    )
    path.chmod(0o755)
    return str(path)


def test_what_is_kept_of_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: fake_nvdisasm(tmp_path))
    monkeypatch.setattr(sass.compiler, "report", compilations.report)
    monkeypatch.setattr(sass.known_devices, "known", lambda: {"NVIDIA B200": "sm_100", "NVIDIA H200": "sm_90"})
    kept = tmp_path / "sass.json"
    assert sass.main(["1024,512,256,TN"], kept=kept) == 0
    assert not kept.exists()  # only the usual problems are on the page
    assert sass.main(["1024,512,256,TN", "--json", str(kept)]) == 0
    found = json.loads(kept.read_text())
    assert found["nvdisasm"] == "13.1" and found["arch"] == "sm_90"
    assert found["loop"] == sass.main_loop(sass.code_of(SASS))
    (row,) = found["rows"]
    assert row["problem"] == "1024,512,256,TN" and row["ffma"] == 3
    assert row["registers"] > 64 and row["spilled_bytes"] == 0  # of the real compilation
    assert [*found["architectures"]] == ["sm_90", "sm_100"]
    assert row | found["architectures"]["sm_90"] == row
    assert found["architectures"]["sm_100"]["ffma"] == 3
    tensor = found["fp16x3"]
    assert tensor["arch"] == "sm_90a" and tensor["opcodes"]["HGMMA"] == 1 and tensor["registers"] == 168


def test_an_nvdisasm_that_fails_is_one_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: fake_nvdisasm(tmp_path, code=3))
    assert sass.main(["256,256,256"]) == 2
    assert "ended with 3" in capsys.readouterr().err


@pytest.fixture(scope="module")
def kept():
    if not KEPT.exists():
        pytest.skip("docs/data/sass.json is not written yet")
    return json.loads(KEPT.read_text())


def test_the_page_has_every_layout_with_the_shipped_constants(kept, data_folder):
    assert [row["problem"] for row in kept["rows"]] == [format_problem(problem) for problem in sass.TYPICAL]
    for row in kept["rows"]:
        problem = variants.dense_call(parse(row["problem"])).problem
        shipped = choose_config(device_at(kept["arch"]), rungs.find(sass.RUNG), problem).config
        assert row["constants"] == shipped.constants, f"{row['problem']}: run make sass"


def test_the_page_has_every_architecture(kept):
    assert [*kept["architectures"]] == architectures.KNOWN
    for arch, row in kept["architectures"].items():
        assert row["ffma"] == kept["rows"][0]["ffma"] and row["spilled_bytes"] == 0
        assert row["ffma2"] == (row["ffma"] // 2 if arch in ("sm_100", "sm_103") else 0)


def test_the_page_counts_the_loop_that_it_shows(kept):
    counted = sass.count(kept["loop"])
    assert counted == {name: kept["rows"][0][name] for name in counted}


def test_the_page_shows_the_kernel_as_it_is(kept, data_folder):
    if device.nvrtc_text() != kept["nvrtc"]:
        pytest.skip(f"the page is of NVRTC {kept['nvrtc']}")
    try:
        nvdisasm = sass.find_nvdisasm()
    except sass.SassError as error:
        pytest.skip(str(error))
    if sass.nvdisasm_version(nvdisasm) != kept["nvdisasm"]:
        pytest.skip(f"the page is by nvdisasm {kept['nvdisasm']}")
    row, loop = sass.look(sass.TYPICAL[0], nvdisasm)
    assert row == kept["rows"][0], "run make sass"
    assert loop == kept["loop"], "run make sass"
