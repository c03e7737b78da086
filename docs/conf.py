"""Sphinx's configuration. The root of the repository is the source folder, so links between pages are the same in the
site, on the repository's host and in a text editor. `make docs` builds the site.
"""

import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import MagicMock

from numpydoc.xref import DEFAULT_LINKS

import fastsgemm

ROOT = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT / "tools"))
import site_code  # noqa: E402
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
include_patterns += ["cuda_src/README.md", "examples/README.md", "tuning_db/README.md"]
exclude_patterns = [".*", "build", "dist", "docs/data", "docs/static"]

extensions = ["sphinx.ext.autodoc", "numpydoc", "myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # types are in the docstrings, with shapes and units
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
# Types and errors in docstrings are links to the page of the API; other libraries' types are text.
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = (
    {name: name for name in DEFAULT_LINKS}
    | {name: f"fastsgemm.errors.{name}" for name in fastsgemm.__all__ if name.endswith("Error")}
    | {name: f"fastsgemm.{name}" for name in ("Config", "SplitOperand")}
    | {"Rung": "fastsgemm.rungs.Rung", "Preparation": "fastsgemm.preparation.Preparation"}
    | {"Explanation": "fastsgemm.heuristics.explanation.Explanation", "Outcome": "fastsgemm.tuning.outcome.Outcome"}
)
default_role = "py:obj"  # `name` in a docstring is a link, if the page of the API has that name
# Objects without a docstring: warnings, which `make docs` makes errors.
numpydoc_validation_checks = {"GL08", "SS01"}
numpydoc_validation_exclude = {r"\.__init__$", r"\.__eq__$", r"\.__hash__$", r"\.__repr__$", r"\.__str__$"}

smartquotes = False  # pages and docstrings name options such as --size, and values such as "fp16x3"
highlight_language = "none"  # most blocks without a language are commands
html_theme = "furo"
html_title = f"fastsgemm {release}"
html_show_sphinx = False
html_logo = "static/logo.svg"
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {
    "dark_css_variables": {"color-background-primary": "#0d1117"},  # that of the dark pictures
    "source_repository": "https://github.com/fastsgemm/fastsgemm/",
    "source_branch": "main",
    "source_directory": "",
}


def _follow_the_switch(app, page, source):
    """Make the pictures of a page follow the theme that the reader has chosen on the site."""
    source[0] = site_pictures.in_both_themes(source[0])
    if page == "cuda_src/README":
        source[0] += site_code.device_code(ROOT / "cuda_src")


def _link_pages(app, what, name, obj, options, lines):
    """Make a page that a docstring names a link."""
    lines[:] = [re.sub(r"``docs/([\w-]+)\.md``", r":doc:`\1`", line) for line in lines]


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
    app.connect("autodoc-process-docstring", _link_pages)
    app.connect("build-finished", _finish)
