"""The static_asserts of the kernels are the rules of their configs."""

import re

import pytest
import write_rules

from fastsgemm import resources


def test_the_kernels_have_the_rules_of_their_configs(capsys):
    assert write_rules.main(["--check"]) == 0, capsys.readouterr().err


def test_every_kernel_with_a_config_has_the_markers():
    marked = {path.name for path in resources.folder("cuda_src").glob("*.cu") if "// rules:begin" in path.read_text()}
    assert marked == write_rules.FAMILIES.keys()


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A copy of one kernel, which a test may change."""
    text = (resources.folder("cuda_src") / "06_vectorized.cu").read_text()
    path = tmp_path / "06_vectorized.cu"
    path.write_text(text)
    monkeypatch.setattr(write_rules, "FAMILIES", {path.name: write_rules.FAMILIES[path.name]})
    monkeypatch.setattr("fastsgemm.resources.folder", lambda name: tmp_path)
    return path


def test_a_rule_that_is_missing_is_seen_and_written(kernel, capsys):
    text = kernel.read_text()
    kernel.write_text(re.sub(r"static_assert\(BM % TM.*?;\n", "", text))
    assert write_rules.main(["--check"]) == 1
    assert "06_vectorized.cu" in capsys.readouterr().err
    assert write_rules.main([]) == 0
    assert "".join(kernel.read_text().split()) == "".join(text.split())
