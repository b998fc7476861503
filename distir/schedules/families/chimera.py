"""Chimera: two pipelines in opposite directions over the same ranks."""

from __future__ import annotations

from collections.abc import Iterator

from distir.schedules.core.family import schedule_family
from distir.schedules.core.rhythm import Rhythm, Step, runs_of

__all__ = ["chimera"]


def _even(ranks: int, _chunks: int, microbatches: int) -> str | None:
    if ranks % 2:
        return f"chimera needs an even number of ranks, not {ranks}"
    if microbatches % 2:
        return f"chimera sends half of the microbatches each way; {microbatches} is odd"
    return None


@schedule_family(
    "chimera",
    order=8,
    summary="two pipelines in opposite directions; about half the bubble, two copies of parameters",
    source="Li and Hoefler 2021, Chimera: Efficiently Training Large-Scale Neural Networks with "
    "Bidirectional Pipelines",
    copies=2,
    placement="mirror",
    demands=_even,
)
def chimera(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """Even microbatches run down the ranks, odd ones up. Li and Hoefler 2021.

    Rank `r` of `p` holds stage `r` for those that run down and stage `p - 1 - r` for those that
    run up: two copies of all parameters, whose gradients are added up at the end. In slots of equal
    length (forward and backward passes) the two 1F1B pipelines of `p` microbatches never meet on a
    rank, and the next `p` fit in without a gap after `2p` slots, so an order is all it takes: that
    of the slots. The bubble is `(p - 2)b` with `p` microbatches; where backward passes are longer,
    each further `p` add `(p - 2)(b - f)`.
    """
    assert chunks == 1
    units, left = divmod(microbatches, ranks)
    orders = tuple(
        runs_of(
            (_window(rank, ranks, ranks, 0), min(units, 1)),
            (_window(rank, ranks, ranks, ranks), units - 1),
            (_window(rank, ranks, left, ranks if units else 0), 1),
            (_window(rank, ranks, 0, left), 1),
        )
        for rank in range(ranks)
    )
    homes = (tuple(range(ranks)), tuple(reversed(range(ranks))))
    return Rhythm(orders, homes, microbatches, "chimera")


def _window(rank: int, ranks: int, begun: int, before: int) -> list[Step]:
    """What a rank does in `2p` slots in which so many microbatches begin, and so many began in the
    slots before."""
    length = 2 * ranks
    slots = [each for each in _slots(rank, ranks, begun) if each[0] < length]
    slots += [(slot - length, step) for slot, step in _slots(rank, ranks, before) if slot >= length]
    return [step for _, step in sorted(slots)]


def _slots(rank: int, ranks: int, microbatches: int) -> Iterator[tuple[int, Step]]:
    """When a rank runs the passes of the first microbatches."""
    for m in range(microbatches):
        entry = 2 * (m // 2)
        stage = ranks - 1 - rank if m % 2 else rank
        yield entry + stage, (stage, "F")
        yield entry + 2 * ranks - 1 - stage, (stage, "B")
