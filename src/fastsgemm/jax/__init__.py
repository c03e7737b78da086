"""fastsgemm in JAX: `fastsgemm.sgemm` in traced code, and a switch that makes JAX's own products run on fastsgemm.

Importing `fastsgemm` is enough for `sgemm` within ``jax.jit``, ``jax.grad``, ``jax.vmap`` and the like.

`enable` replaces the float32 products that JAX lowers for CUDA where the program asks for float32.
``python -m fastsgemm.jax script.py`` does so for a program that is not edited.

Examples
--------
>>> import fastsgemm.jax
>>> with fastsgemm.jax.enabled() as switch:            # doctest: +SKIP
...     state = train_step(state, batch)
>>> print(switch.report())                             # doctest: +SKIP
"""

from fastsgemm.errors import MissingExtraError

try:
    import jax as _jax  # noqa: F401  (this module has the same name)
except ModuleNotFoundError as error:
    if error.name != "jax":  # it is there, but something that it needs is not
        raise
    raise MissingExtraError("fastsgemm.jax needs JAX, which is not installed; https://docs.jax.dev says how") from None

from fastsgemm.jax import launcher as _launcher

_launcher.check()

from fastsgemm.jax.lowering import lowering_for  # noqa: E402
from fastsgemm.jax.report import Line, Report  # noqa: E402
from fastsgemm.jax.switch import Switch, disable, enable, enabled, report  # noqa: E402

__all__ = ["Line", "Report", "Switch", "disable", "enable", "enabled", "lowering_for", "report"]
