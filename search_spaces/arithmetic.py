"""The little number theory that degrees need."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of `number`, ascending, in O(√number)."""
    low: list[int] = []
    high: list[int] = []
    candidate = 1
    while candidate * candidate <= number:
        if number % candidate == 0:
            low.append(candidate)
            if candidate * candidate != number:
                high.append(number // candidate)
        candidate += 1
    return (*low, *reversed(high))


def listed(values: Iterable[object], most: int = 16) -> str:
    """`values` separated by commas; long lists are shortened in the middle."""
    words = [str(value) for value in values]
    if len(words) > most:
        words = [*words[: most - 2], "…", words[-1]]
    return ", ".join(words)
