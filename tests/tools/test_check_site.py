"""A dead link of the built site is found: in a link, an anchor or a picture."""

import pytest

check_site = pytest.importorskip("check_site", reason="tools/ is part of a checkout only")


@pytest.fixture
def site(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.svg").write_text("<svg/>")
    (tmp_path / "docs" / "page.html").write_text('<h1 id="top">Page</h1><a href="#top">up</a><img src="a.svg">')
    (tmp_path / "index.html").write_text('<a href="docs/page.html#top">1</a><a href="https://example.org/none">2</a>')
    return tmp_path


def test_a_whole_site_passes(site):
    assert check_site.main([str(site)]) == 0


@pytest.mark.parametrize(
    "broken",
    ['<a href="none.html">', '<a href="page.html#none">', '<source srcset="a-dark.svg">', '<img src="../a.svg">'],
)
def test_a_dead_link_is_found(site, broken, capsys):
    page = site / "docs" / "other.html"
    page.write_text(broken)
    assert check_site.main([str(site)]) == 1
    assert "docs/other.html" in capsys.readouterr().err


def test_a_folder_without_a_site_is_an_error(tmp_path):
    with pytest.raises(SystemExit):
        check_site.main([str(tmp_path)])
