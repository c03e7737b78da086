"""What tests of JAX lower for CUDA, and where they place arrays. It needs JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import fastsgemm.jax

TARGET = "@__gpu$xla.gpu.ptx"


def array(*shape):
    """Return the same normal numbers for the same shape."""
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), jnp.float32)


def lowered(function, *operands, device="sm_90", **options):
    """Return the program of a function for CUDA as text; options are those of `jax.jit`."""
    with fastsgemm.jax.lowering_for(device):
        return jax.jit(function, **options).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()


def calls(text):
    """Return the lines of a program that launch kernels."""
    return [line for line in text.splitlines() if TARGET in line]


def mesh_of_two(axes=AxisType.Auto):
    """Return a mesh of two devices, or skip the test where there is only one."""
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices, or XLA_FLAGS=--xla_force_host_platform_device_count=2")
    return jax.make_mesh((2,), ("x",), axis_types=(axes,), devices=jax.devices()[:2])
