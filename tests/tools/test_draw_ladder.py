"""The pictures of the rungs: threads have the elements that the kernels give them, texts are apart, code is current."""

import itertools
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

draw_ladder = pytest.importorskip("draw_ladder", reason="tools/ is part of a checkout only")

import ladder_code  # noqa: E402
import rung_tiles  # noqa: E402
from svg_canvas import THEMES, Canvas  # noqa: E402

ROWS = draw_ladder.rows_of_rungs(ROOT)
TILED = [name for name, row in ROWS.items() if row["number"] < 10]
FILES = {path.stem.split("_", 1)[1]: path.read_text() for path in (ROOT / "cuda_src").glob("[01]*_*.cu")}


def elements(places):
    for row, column, rows, columns in places:
        yield from itertools.product(range(row, row + rows), range(column, column + columns))


@pytest.mark.parametrize("name", TILED)
def test_the_threads_of_a_block_share_out_its_tile(name):
    tiles = rung_tiles.tiling(name, ROWS[name]["constants"])
    met = Counter(one for thread in range(tiles.threads) for one in elements(tiles.of_thread(thread)))
    assert met == Counter(itertools.product(range(tiles.BM), range(tiles.BN)))


@pytest.mark.parametrize("name", [name for name in TILED if name not in ("autotuned", "pipelined")])
def test_a_thread_has_the_elements_that_the_kernel_gives_it(name):
    """The kernel's own expressions, with C's division of integers, are the reference."""
    constants = ROWS[name]["constants"]
    tiles = rung_tiles.tiling(name, constants)
    row, column = (
        re.search(rf"const int (?:{names}) = (?:tile\.[mn] \+ )?(.*?);", FILES[name])[1].replace("/", "//")
        for names in ("m|row", "n|col")
    )
    wm, wn, along_m, along_n = tiles.warps
    known = constants | {"WSUBM": wm // along_m, "WSUBN": wn // along_n}
    for thread in (0, 1, 9, 31, 32, tiles.threads - 1):
        here = known | {"tid": thread, "warp": thread // 32, "lane": thread % 32}
        at = tuple(eval(one.replace("threadIdx.x", "tid"), {}, here) for one in (row, column))
        assert at == tiles.of_thread(thread)[0][:2]


def test_the_threads_of_rung_10_share_out_the_tile_of_b():
    constants = ROWS["skinny"]["constants"]
    threads = constants["BN"] // constants["TN"] * (constants["BK"] // constants["TK"])
    met = Counter(one for thread in range(threads) for one in elements(rung_tiles.of_skinny_thread(thread, constants)))
    assert met == Counter(itertools.product(range(constants["BK"]), range(constants["BN"])))


def test_the_threads_of_rung_11_share_out_the_tile_of_c():
    met = Counter(one for thread in range(256) for one in elements(rung_tiles.of_wgmma_thread(thread, 128)))
    assert met == Counter(itertools.product(range(128), range(128)))


def boxes(svg):
    """What each text of a picture covers in a wide font: x, y, right and bottom."""
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        size = float(element.get("font-size"))
        long = 0.6 * size * len(element.text)
        x = float(element.get("x")) - {"end": long, "middle": long / 2}.get(element.get("text-anchor"), 0.0)
        y = float(element.get("y"))
        yield element.text, (x, y - 0.8 * size, x + long, y + 0.2 * size)


def test_no_texts_overlap_and_all_can_be_read_on_a_phone():
    for name, svg in draw_ladder.pictures(ROOT).items():
        sizes = [float(one) for one in re.findall(r'font-size="([\d.]+)"', svg)]
        width = int(re.search(r'width="(\d+)"', svg)[1])
        assert min(sizes) >= 12 and width == (360 if "narrow" in name else 720)
        for (text, one), (other, two) in itertools.combinations(boxes(svg), 2):
            apart = one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]
            assert apart, (name, text, other)


def test_a_text_that_leaves_the_picture_is_refused():
    with pytest.raises(ValueError, match="takes 94 pixels from 20 on; the picture has 100"):
        Canvas(100, THEMES["light"]).text((20, 20), "twelve chars")


def test_both_themes_say_the_same_in_other_colours():
    found = draw_ladder.pictures(ROOT)
    light, dark = found["rung-pipelined-light.svg"], found["rung-pipelined-dark.svg"]
    assert light != dark and list(boxes(light)) == list(boxes(dark))


def test_the_page_and_its_pictures_are_up_to_date(capsys):
    assert draw_ladder.main(["--check"]) == 0, capsys.readouterr().err


@pytest.fixture
def checkout(tmp_path):
    for name in ("docs/data/counts.json", "docs/ladder.md", "tuning_db/sm_90.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs" / "figures", tmp_path / "docs" / "figures")
    shutil.copytree(ROOT / "cuda_src", tmp_path / "cuda_src")
    return tmp_path


def test_a_change_of_the_code_is_found_and_written(checkout, capsys):
    path = checkout / "cuda_src" / "05_blocktile_2d.cu"
    path.write_text(path.read_text().replace("acc[i][j] = __fmaf_rn(a[i]", "acc[i][j] = __fmaf_rz(a[i]"))
    assert draw_ladder.main(["--check"], root=checkout) == 1
    assert capsys.readouterr().err.startswith("out of date: ladder.md;")
    assert draw_ladder.main([], root=checkout) == 0
    assert "__fmaf_rz(a[i]" in (checkout / "docs" / "ladder.md").read_text()
    assert draw_ladder.main(["--check"], root=checkout) == 0


def test_a_passage_that_is_gone_is_an_error(checkout):
    path = checkout / "cuda_src" / "02_coalesced.cu"
    path.write_text(path.read_text().replace("const int m = tile.m", "const int mine = tile.m"))
    with pytest.raises(ValueError, match=r"02_coalesced\.cu has no line 'const int m = tile\.m"):
        ladder_code.texts(checkout / "cuda_src")


def test_a_passage_that_has_grown_is_an_error(checkout):
    path = checkout / "cuda_src" / "04_blocktile_1d.cu"
    path.write_text(
        path.read_text().replace("auto step = [&](int k) {", "auto step = [&](int k) {\n" + 20 * "    k;\n")
    )
    with pytest.raises(ValueError, match="the passages have 24 lines; the limit is 16"):
        ladder_code.texts(checkout / "cuda_src")


def test_other_constants_are_another_picture(checkout, capsys):
    path = checkout / "docs" / "data" / "counts.json"
    path.write_text(path.read_text().replace('"BM": 32', '"BM": 16', 1))
    assert draw_ladder.main(["--check"], root=checkout) == 1
    assert "rung-naive-narrow-dark.svg" in capsys.readouterr().err
