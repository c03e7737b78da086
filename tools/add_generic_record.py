#!/usr/bin/env python3
"""Write the record of a rung into tuning_db/generic.json: the defaults in its file, which every architecture can run.

    tools/add_generic_record.py NAME --source 'why these constants'

A record that the rung already has is replaced. The file keeps its canonical form.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from msgspec import structs

from fastsgemm import rungs
from fastsgemm.heuristics import database
from fastsgemm.heuristics.database_entries import GENERIC, Content, HandPicked, sort_key
from fastsgemm.jit import source
from fastsgemm.rungs import Rung


def with_record(shipped: Content, rung: Rung, why: str) -> Content:
    """Return the generic file's content with a record of the defaults in a rung's file.

    Raises
    ------
    ConfigError
        The defaults are not a config of the rung, or not a legal one on every architecture.
    """
    known = rung.config.declared()
    config = rung.config.from_constants({k: v for k, v in source.defaults(rung.file).items() if k in known})
    assert shipped.shared_limit is not None  # the least of all architectures
    rung.check(config, shipped.shared_limit)
    record = HandPicked(rung=rung.name, device=None, written=None, constants=config.constants, source=why)
    others = (one for one in shipped.records if sort_key(one) != sort_key(record))
    return structs.replace(shipped, records=(*others, record))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; the module docstring describes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rung", type=rungs.find, help="name of the rung")
    parser.add_argument("--source", required=True, help="why these constants")
    options = parser.parse_args(arguments)
    content = with_record(database.shipped(GENERIC), options.rung, options.source)
    database.write(database.shipped_path(GENERIC), content)


if __name__ == "__main__":
    main()
