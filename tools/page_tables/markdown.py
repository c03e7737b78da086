"""Markdown tables, and what stands where nothing was measured."""

from __future__ import annotations

from typing import Any

NOT_MEASURED = "*Not measured yet: run `make bench` and then `make tables` on a machine with a device.*"

Data = dict[str, Any]


def machine(data: Data) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in data["packages"].items())
    return f"one {data['device']}, driver {data['driver']}, NVRTC {data['nvrtc']}, {packages}, {data['date']}"


def header(first: str, *rest: str) -> list[str]:
    return [line(first, *rest), "|---|" + "---:|" * len(rest)]


def line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
