"""A canvas that writes plain SVG: rectangles, lines and text in the colours of a theme, the same bytes every time."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
SIZE = 13.0  # of text, in pixels; a phone shows a narrow picture as large as it is drawn
_CHARACTER = 0.6  # width of a character relative to the size of the text, in a wide font


@dataclass(frozen=True)
class Theme:
    """Colours of one variant of a picture: paper, ink, what is less important, block, warp and thread, and losses."""

    paper: str
    ink: str
    muted: str
    faint: str
    block: str
    warp: str
    thread: str
    loss: str


THEMES = {
    "light": Theme("#ffffff", "#1f2328", "#57606a", "#d0d7de", "#0969da", "#bc7a00", "#bf3989", "#cf222e"),
    "dark": Theme("#0d1117", "#e6edf3", "#9198a1", "#3d444d", "#58a6ff", "#d29922", "#f778ba", "#ff7b72"),
}


class Canvas:
    """A picture of `width` pixels. What is drawn later covers what was drawn before."""

    def __init__(self, width: float, theme: Theme) -> None:
        self.width, self.theme = width, theme
        self._parts: list[str] = []

    def rect(
        self,
        box: tuple[float, float, float, float],
        fill: str = "none",
        edge: str = "none",
        opacity: float = 1.0,
        dashed: bool = False,
    ) -> None:
        """Draw a rectangle: x, y, width and height; `opacity` is that of the filling."""
        x, y, width, height = box
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        stroke = "" if edge == "none" else f' stroke="{edge}" stroke-width="1.2"'
        filled = f' fill="{fill}"' + ("" if opacity == 1.0 else f' fill-opacity="{_n(opacity)}"')
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"{filled}{stroke}{dash}/>'
        )

    def line(self, start: tuple[float, float], end: tuple[float, float], color: str, arrow: bool = False) -> None:
        """Draw a line, with a head at its end if it is an arrow that points down or right."""
        (x, y), (to_x, to_y) = start, end
        self._parts.append(
            f'<path d="M{_n(x)} {_n(y)}L{_n(to_x)} {_n(to_y)}" stroke="{color}" stroke-width="1.4" fill="none"/>'
        )
        if arrow:
            down = to_x == x
            left, right = ((-4, -6), (4, -6)) if down else ((-6, -4), (-6, 4))
            corners = [(to_x + dx, to_y + dy) for dx, dy in (left, right)]
            points = " ".join(f"{_n(a)},{_n(b)}" for a, b in [(to_x, to_y), *corners])
            self._parts.append(f'<polygon points="{points}" fill="{color}"/>')

    def text(
        self,
        at: tuple[float, float],
        text: str,
        color: str = "",
        bold: bool = False,
        anchor: str = "start",
        size: float = SIZE,
    ) -> None:
        """Write a line of text whose base line begins, or ends or has its middle, at a point.

        Raises
        ------
        ValueError
            In a wide font it would leave the picture.
        """
        x, y = at
        long = _CHARACTER * size * len(text)
        left = x - {"start": 0.0, "middle": long / 2, "end": long}[anchor]
        if left < 0 or left + long > self.width:
            raise ValueError(f"{text!r} takes {long:.0f} pixels from {left:.0f} on; the picture has {self.width:.0f}")
        weight = ' font-weight="600"' if bold else ""
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        shown = f'<text x="{_n(x)}" y="{_n(y)}" fill="{color or self.theme.ink}" font-size="{_n(size)}"{weight}{place}>'
        self._parts.append(f"{shown}{escape(text, quote=False)}</text>")

    def svg(self, height: float, title: str) -> str:
        """Return the picture as a file; `title` says in words what it shows."""
        size = f'width="{_n(self.width)}" height="{_n(height)}" viewBox="0 0 {_n(self.width)} {_n(height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}">'
        paper = f'<rect width="{_n(self.width)}" height="{_n(height)}" fill="{self.theme.paper}"/>'
        return "\n".join([head, f"<title>{escape(title)}</title>", paper, *self._parts, "</svg>", ""])


def _n(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
