"""What actions cost: a number for each stage and cost kind.

An overlapped pair is one stretch of time in which messages for both of its actions are awaited
first, and sent last. It is timed as three entries in a row, which have the cost numbers of a stage
of its own, behind those of the model: `INPUT_PART` waits for the message of the backward pass and
takes no time, `FORWARD` waits for that of the forward pass, takes as long as the pair and sends
what the forward pass makes, and `BACKWARD` takes no more time and sends what the backward pass
makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

FORWARD, BACKWARD, INPUT_PART, WEIGHT_PART = range(4)
"""Cost kinds: a forward pass, a whole backward pass, and the two parts of a backward pass.

An action of stage `s` and cost kind `k` has the cost number `s · COST_KINDS + k`.
"""

COST_KINDS = 4
"""Number of cost kinds."""

PAIR = COST_KINDS
"""Stands for a cost kind where an overlapped pair is meant, which is priced as a whole."""

COMPLETING = (BACKWARD, WEIGHT_PART)
"""Cost kinds of actions that complete a microbatch's gradients of parameters."""


def kinds_of_actions(splits: bool) -> Sequence[int]:
    """The cost kinds of the actions of schedules, of which some split the backward pass or none
    does."""
    return range(COST_KINDS) if splits else (FORWARD, BACKWARD)


RepeatedCosts: TypeAlias = tuple[tuple[int, ...], int]
"""A pattern of cost numbers, and how often it is repeated."""

Pairs: TypeAlias = tuple[tuple[int, int], ...]
"""The stages of a schedule's overlapped pairs: that of the forward and that of the backward pass.
Pair `i` of a schedule with `n` stages has the cost numbers of a stage `n + i`."""

__all__ = [
    "BACKWARD",
    "COMPLETING",
    "COST_KINDS",
    "FORWARD",
    "INPUT_PART",
    "PAIR",
    "WEIGHT_PART",
    "Pairs",
    "RepeatedCosts",
    "kinds_of_actions",
]
