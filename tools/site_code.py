"""The device code as a part of a page of the site: every file, folded and highlighted."""

from __future__ import annotations

from pathlib import Path


def device_code(folder: Path) -> str:
    """Return Markdown for a page in `folder` that includes every file of device code below it."""
    parts = ["\n\n## Every file\n"]
    for path in (*sorted(folder.glob("*.cu")), *sorted((folder / "device").glob("*.cuh"))):
        name = path.relative_to(folder).as_posix()
        parts.append(f'<details id="{path.name}">\n<summary><code>{name}</code></summary>\n')
        parts.append(f"```{{literalinclude}} {name}\n:language: cuda\n:linenos:\n```\n\n</details>\n")
    return "\n".join(parts)
