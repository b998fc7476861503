"""What actions cost: a number for each stage and cost kind."""

from __future__ import annotations

from typing import TypeAlias

FORWARD, BACKWARD, INPUT_PART, WEIGHT_PART = range(4)
"""Cost kinds: a forward pass, a whole backward pass, and the two parts of a backward pass.

An action of stage `s` and cost kind `k` has the cost number `s · COST_KINDS + k`.
"""

COST_KINDS = 4
"""Number of cost kinds."""

COMPLETING = (BACKWARD, WEIGHT_PART)
"""Cost kinds of actions that complete a microbatch's gradients of parameters."""

RepeatedCosts: TypeAlias = tuple[tuple[int, ...], int]
"""A pattern of cost numbers, and how often it is repeated."""

__all__ = [
    "BACKWARD",
    "COMPLETING",
    "COST_KINDS",
    "FORWARD",
    "INPUT_PART",
    "WEIGHT_PART",
    "RepeatedCosts",
]
