"""fastsgemm in JAX: `fastsgemm.sgemm` in traced code, and a switch that makes JAX's own products run on fastsgemm.

Importing `fastsgemm` is enough for `sgemm` within ``jax.jit``, ``jax.grad``, ``jax.vmap`` and the like.

`enable` replaces the float32 products that JAX lowers for CUDA where the program asks for float32.
``python -m fastsgemm.jax script.py`` does so for an unmodified program.

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
    if error.name != "jax":  # JAX is installed, but one of its dependencies is not
        raise
    raise MissingExtraError("fastsgemm.jax needs JAX, which is not installed; https://docs.jax.dev says how") from None

from fastsgemm.jax import custom_call as _custom_call

_custom_call.check()

from fastsgemm.jax.lowering import lowering_for  # noqa: E402
from fastsgemm.jax.lowering_report import Line, Report  # noqa: E402
from fastsgemm.jax.lowering_switch import Switch, disable, enable, enabled, report  # noqa: E402

__all__ = ["Line", "Report", "Switch", "disable", "enable", "enabled", "lowering_for", "report"]
