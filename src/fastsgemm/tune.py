"""``python -m fastsgemm.tune`` is ``fastsgemm tune``; the function `fastsgemm.tune` is in `fastsgemm.tuning.tuner`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from fastsgemm.__main__ import main

    sys.exit(main(["tune", *sys.argv[1:]]))

from fastsgemm import tune

# `import fastsgemm.tune` must not hide the function of that name: the import system binds what is found here.
sys.modules[__name__] = tune  # type: ignore[assignment]
