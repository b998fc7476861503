"""Logical axes: the dimensions of the mathematics (batch, heads, ffn), inferred from ops alone."""

from __future__ import annotations

from distir.axes.infer import infer_axes
from distir.axes.model import Axes, Axis

__all__ = ["Axes", "Axis", "infer_axes"]
