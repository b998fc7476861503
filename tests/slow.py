"""Slow tests: which of them an everyday run takes, and random laws in shares.

A test is slow (`@pytest.mark.slow(seconds=…)`, measured on one core) if it takes more than about
two seconds, if it starts processes, a database or a browser, or if it is a further share of a
random law. An everyday run takes a sample of the slow tests, `-m slow` all of them.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping

import pytest

FUZZ = int(os.environ.get("DISTIR_FUZZ", "1"))
"""How many times the usual number of shares random laws have."""


def sample(tests: Mapping[str, float], seconds: float) -> set[str]:
    """Those of the tests, given as names and their seconds, that an everyday run takes: at most
    `seconds` in all.

    Of a test with several cases the first is taken first, and the next when all other tests have
    had their turn. The order of tests looks random, but only depends on their names, so that every
    machine takes the same ones.
    """
    turns: Counter[str] = Counter()
    queue: list[tuple[int, str, str]] = []
    for name in tests:
        test = name.partition("[")[0]
        queue.append((turns[test], hashlib.sha256(test.encode()).hexdigest(), name))
        turns[test] += 1
    chosen: set[str] = set()
    for _, _, name in sorted(queue):
        if tests[name] <= seconds:
            chosen.add(name)
            seconds -= tests[name]
    return chosen


def shares(count: int, seconds: float) -> pytest.MarkDecorator:
    """Splits a random law, which takes an argument `share`, into shares that draw different
    examples. The first always runs; the others are slow, each of about `seconds`."""
    slow = pytest.mark.slow(seconds=seconds)
    others = (pytest.param(share, marks=slow) for share in range(1, count * FUZZ))
    return pytest.mark.parametrize("share", [0, *others])
