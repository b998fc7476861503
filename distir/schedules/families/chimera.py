"""Chimera: two pipelines in opposite directions over the same ranks."""

from __future__ import annotations

from collections.abc import Iterator

from distir.schedules.core.family import schedule_family
from distir.schedules.core.rhythm import Rhythm, Step, repeated_steps

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
    is_proven=True,
)
def chimera(ranks: int, chunks: int, microbatches: int) -> Rhythm:
    """Even microbatches run down the ranks, odd ones up. Li and Hoefler 2021.

    Rank `r` of `p` holds stage `r` for microbatches that run down and stage `p - 1 - r` for those
    that run up. All parameters have two copies, whose gradients are added up at the end.

    Divide time into slots that fit one forward or backward pass each. Then the two 1F1B pipelines
    of `p` microbatches never need a rank in the same slot, and the next `p` microbatches follow
    without a gap after `2p` slots. A rank runs its actions in the order of their slots. The bubble
    is `(p - 2)b` with `p` microbatches; if backward passes are longer than forward passes, each
    further `p` microbatches add `(p - 2)(b - f)`.
    """
    assert chunks == 1
    windows, left = divmod(microbatches, ranks)
    orders = tuple(
        repeated_steps(
            (_window(rank, ranks, ranks, 0), min(windows, 1)),
            (_window(rank, ranks, ranks, ranks), windows - 1),
            (_window(rank, ranks, left, ranks if windows else 0), 1),
            (_window(rank, ranks, 0, left), 1),
        )
        for rank in range(ranks)
    )
    ranks_of_stages = (tuple(range(ranks)), tuple(reversed(range(ranks))))
    return Rhythm(orders, ranks_of_stages, microbatches, "chimera")


def _window(rank: int, ranks: int, begun: int, before: int) -> list[Step]:
    """The steps of a rank in a window of `2p` slots in which `begun` microbatches begin, after a
    window in which `before` microbatches began."""
    length = 2 * ranks
    slots = [(slot, step) for slot, step in _slots(rank, ranks, begun) if slot < length]
    slots += [(slot - length, step) for slot, step in _slots(rank, ranks, before) if slot >= length]
    return [step for _, step in sorted(slots)]


def _slots(rank: int, ranks: int, microbatches: int) -> Iterator[tuple[int, Step]]:
    """The steps of a rank for microbatches that begin in the first window, each with its slot."""
    for m in range(microbatches):
        entry = 2 * (m // 2)
        stage = ranks - 1 - rank if m % 2 else rank
        yield entry + stage, (stage, "F")
        yield entry + 2 * ranks - 1 - stage, (stage, "B")
