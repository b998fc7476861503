"""Actions by what they cost."""

from __future__ import annotations

from typing import TypeAlias

FORWARD, BACKWARD, INPUT_PART, WEIGHT_PART = range(4)
"""What an action costs: F, the whole backward pass, or its two parts."""

COST_KINDS = 4

COMPLETING = (BACKWARD, WEIGHT_PART)
"""Kinds with which a microbatch's gradients of parameters are complete."""

CostRun: TypeAlias = tuple[tuple[int, ...], int]
"""A word of costs, and how often it comes."""

__all__ = [
    "BACKWARD",
    "COMPLETING",
    "COST_KINDS",
    "FORWARD",
    "INPUT_PART",
    "WEIGHT_PART",
    "CostRun",
]
