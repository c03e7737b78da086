"""C++ for the host, compiled once, with a compiler that counts its runs: a script that writes what it is told to."""

import os
import subprocess
import sys
import warnings

import pytest
import subprocesses

from fastsgemm import private_files
from fastsgemm.errors import CompileError, DeviceError
from fastsgemm.jit import cache, host_compiler
from fastsgemm.jit.host_compiler import Library

ONCE = ["-c", "-shared"]  # what the compiler is asked for when a library of one source is compiled


class Compiler:
    """The script, which writes down whether it compiles or links."""

    def __init__(self, folder):
        self.path, self._log = folder / "compiler", folder / "log"
        self.becomes("sleep 0.2")

    def becomes(self, first, status=0):
        self.path.write_text(
            f'#!/bin/sh\ncase "$*" in *-shared*) echo -shared;; *) echo -c;; esac >> {self._log}\n{first}\n'
            f'while [ $# -gt 0 ]; do [ "$1" = -o ] && printf made > "$2"; shift; done\nexit {status}\n'
        )
        self.path.chmod(0o700)

    @property
    def asked(self):
        return self._log.read_text().split() if self._log.exists() else []


@pytest.fixture
def folder(tmp_path, monkeypatch, fresh_machine):
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@pytest.fixture
def compiler(tmp_path, monkeypatch, folder):
    made = Compiler(tmp_path)
    monkeypatch.setenv("CXX", str(made.path))
    return made


@pytest.fixture
def library(tmp_path):
    for name in ("source.cpp", "header.h"):
        (tmp_path / name).write_text("int x;")
    return Library((tmp_path / "source.cpp",), (tmp_path / "header.h",), ("-O1",), ("-lm",))


def load(library):
    """Return what the library begins with: what the compiler wrote."""
    return host_compiler.load(library, "a library", lambda path: path.read_bytes()[:4])


def test_a_library_is_compiled_once(compiler, library, folder, capsys):
    assert not host_compiler.is_kept(library)
    for _ in range(3):
        assert load(library) == b"made"
    assert compiler.asked == ONCE and host_compiler.is_kept(library)
    assert capsys.readouterr().err == "fastsgemm compiles a library, once; this takes about 10 s\n"
    assert cache.entries() == (1, 4 + 32)
    cache.clear()
    assert cache.entries() == (0, 0) and not host_compiler.is_kept(library)


def test_what_a_library_depends_on(compiler, library):
    load(library)
    changes = [
        lambda: library.sources[0].write_text("int y;"),
        lambda: library.headers[0].write_text("int y;"),
    ]
    for times, change in enumerate(changes, start=2):
        change()
        assert load(library) == b"made" and compiler.asked == times * ONCE
    for other in (library._replace(options=("-O2",)), library._replace(links=("-ldl",))):
        assert not host_compiler.is_kept(other)


def test_two_processes_compile_it_once(compiler, library):
    program = (
        "from pathlib import Path\nfrom fastsgemm.jit import host_compiler\n"
        f"library = host_compiler.Library((Path({str(library.sources[0])!r}),), (), ('-O1',), ())\n"
        "print(host_compiler.load(library, 'a library', lambda path: path.read_bytes()[:4]))"
    )
    command = [sys.executable, "-c", program]
    both = [
        subprocess.Popen(command, env=subprocesses.environment(), stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [each.communicate(timeout=60)[0] for each in both] == 2 * ["b'made'\n"]
    assert compiler.asked == ONCE


@pytest.mark.parametrize(("name", "looked"), [("no-such-compiler", "CXX=no-such-compiler"), ("", "g++, c++, clang++")])
def test_without_a_compiler(library, folder, monkeypatch, name, looked):
    monkeypatch.setenv("CXX", name)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceError) as error:
        load(library)
    assert str(error.value) == f"no C++ compiler was found (looked for {looked})"
    assert not host_compiler.is_kept(library)


def test_what_is_kept_needs_no_compiler(compiler, library, monkeypatch):
    load(library)
    compiler.becomes("true # another version")
    assert load(library) == b"made" and compiler.asked == ONCE
    monkeypatch.setenv("CXX", "no-such-compiler")
    hindered = library._replace(obstacle="a header is missing")
    assert host_compiler.is_kept(hindered) and load(hindered) == b"made"
    hindered.headers[0].write_text("int y;")
    with pytest.raises(DeviceError, match="a header is missing"):
        load(hindered)


def test_a_compiler_that_fails(compiler, library):
    compiler.becomes("echo 'source.cpp:1: note'; echo 'source.cpp:7: error: no such thing' >&2; echo more >&2", 1)
    with pytest.raises(CompileError) as error:
        load(library)
    reason = "could not compile a library (exit status 1): source.cpp:7: error: no such thing"
    assert str(error.value) == f"{compiler.path} {reason}"
    compiler.becomes("kill -9 $$")
    with pytest.raises(CompileError, match=r"could not compile a library \(exit status -9\): no message"):
        load(library)
    assert cache.entries() == (0, 0)


def test_a_file_that_is_no_program(compiler, library):
    compiler.path.write_bytes(b"\x7fELF")
    with pytest.raises(CompileError, match=r"could not compile a library: .*Exec format error"):
        load(library)


@pytest.mark.parametrize("content", [b"", b"made", b"else" + 32 * b"x"], ids=["empty", "cut short", "another"])
def test_a_damaged_file_is_compiled_again(compiler, library, folder, content):
    load(library)
    [path] = folder.glob("*.so")
    path.write_bytes(content)
    assert not host_compiler.is_kept(library)
    assert load(library) == load(library) == b"made" and compiler.asked == 2 * ONCE


def alone(library, reason):
    """See that the library is compiled for this process alone, with one warning."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert load(library) == b"made"
    [message] = [str(each.message) for each in seen]
    assert reason in message and message.endswith("a library is compiled for this process alone")


def test_a_folder_that_others_can_write(compiler, library, folder):
    load(library)
    folder.chmod(0o777)
    alone(library, "other users can write")
    assert compiler.asked == 2 * ONCE


def test_a_file_of_others(compiler, library, folder):
    load(library)
    [path] = folder.glob("*.so")
    path.chmod(0o666)
    alone(library, "other users can write")
    assert not host_compiler.is_kept(library)


def test_a_folder_that_is_read_only(compiler, library, folder, monkeypatch):
    """(Permissions do not stop root: the refusal is injected.)"""
    other = library._replace(options=("-O2",))
    load(library)

    def refuse(*given, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(private_files, "replace", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    assert load(library) == b"made" and compiler.asked == ONCE
    alone(other, "Permission denied")
    assert cache.entries()[0] == 1


def test_an_error_of_who_uses_it_is_not_one_of_the_cache(compiler, library):
    def use(path):
        raise OSError("cannot be used")

    with pytest.raises(OSError, match="cannot be used"):
        host_compiler.load(library, "a library", use)
