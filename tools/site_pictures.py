"""Pictures of pages: as Markdown that follows the reader's system, and as HTML that follows the switch of the site."""

from __future__ import annotations

import re

_PHONE = "(max-width: 600px)"
_DARK = "(prefers-color-scheme: dark)"
_SOURCE = r'<source media="[^"]*" srcset="([^"]+)">\s*'
_PICTURE = re.compile(rf'<picture>\s*((?:{_SOURCE})+)<img src="([^"]+)"([^>]*)>\s*</picture>')


def markdown(name: str, says: str) -> str:
    """Return a picture of docs/figures, with its narrow form, as a page shows it; `says` is its text."""
    base = f"figures/{name}"
    return "\n".join(
        [
            "<picture>",
            f'<source media="{_PHONE} and {_DARK}" srcset="{base}-narrow-dark.svg">',
            f'<source media="{_PHONE}" srcset="{base}-narrow-light.svg">',
            f'<source media="{_DARK}" srcset="{base}-dark.svg">',
            f'<img src="{base}-light.svg" alt="{says}">',
            "</picture>",
        ]
    )


def in_both_themes(text: str) -> str:
    """Return a page with each picture as two, of which the site shows the one of the theme that was chosen."""
    return _PICTURE.sub(_two, text)


def _two(match: re.Match[str]) -> str:
    sources, _, light, more = match.groups()
    shown = re.findall(_SOURCE, sources)
    dark, narrow = next(one for one in shown if "-narrow-" not in one), [one for one in shown if "-narrow-" in one]
    parts = []
    for theme, wide in (("light", light), ("dark", dark)):
        form = "".join(f'<source media="{_PHONE}" srcset="{one}">' for one in narrow if one.endswith(f"-{theme}.svg"))
        parts.append(f'<picture class="only-{theme}">{form}<img src="{wide}"{more}></picture>')
    return f'<div class="figure">{"".join(parts)}</div>'
