"""The little number theory that degrees need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of `number`, ascending."""
    found = [1]
    for prime, power in _prime_powers(number):
        found = [each * prime**exponent for each in found for exponent in range(power + 1)]
    return tuple(sorted(found))


def _prime_powers(number: int) -> Iterator[tuple[int, int]]:
    """Prime factors of `number` with their exponents, by trial division."""
    prime = 2
    while prime * prime <= number:
        power = 0
        while number % prime == 0:
            number //= prime
            power += 1
        if power:
            yield prime, power
        prime += 1
    if number > 1:
        yield number, 1


def listed(values: Iterable[object], most: int = 16) -> str:
    """`values` separated by commas; long lists are shortened in the middle."""
    words = [str(value) for value in values]
    if len(words) > most:
        words = [*words[: most - 2], "…", words[-1]]
    return ", ".join(words)
