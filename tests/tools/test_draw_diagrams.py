"""The picture of a symmetric result has the tiles that the kernels compute and is up to date; the logo is a square."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest

from fastsgemm.geometry import grid

diagrams = pytest.importorskip("draw_diagrams", reason="tools/ is part of a checkout only")


def test_the_pictures_are_up_to_date(capsys):
    assert diagrams.main(["--check"]) == 0, capsys.readouterr().err


def test_a_changed_picture_is_found(tmp_path, capsys):
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    assert diagrams.main(["--check"], root=tmp_path) == 1
    assert diagrams.main([], root=tmp_path) == 0
    path = tmp_path / "docs" / "figures" / "symmetric-light.svg"
    path.write_text(path.read_text().replace("#0969da", "#0969db"))
    capsys.readouterr()
    assert diagrams.main(["--check"], root=tmp_path) == 1
    assert capsys.readouterr().err.startswith("out of date: symmetric-light.svg;")


def test_as_many_tiles_are_computed_as_a_kernel_computes():
    many = sum(itertools.starmap(diagrams.computed, itertools.product(range(diagrams.TILES), repeat=2)))
    assert many == grid.triangle_tiles(128, 128, 128 * diagrams.TILES)
    theme = diagrams.THEMES["light"]
    svg = diagrams.symmetric(theme)
    assert f"computed: {many} of 64 tiles," in svg
    tile = f'width="{diagrams.CELL:g}" height="{diagrams.CELL:g}"'
    assert len(re.findall(rf'{tile} fill="{theme.block}"', svg)) == many
    assert len(re.findall(rf'{tile} fill="{theme.warp}"', svg)) == 64 - many


@pytest.mark.parametrize("name", ["favicon", "logo"])
def test_the_logo_stays_in_its_square_and_has_no_paper(name):
    text = (diagrams.ROOT / "docs" / "static" / f"{name}.svg").read_text()
    found = ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}rect")
    boxes = [[float(one.get(name)) for name in ("x", "y", "width", "height")] for one in found]
    assert len(boxes) == 6
    assert all(min(x, y) >= 0 and max(x + wide, y + tall) <= 64 and wide < 64 for x, y, wide, tall in boxes)
