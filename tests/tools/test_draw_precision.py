"""The picture of speed against error shows the data that is kept."""

import json

import pytest

draw_precision = pytest.importorskip("draw_precision", reason="tools/ is part of a checkout only")


def test_the_picture_is_that_of_the_data():
    assert draw_precision.main(["--check"]) == 0


def test_a_picture_without_a_peer_is_found(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "docs" / "data").mkdir(parents=True)
    own, other = {"tflops": 180.0, "error": 2e-7}, {"tflops": 50.0, "error": 1e-6}
    peers = [{"n": 4096, "peers": {"old": own}}, {"n": 8192, "peers": {"fastsgemm fp16x3": own, "cuBLAS FP32": other}}]
    data = {"device": "NVIDIA X", "date": "2026-01-02", "peers": peers}
    kept = tmp_path / "docs" / "data" / "fp16x3.json"
    kept.write_text(json.dumps(data))
    assert draw_precision.main([], root=tmp_path) == 0
    assert draw_precision.main(["--check"], root=tmp_path) == 0
    first = (tmp_path / "docs" / "precision.svg").read_bytes()
    assert draw_precision.main([], root=tmp_path) == 0
    assert (tmp_path / "docs" / "precision.svg").read_bytes() == first and b"old" not in first
    peers[1]["peers"]["Someone else"] = other
    kept.write_text(json.dumps(data))
    assert draw_precision.main(["--check"], root=tmp_path) == 1
    assert "does not show Someone else" in capsys.readouterr().err
