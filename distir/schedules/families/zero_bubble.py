"""Zero-bubble schedules: the gradients of parameters wait (`W`) to fill what would be idle time.

Only the part of the backward pass that the gradient sent upstream needs (`B`) is on the way of the
other ranks. Ranks start and end one after the other, at equal distances (a parallelogram): nothing
is idle if the next iteration may start on the first rank while the last still works, that is if
the optimizer's step does not wait for all ranks (the papers check global norms afterwards).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import cast

from distir.schedules.core.action import Kind
from distir.schedules.core.family import schedule_family
from distir.schedules.core.rhythm import Rhythm, Run, Step, one_pipeline, runs_of

__all__ = ["zb_h1", "zb_h2", "zb_v"]

PAPER = "Qi et al. 2023, Zero Bubble Pipeline Parallelism"


@schedule_family(
    "zb-h1",
    order=5,
    summary="1f1b with W put off to fill the end; a third of the bubble, memory as 1f1b",
    source=f"{PAPER}, section 2.1",
    splits_backward=True,
)
def zb_h1(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """1F1B in which rank `r` puts off `r` of its `W`. Qi et al. 2023, section 2.1 (ZB-H1).

    Every rank keeps at most `p` microbatches, as the first one of 1F1B does. The bubble is
    `(p - 1)(f + b - w)` where `w` is at most `f` and `b`.
    """
    assert chunks == 1
    orders = [
        _split(rank, microbatches, ahead=ranks - rank - 1, put_off=rank) for rank in range(ranks)
    ]
    return one_pipeline(orders, range(ranks), microbatches, "zb-h1")


@schedule_family(
    "zb-h2",
    order=6,
    summary="fills the pipeline with twice the microbatches; no bubble, twice the memory of 1f1b",
    source=f"{PAPER}, section 2.2",
    splits_backward=True,
)
def zb_h2(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """Twice as many forward passes ahead as 1F1B, and rank `r` puts off `2r` of its `W`. Qi et al.
    2023, section 2.2 (ZB-H2).

    Every rank keeps at most `2p - 1` microbatches. The bubble is `(p - 1)(f + b - 2w)` where `w`
    is at most `f` and `(f + b)/2`, if the optimizer does not wait for all ranks.
    """
    assert chunks == 1
    orders = [
        _split(rank, microbatches, ahead=2 * (ranks - rank - 1), put_off=2 * rank)
        for rank in range(ranks)
    ]
    return one_pipeline(orders, range(ranks), microbatches, "zb-h2")


def _split(stage: int, microbatches: int, *, ahead: int, put_off: int) -> tuple[Run, ...]:
    """`ahead` forward passes, then one of each kind in turn; the first `put_off` W come last."""
    ahead, put_off = min(ahead, microbatches), min(put_off, microbatches)
    kinds: tuple[Step, Step, Step] = (stage, "F"), (stage, "B"), (stage, "W")
    forward, backward, weight = kinds
    behind = microbatches - ahead
    turns = sorted({0, behind, put_off, microbatches})
    return runs_of(
        ([forward], ahead),
        *(
            ([forward] * (m < behind) + [backward] + [weight] * (m >= put_off), until - m)
            for m, until in pairwise(turns)
        ),
        ([weight], put_off),
    )


@schedule_family(
    "zb-v",
    order=7,
    summary="two chunks per rank, laid down the ranks and up again; no bubble, memory as 1f1b",
    source=f"{PAPER}, section 6; Qi et al. 2024, Pipeline Parallelism with Controllable Memory",
    default_chunks=2,
    least_chunks=2,
    most_chunks=2,
    splits_backward=True,
    placement="V",
)
def zb_v(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """Rank `r` of `p` holds stages `r` and `2p - 1 - r`: microbatches turn round on the last rank
    and end where they began. Qi et al. 2023, section 6, and 2024 (ZB-V).

    Every rank keeps at most `2p` half-size stage passes, which is what the first rank of 1F1B
    keeps. The pattern needs `2p - 1` microbatches; for fewer, the others are left out of it.
    """
    assert chunks == 2
    homes = (*range(ranks), *reversed(range(ranks)))
    orders = [_v_rank(rank, ranks, microbatches) for rank in range(ranks)]
    return one_pipeline(orders, homes, microbatches, "zb-v")


def _v_rank(rank: int, ranks: int, microbatches: int) -> tuple[Run, ...]:
    """The order on one rank; `d` is the stage on the way down, `u` the one on the way up."""
    below = ranks - rank  # ranks from this one to the turn
    full = max(microbatches, 2 * ranks - 1)
    runs = (
        ("dF", 2 * below - 1),  # until microbatch 0 comes up again,
        ("uF dF", rank),  # until its gradient comes down,
        ("uF uB uW", below),  # until its gradient comes up
        ("dF dB dW uF uB uW", full - ranks - below + 1),
        ("dB dW uF uB uW", below - 1),
        ("dB uB", rank),  # the ranks above wait for these
        ("dB dW", below),
        ("dW uW", rank),
    )
    stages = {"d": rank, "u": 2 * ranks - 1 - rank}
    made = runs_of(*((_steps(stages, words), times) for words, times in runs))
    return made if full == microbatches else _without(made, microbatches)


def _steps(stages: dict[str, int], words: str) -> list[Step]:
    return [(stages[word[0]], cast("Kind", word[1:])) for word in words.split()]


def _without(runs: Sequence[Run], microbatches: int) -> tuple[Run, ...]:
    """The first microbatches alone."""
    count: dict[Step, int] = {}
    kept: list[Step] = []
    for step in chain.from_iterable(run.word * run.times for run in runs):
        count[step] = count.get(step, 0) + 1
        if count[step] <= microbatches:
            kept.append(step)
    return runs_of((kept, 1))
