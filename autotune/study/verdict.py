"""What is said of a space in which nothing was found that fits: infeasible is not failed."""

from __future__ import annotations

from collections.abc import Mapping

INTERRUPTED = "Interrupted before any plan that fits was found."
"""The answer where somebody wanted an end."""


def without_best(infeasible: int, tried: int, count: int) -> str:
    """The answer where `tried` of the `count` strategies of a space were tried and none can be the
    best: `infeasible` of them do not fit, and of the others, which failed or were pruned, that is
    not known."""
    if not infeasible:
        return "No trial succeeded."
    if infeasible == count:
        return "Nothing fits."
    tried_how = "tried" if infeasible == tried else "tried to the end"
    return f"None of the strategies that were {tried_how} fits: {infeasible:,} of {count:,}."


def all_failed(failures: Mapping[str, int]) -> str:
    """What is said where every trial failed, given how many did by reason: `all 134 trials failed;
    the most frequent reason: …`."""
    count = sum(failures.values())
    reason = max(failures, key=lambda each: failures[each])
    failed = f"all {count:,} trials" if count > 1 else "the only trial"
    return f"{failed} failed; the most frequent reason: {reason}"
