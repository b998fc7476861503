"""What the busiest ranks of a pipeline compute at least, wherever its stages begin: blocks are not
divided.

Groups of ranks are ranks that hold the same stages, or one rank alone. Of `n` equal layers on `g`
groups some group has `n / g` of them, rounded up; and beside the longest other block, as the head
of a language model, there is room for fewer.
"""

from __future__ import annotations

import numpy as np

from distir.arrays import Floats, Indices


def least_load(
    layers: Floats, layer_seconds: Floats, other_seconds: Floats, groups: Indices
) -> Floats:
    """Seconds of the busiest group, however so many layers and another block are distributed; all
    arrays have one number per strategy. 0 where there are no layers.

    With `x` and `u` the seconds of the busiest group and of the other block in units of a layer's,
    `x >= u`, and groups have room for `(g - 1) floor(x) + floor(x - u)` layers.
    """
    known = (layers > 0) & (layer_seconds > 0)
    other = np.divide(other_seconds, layer_seconds, out=np.zeros_like(layers), where=known)
    rest = other - np.floor(other)
    as_full = np.ceil((layers + np.ceil(other)) / groups)
    overfull = np.ceil((layers + np.floor(other)) / groups) + rest
    least = np.maximum(other, np.minimum(as_full, overfull))
    return np.where(known, least * layer_seconds, 0.0)


__all__ = ["least_load"]
