"""A release whose files state different versions or dates is found before it is built."""

import re

import pytest

import fastsgemm

release = pytest.importorskip("check_release", reason="tools/ is part of a checkout only")


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "src" / "fastsgemm").mkdir(parents=True)
    (tmp_path / "src" / "fastsgemm" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 1.2.0, 2030-01-02\n")
    (tmp_path / "CITATION.cff").write_text("title: x\nversion: 1.2.0\ndate-released: 2030-01-02\n")
    return tmp_path


def test_files_that_agree_pass(checkout):
    assert release.contradictions(checkout) == release.contradictions(checkout, "v1.2.0") == []


@pytest.mark.parametrize("tag", ["1.2.0", "v1.2", "v1.2.0rc1", ""])
def test_another_tag_is_found(checkout, tag):
    assert release.contradictions(checkout, tag) == [f"the tag of version 1.2.0 is v1.2.0, got {tag}"]


def test_the_workflow_of_a_release_has_every_python():
    workflow = (release.ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert re.findall(r"^ +(3\.\d+)$", workflow, re.MULTILINE) == release.supported()


@pytest.mark.parametrize(
    ("name", "old", "new", "found"),
    [
        ("CITATION.cff", "version: 1.2.0", "version: 1.1.0", "CITATION.cff does not have version 1.2.0"),
        ("CITATION.cff", "2030-01-02", "2030-01-01", "CITATION.cff does not have date-released: 2030-01-02"),
        ("CHANGELOG.md", "## 1.2.0", "## 1.1.0", "CHANGELOG.md has no section 1.2.0"),
        ("CHANGELOG.md", ", 2030-01-02", ", not released yet", "CHANGELOG.md: section 1.2.0 has no date"),
    ],
)
def test_a_contradiction_is_found(checkout, name, old, new, found):
    path = checkout / name
    path.write_text(path.read_text().replace(old, new))
    assert found in release.contradictions(checkout)


def test_this_checkout_has_one_version_and_knows_its_pythons():
    assert release.version() == fastsgemm.__version__
    assert "3.11" in release.supported() and "3.15" in release.supported()
    assert [line for line in release.contradictions() if "no date" not in line] == []
