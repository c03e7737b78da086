"""The table of packages of kernels in docs/containers.md, from what `fastsgemm pack --json` printed."""

from __future__ import annotations

from fastsgemm.kernel_package.census import ALL, KINDS, REGULAR
from fastsgemm.known_devices import compute_capability
from page_tables.markdown import table
from page_tables.runs import Stored, runs

NOT_MEASURED = "*Not built yet: keep what `fastsgemm pack --arch sm_90 --json` prints in docs/data/pack-sm_90.json.*"


def texts(data: Stored) -> dict[str, str]:
    """Return the table by its name: a line for each architecture."""
    built = sorted(runs(data, "pack"), key=lambda run: compute_capability(run["arch"]))
    kinds = (ALL, REGULAR, *KINDS)
    heads = ("for", "kernels", "MB", *kinds)
    lines = [
        (
            run["arch"], f"{run['kernels']:,}", f"{run['bytes'] / 1e6:.1f}",
            *(f"{100 * run['coverage'][kind]:.1f}" for kind in kinds),
        )
        for run in built
    ]  # fmt: skip
    if not built:
        return {"packs": NOT_MEASURED}
    compilers = ", ".join(sorted({run["nvrtc"] for run in built}))
    what = f"Size, and share of first calls that find all of their kernels, in %; NVRTC {compilers}."
    return {"packs": f"{what}\n\n{table(heads, lines)}"}
