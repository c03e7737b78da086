"""The kernel cache with folders and entries that somebody else made: never their code, at most one warning."""

import hashlib
import os
import pwd
import stat
import subprocess
import sys
import warnings

import pytest

from fastsgemm import private_files
from fastsgemm.jit import cache

KEY, CUBIN = b"a key", b"\x7fELF machine code" * 100
OTHER_KEY, OTHER_CUBIN = b"another key", b"\x7fELF other machine code" * 100
STRANGER = 54321  # a user id that is neither root's nor ours


@pytest.fixture
def folder(tmp_path, monkeypatch, fresh_machine):
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@pytest.fixture
def stored(folder):
    """A cache with two good entries; the files of both."""
    cache.write(KEY, CUBIN)
    cache.write(OTHER_KEY, OTHER_CUBIN)
    assert cache.read(KEY) == CUBIN
    return entry(folder, KEY), entry(folder, OTHER_KEY)


@pytest.fixture
def umask():
    """Set the umask of this process for one test."""
    before = os.umask(0)
    os.umask(before)
    yield os.umask
    os.umask(before)


def entry(folder, key):
    return folder / f"{hashlib.sha256(key).hexdigest()}.cubin"


def misses(said):
    """See that a read misses, twice, with one warning in all."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert cache.read(KEY) is None
        assert cache.read(KEY) is None
    assert len(seen) == 1 and said in str(seen[0].message), [str(one.message) for one in seen]


def owned_by(monkeypatch, path, user):
    """Let the system say that this file or folder belongs to another user (only root could give it away)."""

    def changed(real):
        def look(where, *rest, **more):
            found = real(where, *rest, **more)
            if found.st_ino != inode:
                return found
            return os.stat_result((*found[:4], user, *found[5:]))

        return look

    inode = path.stat().st_ino
    monkeypatch.setattr(private_files.os, "stat", changed(os.stat))
    monkeypatch.setattr(private_files.os, "fstat", changed(os.fstat))


# Entries that are not what they are called


def test_two_entries_that_were_swapped_are_compiled_again(stored, tried):
    one, two = (path.read_bytes() for path in stored)
    stored[0].write_bytes(two)
    stored[1].write_bytes(one)
    misses("damaged entry")
    assert cache.read(OTHER_KEY) is None
    tried("cache entry in place of another", 2)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        hashlib.sha256(b"").digest(),
        hashlib.sha256(CUBIN).digest(),
        CUBIN + hashlib.sha256(CUBIN).digest(),
        cache._digest(KEY, b""),
    ],
    ids=["nothing", "the digest of nothing", "a digest alone", "a digest of the code alone", "no code with its digest"],
)
def test_an_entry_whose_digest_does_not_cover_key_and_code(stored, content, tried):
    stored[0].write_bytes(content)
    misses("damaged entry")
    tried("cache entry with a digest of something else", 1)


def test_every_length_of_a_good_entry_but_its_own_is_damage(stored, tried):
    whole = stored[0].read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in (*range(0, len(whole), 7), len(whole) - 1):
            stored[0].write_bytes(whole[:size])
            assert cache.read(KEY) is None
            tried("cache entry cut short", 1)
        stored[0].write_bytes(whole + b"\0")
        assert cache.read(KEY) is None
    stored[0].write_bytes(whole)
    assert cache.read(KEY) == CUBIN


def test_a_fifo_as_an_entry_does_not_block(stored, tried):
    stored[0].unlink()
    os.mkfifo(stored[0])
    misses("not a regular file")
    tried("FIFO as a cache entry", 1)


def test_an_entry_too_large_to_be_one_is_not_read(stored, tried):
    os.truncate(stored[0], 2**40)
    misses("the limit is")
    tried("cache entry of 1 TiB", 1)


# Who may write


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077, 0o277, 0o777])
@pytest.mark.parametrize("user", [0, STRANGER])
def test_only_what_root_makes_is_for_others_to_read(folder, umask, mask, user, monkeypatch, tried):
    """As far as the umask of root lets them; nobody else writes it."""
    deep = folder / "deep" / "down"
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(deep))
    umask(mask)
    monkeypatch.setattr(os, "geteuid", lambda: user)  # who may use what root owns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.write(KEY, CUBIN)
        assert cache.read(KEY) == CUBIN
    expected = 0o700 if user else 0o700 | (0o755 & ~mask)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "deep", deep)] == [expected] * 3
    assert stat.S_IMODE(entry(deep, KEY).stat().st_mode) == 0o600 | (expected & 0o044)
    assert private_files.hidden_from_others(deep) is (user == 0 and bool(mask & 0o004))
    tried("umask", 1)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o720, 0o702])
@pytest.mark.parametrize("which", ["folder", "entry"])
def test_what_others_can_write_is_passed_over(folder, stored, mode, which, tried):
    (folder if which == "folder" else stored[0]).chmod(mode)
    misses("other users can write")
    tried(f"cache {which} that others can write", 1)


@pytest.mark.parametrize("which", ["folder", "entry"])
def test_what_another_user_owns_is_passed_over(folder, stored, monkeypatch, which, tried):
    owned_by(monkeypatch, folder if which == "folder" else stored[0], STRANGER)
    misses("belongs to another user, 54321")
    tried(f"cache {which} of another user", 1)


def test_what_root_owns_is_used(folder, stored, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    for path in (folder, stored[0]):
        owned_by(monkeypatch, path, 0)
    assert private_files.read(stored[0], 10**6)


def test_nothing_is_stored_in_a_folder_that_others_can_write(folder, tried):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="chmod go-w"):
        cache.write(KEY, CUBIN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.write(KEY, CUBIN)
    assert list(folder.iterdir()) == []
    tried("cache folder that others can write", 1)


def test_a_link_to_a_folder_that_others_can_write_is_no_way_around(folder, tmp_path, tried):
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o777)
    folder.symlink_to(public)
    misses("other users can write")
    tried("link to a folder that others can write", 1)


def test_a_folder_below_a_link_that_leads_nowhere_is_one_warning(folder, tmp_path, monkeypatch):
    folder.symlink_to(tmp_path / "gone" / "for good")
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(folder / "below"))
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        cache.write(KEY, CUBIN)


# Clearing


def test_clearing_a_cache_that_is_not_there_makes_no_folder(folder):
    cache.clear()
    assert cache.entries() == (0, 0) and not folder.exists()


def test_clearing_leaves_what_is_not_ours(folder, stored):
    other = folder / "thesis.tex"
    other.write_text("years of work")
    cache.clear()
    assert list(folder.iterdir()) == [other]


def test_the_least_recently_used_entries_go_first(folder, stored, monkeypatch):
    for path, seconds in zip(stored, (1000, 2000), strict=True):
        os.utime(path, (seconds, seconds))
    assert cache.read(KEY) == CUBIN  # now it is the more recent one
    monkeypatch.setattr(cache, "_MAX_BYTES", 2 * len(OTHER_CUBIN))
    cache.write(b"a third", CUBIN)
    assert cache.read(KEY) == CUBIN and cache.read(OTHER_KEY) is None


def test_what_a_killed_process_left_goes_after_a_while(folder, stored):
    old, new = (folder / f"{stored[0].name}{name}.part" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    cache.write(KEY, CUBIN)
    assert not old.exists() and new.exists()


# No home


@pytest.fixture
def homeless(monkeypatch, fresh_machine):
    """A container's arbitrary user: no HOME and no passwd entry."""

    def unknown(user):
        raise KeyError(f"getpwuid(): uid not found: {user}")

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "FASTSGEMM_CACHE_DIR", "FASTSGEMM_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_without_a_home_there_is_one_warning_and_no_cache(homeless, monkeypatch, tmp_path, tried):
    from fastsgemm.heuristics import database, database_entries

    monkeypatch.chdir(tmp_path)
    database.forget()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        cache.write(KEY, CUBIN)
        assert cache.read(KEY) is None
        assert not database.own("sm_90").records
        assert database.load(database_entries.GENERIC).records
    assert len(seen) == 1 and "no home folder" in str(seen[0].message)
    assert cache.folder() is None and cache.entries() == (0, 0)
    cache.clear()
    assert list(tmp_path.iterdir()) == []  # nothing in a folder that is called ~
    database.forget()
    tried("no home folder", 1)


def test_without_a_home_the_environment_variable_is_enough(homeless, monkeypatch, tmp_path, tried):
    monkeypatch.setenv("FASTSGEMM_CACHE_DIR", str(tmp_path / "kernels"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.write(KEY, CUBIN)
        assert cache.read(KEY) == CUBIN
    tried("no home folder", 1)


def test_the_commands_say_that_there_is_no_cache(homeless):
    code = "import pwd, sys\ndef unknown(user): raise KeyError\npwd.getpwuid = unknown\n"
    code += "from fastsgemm.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    for command, status in ((["cache"], 2), (["cache", "--clear"], 2), (["info"], 0)):
        done = subprocess.run(
            [sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=60, env=dict(os.environ)
        )
        assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
        assert "home folder" in done.stdout + done.stderr
