"""Atomic read-modify-write of an array by several lanes, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fastsgemm.sim.lanes import Array


def update_in_turn(elements: Array, places: Array, values: Array, compute: Callable[[Array, Array], Array]) -> Array:
    """Replace ``elements[place]`` by ``compute(elements[place], value)``, place by place; return the old elements.

    Lanes that name the same place come in their order. Each round takes the first lane left of every place.
    """
    old = np.empty_like(values)
    left = np.arange(len(places))
    while len(left):
        _, first = np.unique(places[left], return_index=True)
        now = left[first]
        old[now] = elements[places[now]]
        elements[places[now]] = compute(old[now], values[now])
        left = np.delete(left, first)
    return old
