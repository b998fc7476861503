"""DualPipe: microbatches from both ends, the forward pass of one overlapped with the backward pass
of another, so that the exchanges of one hide behind the computation of the other.

Two ranks hold each stage (DualPipe), or half as many ranks hold two stages each (DualPipeV). Either
way a rank has a stage `d`, on which microbatches come down from a near end of the pipeline, and a
stage `u`, on which they come up from the far end, and both schedules have the same order of passes.
"""

from __future__ import annotations

from collections import deque

from distir.schedules.core.family import schedule_family
from distir.schedules.core.rhythm import (
    OverlappedSteps,
    RepeatedSteps,
    Rhythm,
    Step,
    one_pipeline,
    repeated_steps,
)

__all__ = ["dual_pipe", "dual_pipe_v"]

PAPER = "DeepSeek-AI 2024, DeepSeek-V3 Technical Report"


def _both_ways(ranks: int, _chunks: int, microbatches: int) -> str | None:
    if ranks % 2:
        return f"dualpipe needs an even number of ranks, not {ranks}"
    if microbatches % 2:
        return f"dualpipe sends half of the microbatches each way; {microbatches} is odd"
    return _enough("dualpipe", ranks, microbatches)


def _full(ranks: int, _chunks: int, microbatches: int) -> str | None:
    return _enough("dualpipev", ranks, microbatches)


def _enough(name: str, ranks: int, microbatches: int) -> str | None:
    if microbatches < 2 * ranks:
        return (
            f"{name} on {ranks} ranks needs at least {2 * ranks} microbatches, not {microbatches}"
        )
    return None


@schedule_family(
    "dualpipe",
    order=9,
    summary="from both ends, forward overlapped with backward; two copies of parameters",
    source=f"{PAPER}, section 3.2.1; deepseek-ai/DualPipe",
    splits_backward=True,
    overlaps=True,
    copies=2,
    placement="mirror",
    demands=_both_ways,
    is_proven=True,
)
def dual_pipe(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """Even microbatches run down the ranks, odd ones up. DeepSeek-V3, section 3.2.1 and figure 5.

    Rank `r` of `p` holds stage `r` for microbatches that run down and stage `p - 1 - r` for those
    that run up. All parameters have two copies, whose gradients are added up at the end. The bubble
    is `(p/2 - 1)(o + b - 3w)` where an overlapped pair takes `o`, a whole backward pass `b`, its
    part `W` `w`, and a forward pass and the part `B` no longer than that; a rank keeps at most
    `p + 1` microbatches.
    """
    assert chunks == 1
    half = ranks // 2
    orders = tuple(
        _rank(down, ranks - 1 - down, half, microbatches // 2)
        for down in (*range(half), *reversed(range(half)))
    )
    ranks_of_stages = (tuple(range(ranks)), tuple(reversed(range(ranks))))
    return Rhythm(orders, ranks_of_stages, microbatches, "dualpipe")


@schedule_family(
    "dualpipev",
    order=10,
    summary="dualpipe folded: two chunks per rank, down the ranks and up again, one copy",
    source=f"{PAPER}, section 3.2.1; deepseek-ai/DualPipe, which names Sea AI Lab",
    default_chunks=2,
    least_chunks=2,
    most_chunks=2,
    splits_backward=True,
    overlaps=True,
    placement="V",
    demands=_full,
    is_proven=True,
)
def dual_pipe_v(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """Rank `r` of `p` holds stages `r` and `2p - 1 - r`: microbatches turn back on the last rank
    and end on the first. One half of DualPipe with `2p` ranks, whose other half is its mirror
    image: the same bubble and the same memory for activations, on half as many devices.
    """
    assert chunks == 2
    rank_of_stage = (*range(ranks), *reversed(range(ranks)))
    orders = [_rank(down, 2 * ranks - 1 - down, ranks, microbatches) for down in range(ranks)]
    return one_pipeline(orders, rank_of_stage, microbatches, "dualpipev")


def _rank(down: int, up: int, half: int, microbatches: int) -> tuple[RepeatedSteps, ...]:
    """The repeated steps of a rank with the stages `down` and `up`, each of which `microbatches` go
    through; stage `half` is the first of the far half of the pipeline."""
    below = half - down - 1  # stages from `down` to the middle
    down_forward: Step = (down, "F")
    up_forward: Step = (up, "F")
    up_whole: Step = (up, "BW")
    up_first: OverlappedSteps = (down_forward, up_whole)
    down_first: OverlappedSteps = (up_forward, (down, "BW"))
    steady = microbatches - 2 * half + down + 1
    # What the middle ranks make first is waited for by their neighbours: sooner by itself.
    alone = [down_forward, up_whole, down_first] if not below else []
    return repeated_steps(
        ([down_forward], 2 * below),
        ([down_forward, up_forward], down + 1),
        ([(up, "B"), (up, "W"), up_forward], below),
        (alone, 1),
        ([up_first, down_first], steady - bool(alone)),
        ([up_whole, down_first], below),
        (_drain(down, up, below), 1),
    )


def _drain(down: int, up: int, below: int) -> list[Step]:
    """The last backward passes of a rank. The later ones are in parts, so that the stages before
    wait for less, and what is put off fills the gaps at the end."""
    steps: list[Step] = []
    put_off: deque[int] = deque()
    for number in range(2 * (down + 1)):
        stage = down if number % 2 else up
        if number <= down:
            steps.append((stage, "BW"))
        else:
            steps.append((stage, "B"))
            put_off.append(stage)
    for _ in range(below):
        steps.append((put_off.popleft(), "W"))
        steps.append((down, "B"))
        put_off.append(down)
    steps.extend((stage, "W") for stage in put_off)
    return steps
