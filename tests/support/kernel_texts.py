"""The texts of kernels, and kernels with a changed text wherever they are launched."""

from fastsgemm.jit import source

_REAL = source.with_constants


def helper(name, **changed):
    """Return the text of a kernel that has no `Config`: with its constants of `HELPERS`, but for those changed."""
    return source.with_constants(f"{name}.cu", source.HELPERS[name] | changed)


def change(monkeypatch, edit, file=None):
    """Let a function change the text of the kernel in a file, or of all that are rungs."""

    def with_constants(name, constants):
        text = _REAL(name, constants)
        return edit(text) if name == file or (file is None and name[0].isdigit()) else text

    monkeypatch.setattr(source, "with_constants", with_constants)


def replace(monkeypatch, old, new, file):
    """Replace a part of the text of the kernel in a file."""

    def edit(text):
        if old not in text:
            raise ValueError(f"{old!r} is not there")  # no AssertionError, which may be expected
        return text.replace(old, new)

    change(monkeypatch, edit, file)


def restore(monkeypatch):
    """Let all kernels have their own texts again."""
    monkeypatch.setattr(source, "with_constants", _REAL)
