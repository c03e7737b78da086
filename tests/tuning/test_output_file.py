"""A file that cannot be written is refused before the run."""

import os

import pytest

from fastsgemm import command_line
from fastsgemm.errors import RecordError
from fastsgemm.measure import suite
from fastsgemm.tuning.output_file import refuse_unwritable

QUICK = ("--quick", "--rung", "autotuned", "--no-progress", "--size", "512,512,512")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def test_what_can_be_written_is_not_refused(place):
    for name in ("file", "new"):
        refuse_unwritable(place / name)
    refuse_unwritable(place / "pipe")
    assert (place / "file").read_text() == "old" and not (place / "new").exists()


@pytest.mark.parametrize(("name", "reason"), [("folder", "it is a folder"), ("none/x", "there is no folder")])
def test_what_cannot_be_written_is_refused(place, name, reason):
    with pytest.raises(RecordError, match=reason):
        refuse_unwritable(place / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_without_permission_is_refused(place):
    (place / "file").chmod(0o400)
    with pytest.raises(RecordError, match="you may not write"):
        refuse_unwritable(place / "file")
    (place / "folder").chmod(0o500)
    with pytest.raises(RecordError, match="you may not write"):
        refuse_unwritable(place / "folder" / "x")


def test_tune_measures_nothing_for_it(cli, place, evaluator):
    pytest.importorskip("matplotlib")
    code, out, err = cli(*QUICK, "--plot", str(place / "folder"))
    assert code == 2 and out == "" and err.count("\n") == 1 and "cannot be written" in err
    assert evaluator.compiled == evaluator.timed == []


@pytest.mark.parametrize("option", ["--output", "--report"])
def test_bench_measures_nothing_for_it(place, capsys, monkeypatch, option):
    monkeypatch.setattr(suite, "run", lambda samples, where: pytest.fail("it was measured"))
    assert command_line.main(["bench", "--size", "64", option, str(place / "folder")]) == 2
    assert "it is a folder" in capsys.readouterr().err
