"""Sphinx's configuration. The root of the repository is the source folder, so links between pages are the same in the
site, on the repository's host and in a text editor. `make docs` builds the site.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import MagicMock

import fastsgemm

ROOT = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT / "tools"))
import site_pictures  # noqa: E402

if find_spec("torch") is None:  # it takes gigabytes, and only the docstrings of fastsgemm.torch are read
    Base = type("Base", (), {"apply": None})
    torch = MagicMock(__version__="2.9", OutOfMemoryError=RuntimeError)
    torch.autograd.Function = type("Function", (Base,), {})
    sys.modules |= {"torch": torch, "torch.autograd": torch.autograd, "torch._functorch.utils": MagicMock()}

project = "fastsgemm"
author = "The fastsgemm authors"
project_copyright = author
release = version = fastsgemm.__version__

root_doc = "docs/index"
include_patterns = ["docs/*.md", "docs/*.rst", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
include_patterns += ["cuda_src/README.md", "tuning_db/README.md"]
exclude_patterns = [".*", "build", "dist", "docs/data", "docs/static", "examples"]

extensions = ["sphinx.ext.autodoc", "numpydoc", "myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # types are in the docstrings, with shapes and units
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
# Objects without a docstring: warnings, which `make docs` makes errors.
numpydoc_validation_checks = {"GL08", "SS01"}
numpydoc_validation_exclude = {r"\.__init__$", r"\.__eq__$", r"\.__hash__$", r"\.__repr__$", r"\.__str__$"}

highlight_language = "none"  # most blocks without a language are commands
html_theme = "furo"
html_title = f"fastsgemm {release}"
html_show_sphinx = False
html_logo = "static/logo.svg"  # drawn by tools/draw_diagrams.py, like the icon
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": "https://github.com/fastsgemm/fastsgemm/",
    "source_branch": "main",
    "source_directory": "",
}


def _follow_the_switch(app, page, source):
    """Make the pictures of a page follow the theme that the reader has chosen on the site."""
    source[0] = site_pictures.in_both_themes(source[0])
    if page == "cuda_src/README":
        source[0] += _device_code()


def _device_code():
    """Return Markdown that includes every file of the device code, folded."""
    parts = ["\n\n## Every file\n"]
    for path in (*sorted((ROOT / "cuda_src").glob("*.cu")), *sorted((ROOT / "cuda_src" / "device").glob("*.cuh"))):
        name = path.relative_to(ROOT / "cuda_src")
        parts += [f'<details id="{path.name}">\n<summary><code>{name}</code></summary>\n']
        parts += [f"```{{literalinclude}} {name}\n:language: cuda\n:linenos:\n```\n", "</details>\n"]
    return "\n".join(parts)


def _finish(app, error):
    """Copy the pictures that pages show by HTML, and lead the site's address to its first page."""
    if error is None and app.builder.format == "html":
        site = Path(app.outdir)
        shutil.copytree(ROOT / "docs" / "figures", site / "docs" / "figures", dirs_exist_ok=True)
        first = f"{root_doc}.html"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={first}"><a href="{first}">fastsgemm</a>\n'
        (site / "index.html").write_text(page, encoding="utf-8")


def setup(app):
    """Connect these steps to the build."""
    app.connect("source-read", _follow_the_switch)
    app.connect("build-finished", _finish)
