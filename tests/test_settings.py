"""Every environment variable is declared in one file, which alone reads them; nothing writes one."""

import os
import re
from pathlib import Path

import pytest

from fastsgemm import settings
from fastsgemm.errors import ConfigError, DeviceError

ROOT = Path(__file__).resolve().parent.parent
DECLARED = [one for one in vars(settings).values() if isinstance(one, settings.Variable)]
READS = re.compile(r"\benviron(b)?\b|\bgetenv(b)?\b|\b(un)?putenv\b|\bunsetenv\b|\bsetenv\b")
EXACT = [settings.CACHE_DIR, settings.DATA_DIR, settings.LOG_FILE]


def test_only_this_file_reads_the_environment():
    files = [path for folder in ("src", "host_src", "cuda_src") for path in sorted((ROOT / folder).rglob("*.*"))]
    texts = {path: path.read_text() for path in files if path.suffix in (".py", ".cpp", ".h", ".cu", ".cuh")}
    assert [path.name for path, text in texts.items() if READS.search(text)] == ["settings.py"]
    source = texts[ROOT / "src" / "fastsgemm" / "settings.py"]
    assert len(READS.findall(source)) == source.count("os.environ.get(self.name") == 3


@pytest.mark.parametrize(
    "line",
    ["os.environ['X'] = '1'", "from os import environ", "x = os.getenv('X')", 'std::getenv("X")', "os.putenv(a)"],
)
def test_each_way_to_the_environment_is_found(line):
    assert READS.search(line)


def test_every_name_in_the_source_is_declared():
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"\bFASTSGEMM_[A-Z_]+\b", source))
    assert named == {one.name for one in DECLARED} - {"CXX"}


@pytest.mark.parametrize("variable", DECLARED, ids=lambda variable: variable.name)
def test_a_variable_that_is_empty_has_its_default(variable, monkeypatch):
    monkeypatch.delenv(variable.name, raising=False)
    absent = variable.read()
    assert absent == (None if isinstance(variable, settings.Place) else variable.default)
    monkeypatch.setenv(variable.name, "")
    assert variable.read() == absent
    if variable not in EXACT:
        monkeypatch.setenv(variable.name, " \t")
        assert variable.read() == absent


@pytest.mark.parametrize("variable", DECLARED, ids=lambda variable: variable.name)
def test_the_documentation_says_what_holds_without_it(variable):
    assert bool(variable.default) != bool(variable.unset) and variable.meaning


@pytest.mark.parametrize("variable", EXACT, ids=lambda variable: variable.name)
def test_a_folder_is_taken_as_it_is_written(variable, monkeypatch):
    monkeypatch.setenv(variable.name, " A b ")
    assert variable.read() == Path(" A b ")


def test_a_text_keeps_its_case(monkeypatch):
    monkeypatch.setenv(settings.SIM_DEVICE.name, " NVIDIA H200\n")
    assert settings.SIM_DEVICE.read() == "NVIDIA H200"


@pytest.mark.parametrize("variable", [settings.TUNE, settings.LAUNCHER, settings.DEVICE], ids=lambda one: one.name)
def test_a_choice_takes_its_values_in_any_case(variable, monkeypatch):
    for value in variable.values:
        monkeypatch.setenv(variable.name, f" {value.upper()} ")
        assert variable.read() == value


@pytest.mark.parametrize(
    ("variable", "error", "limit"),
    [
        (settings.TUNE, ConfigError, "auto or off"),
        (settings.LAUNCHER, DeviceError, "auto or off"),
        (settings.DEVICE, DeviceError, "one of cuda, host, sim"),
    ],
    ids=lambda one: getattr(one, "name", None),
)
def test_another_value_is_an_error_with_the_limit_and_the_value(variable, error, limit, monkeypatch):
    monkeypatch.setenv(variable.name, "No")
    with pytest.raises(error, match=f"^{variable.name} must be {limit}, got 'no'$"):
        variable.read()
    assert variable.given() == "no"


def test_nothing_is_read_when_the_module_is_imported(monkeypatch):
    monkeypatch.setenv(settings.TUNE.name, "off")
    assert settings.TUNE.read() == "off"
    monkeypatch.setitem(os.environ, settings.TUNE.name, "auto")
    assert settings.TUNE.read() == "auto"
