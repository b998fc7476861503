"""Zero-bubble schedules: ranks put off the gradients of parameters (`W`) to fill their idle time.

Other ranks wait only for the part of the backward pass that makes the gradient for the previous
stage (`B`). Ranks start and end one after the other at equal intervals (a parallelogram). No rank
is idle if the first rank may start the next iteration while the last rank still works, that is if
the optimizer's step does not wait for all ranks (the papers check global norms afterwards).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import cast

from distir.schedules.core.action import ActionKind
from distir.schedules.core.family import schedule_family
from distir.schedules.core.rhythm import RepeatedSteps, Rhythm, Step, one_pipeline, repeated_steps

__all__ = ["zb_h1", "zb_h2", "zb_v"]

PAPER = "Qi et al. 2023, Zero Bubble Pipeline Parallelism"


@schedule_family(
    "zb-h1",
    order=5,
    summary="1f1b with W put off to fill the end; a third of the bubble, memory as with 1f1b",
    source=f"{PAPER}, section 2.1",
    splits_backward=True,
    is_proven=True,
)
def zb_h1(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """1F1B in which rank `r` puts off `r` of its `W`. Qi et al. 2023, section 2.1 (ZB-H1).

    Every rank keeps at most `p` microbatches, as many as the first rank of 1F1B. The bubble is
    `(p - 1)(f + b - w)` if `w` is at most `f` and `b`.
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
    is_proven=True,
)
def zb_h2(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """1F1B with twice as many forward passes ahead, in which rank `r` puts off `2r` of its `W`. Qi
    et al. 2023, section 2.2 (ZB-H2).

    Every rank keeps at most `2p - 1` microbatches. The bubble is `(p - 1)(f + b - 2w)` if `w` is at
    most `f` and `(f + b)/2`, and the optimizer does not wait for all ranks.
    """
    assert chunks == 1
    orders = [
        _split(rank, microbatches, ahead=2 * (ranks - rank - 1), put_off=2 * rank)
        for rank in range(ranks)
    ]
    return one_pipeline(orders, range(ranks), microbatches, "zb-h2")


def _split(stage: int, microbatches: int, *, ahead: int, put_off: int) -> tuple[RepeatedSteps, ...]:
    """The repeated steps of a rank: `ahead` forward passes, then one action of each kind in turn;
    as many `W` as are put off come last."""
    ahead, put_off = min(ahead, microbatches), min(put_off, microbatches)
    kinds: tuple[Step, Step, Step] = (stage, "F"), (stage, "B"), (stage, "W")
    forward, backward, weight = kinds
    behind = microbatches - ahead
    changes = sorted({0, behind, put_off, microbatches})
    return repeated_steps(
        ([forward], ahead),
        *(
            ([forward] * (m < behind) + [backward] + [weight] * (m >= put_off), until - m)
            for m, until in pairwise(changes)
        ),
        ([weight], put_off),
    )


@schedule_family(
    "zb-v",
    order=7,
    summary="two chunks per rank, laid down the ranks and up again; no bubble, memory as with 1f1b",
    source=f"{PAPER}, section 6; Qi et al. 2024, Pipeline Parallelism with Controllable Memory",
    default_chunks=2,
    least_chunks=2,
    most_chunks=2,
    splits_backward=True,
    placement="V",
    is_proven=True,
)
def zb_v(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """Rank `r` of `p` holds stages `r` and `2p - 1 - r`: microbatches turn back on the last rank
    and end on the first. Qi et al. 2023, section 6, and 2024 (ZB-V).

    Every rank keeps the activations of at most `2p` passes, each of a stage of half the size; the
    first rank of 1F1B keeps as much. The order is made for at least `2p - 1` microbatches; with
    fewer, the actions of the others are left out of it.
    """
    assert chunks == 2
    rank_of_stage = (*range(ranks), *reversed(range(ranks)))
    orders = [_v_rank(rank, ranks, microbatches) for rank in range(ranks)]
    return one_pipeline(orders, rank_of_stage, microbatches, "zb-v")


def _v_rank(rank: int, ranks: int, microbatches: int) -> tuple[RepeatedSteps, ...]:
    """The repeated steps of a rank; `d` is its stage on the way down, `u` the one on the way up."""
    below = ranks - rank  # ranks from this one to the last, where microbatches turn back
    full = max(microbatches, 2 * ranks - 1)
    patterns = (
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
    made = repeated_steps(*((_steps(stages, text), times) for text, times in patterns))
    return made if full == microbatches else _first_microbatches(made, microbatches)


def _steps(stages: dict[str, int], text: str) -> list[Step]:
    return [(stages[step[0]], cast("ActionKind", step[1:])) for step in text.split()]


def _first_microbatches(
    repeated: Sequence[RepeatedSteps], microbatches: int
) -> tuple[RepeatedSteps, ...]:
    """The steps of a rank without those of later microbatches."""
    count: dict[Step, int] = {}
    kept: list[Step] = []
    for step in chain.from_iterable(each.pattern * each.times for each in repeated):
        count[step] = count.get(step, 0) + 1
        if count[step] <= microbatches:
            kept.append(step)
    return repeated_steps((kept, 1))
