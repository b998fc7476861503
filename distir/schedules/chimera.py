"""Chimera: two pipelines in opposite directions over the same ranks."""

from __future__ import annotations

from distir.schedules.action import Action
from distir.schedules.family import schedule_family
from distir.schedules.schedule import Schedule

__all__ = ["chimera"]


def _even(ranks: int, _chunks: int, microbatches: int) -> str | None:
    if ranks % 2:
        return f"chimera needs an even number of ranks, not {ranks}"
    if microbatches % 2:
        return f"chimera sends half of the microbatches each way; {microbatches} is odd"
    return None


@schedule_family(
    "chimera",
    summary="two pipelines in opposite directions; about half the bubble, two copies of parameters",
    source="Li and Hoefler 2021, Chimera: Efficiently Training Large-Scale Neural Networks with "
    "Bidirectional Pipelines",
    copies=2,
    placement="mirror",
    demands=_even,
)
def chimera(ranks: int, chunks: int, microbatches: int) -> Schedule:
    """Even microbatches run down the ranks, odd ones up. Li and Hoefler 2021.

    Rank `r` of `p` holds stage `r` for those that run down and stage `p - 1 - r` for those that
    run up: two copies of all parameters, whose gradients are added up at the end. In slots of equal
    length (forward and backward passes) the two 1F1B pipelines of `p` microbatches never meet on a
    rank, and the next `p` fit in without a gap after `2p` slots, so an order is all it takes: that
    of the slots. The bubble is `(p - 2)b` with `p` microbatches; where backward passes are longer,
    each further `p` add `(p - 2)(b - f)`.
    """
    assert chunks == 1
    orders: list[tuple[Action, ...]] = []
    for rank in range(ranks):
        slots: list[tuple[int, Action]] = []
        for m in range(microbatches):
            unit, place = divmod(m, ranks)
            entry = 2 * ranks * unit + 2 * (place // 2)
            stage = ranks - 1 - rank if m % 2 else rank
            slots.append((entry + stage, Action(stage, "F", m)))
            slots.append((entry + 2 * ranks - 1 - stage, Action(stage, "B", m)))
        orders.append(tuple(action for _, action in sorted(slots)))
    return Schedule(tuple(orders), ranks, microbatches, "chimera")
