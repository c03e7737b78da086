#!/usr/bin/env python3
"""Fail if a page of the built site refers to a file or an anchor of the site that does not exist.

    tools/check_site.py build/site

Sphinx checks the links of Markdown. This also sees HTML within a page, such as pictures with a dark variant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """Collects the addresses and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what one tag has."""
        for name, value in attrs:
            if value and name in ("href", "src", "srcset"):
                self.addresses.add(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def dead_links(site: Path) -> list[str]:
    """Return the addresses that lead nowhere, each as ``page: address``."""
    dead = []
    for path in sorted(site.rglob("*.html")):
        for address in sorted(_read(path).addresses):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            exists = target.exists()
            if exists and parts.fragment and target.suffix == ".html":
                exists = unquote(parts.fragment) in _read(target).anchors
            if not exists:
                dead.append(f"{path.relative_to(site)}: {address}")
    return dead


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("site", type=Path)
    options = parser.parse_args(arguments)
    if not (options.site / "index.html").exists():
        parser.error(f"{options.site} is no built site")
    dead = dead_links(options.site)
    for one in dead:
        print(f"dead link: {one}", file=sys.stderr)
    return int(bool(dead))


if __name__ == "__main__":
    sys.exit(main())
