"""The problems on which certified search stands beside the grid."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from distir.errors import DistirError
from experiments.samplers.problems import CLUSTERS, DENSE, LARGE, OTHERS, Question

MOST_COMPARED = 60_000
"""Strategies of the largest space that is evaluated to compare the best."""
MOST_TIMED = 12_000_000
"""Strategies of the largest space of which both searches are timed."""

SizeOf = Callable[[Question], int]
"""The number of strategies of a problem."""


def timed_questions(count: int, seed: int, size_of: SizeOf) -> list[Question]:
    """Full spaces of models of all kinds, trained on 8 to 1,024 devices for throughput."""
    return _drawn(count, random.Random(f"timed {seed}"), _full, MOST_TIMED, size_of)


def compared_questions(
    count: int, seed: int, size_of: SizeOf, most: int = MOST_COMPARED
) -> list[Question]:
    """Spaces of at most so many strategies, to train and to infer, for throughput, latency and
    memory."""
    return _drawn(count, random.Random(f"compared {seed}"), _any, most, size_of)


def space_size(question: Question) -> int:
    """The number of strategies of a problem; 0 where nothing divides, or where the model has no
    such mode."""
    try:
        return question.problem().space.count()
    except DistirError:
        return 0


def _drawn(
    count: int,
    rng: random.Random,
    draw: Callable[[random.Random], Question],
    most: int,
    size_of: SizeOf,
) -> list[Question]:
    """Different problems with at least one strategy, and at most so many."""
    found: dict[str, Question] = {}
    while len(found) < count:
        question = draw(rng)
        if question.name not in found and 0 < size_of(question) <= most:
            found[question.name] = question
    return list(found.values())


def _full(rng: random.Random) -> Question:
    kind = rng.choices((DENSE, LARGE, OTHERS), (5, 2, 3))[0]
    devices = rng.choice((64, 128, 512, 1024) if kind is LARGE else (8, 16, 32, 64))
    return Question({**_stated(rng, kind, devices), "space": "full", "mode": "training"})


def _any(rng: random.Random) -> Question:
    kind = rng.choices((DENSE, LARGE, OTHERS), (5, 2, 3))[0]
    devices = rng.choice((64, 128, 512, 1024) if kind is LARGE else (2, 4, 8, 16, 32, 64))
    space = rng.choice(("small", "standard", "full"))
    mode = rng.choices(("training", "inference"), (4, 1))[0]
    objective = rng.choices(("throughput", "latency", "memory"), (4, 1, 1))[0]
    return Question({**_stated(rng, kind, devices), "space": space, "mode": mode}, objective)


def _stated(rng: random.Random, kind: Sequence[str], devices: int) -> dict[str, Any]:
    stated: dict[str, Any] = {
        "model": rng.choice(kind),
        "cluster": rng.choice(CLUSTERS),
        "devices": devices,
    }
    batch = rng.choice((None, devices, 4 * devices, 1024))
    return stated if batch is None else {**stated, "batch_size": batch}


__all__ = ["SizeOf", "compared_questions", "space_size", "timed_questions"]
