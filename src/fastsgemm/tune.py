"""The entry of ``python -m fastsgemm.tune``; the function `fastsgemm.tune` is in `fastsgemm.tuning.tuner`."""

from __future__ import annotations

import sys

from fastsgemm import tune
from fastsgemm.tuning.command import main

if __name__ == "__main__":
    sys.exit(main())

# `import fastsgemm.tune` must not hide the function of that name: the import system binds what is found here.
sys.modules[__name__] = tune  # type: ignore[assignment]
