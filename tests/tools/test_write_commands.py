"""The page of the commands has the variables and the options as the code declares them."""

import pytest
import write_commands
from msgspec import structs

from fastsgemm import settings


def test_the_page_is_up_to_date(capsys):
    assert write_commands.main(["--check"]) == 0, capsys.readouterr().err


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A copy of the page, which a test may change."""
    path = tmp_path / "commands.md"
    path.write_text(write_commands.PAGE.read_text())
    monkeypatch.setattr(write_commands, "PAGE", path)
    return path


def test_a_variable_that_has_changed_is_seen_and_written(page, monkeypatch, capsys):
    monkeypatch.setattr(settings, "TUNE", structs.replace(settings.TUNE, default="off"))
    assert write_commands.main(["--check"]) == 1
    assert "commands.md; run tools/write_commands.py" in capsys.readouterr().err
    assert write_commands.main([]) == 0
    (row,) = (line for line in page.read_text().splitlines() if line.startswith("| `FASTSGEMM_TUNE` |"))
    assert row.endswith("(`off`) | `auto`, `off` | `off` |")


def test_an_option_that_is_missing_is_seen_and_written(page):
    text = page.read_text()
    page.write_text("".join(line for line in text.splitlines(True) if "`--dry-run`" not in line))
    assert page.read_text() != text and write_commands.main(["--check"]) == 1
    assert write_commands.main([]) == 0
    assert page.read_text() == text
