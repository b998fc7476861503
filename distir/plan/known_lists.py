"""Axis lists that have a name, and which of them a plan comes to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from distir.plan.planner import Planner
from distir.strategy import MARKS, Strategy, format_lists


@dataclass(frozen=True, slots=True)
class KnownList:
    """An axis list with a name, in the words of a strategy. A model may have no axis for a word,
    which then counts for nothing."""

    name: str
    words: tuple[str, ...]


KNOWN_LISTS = (
    KnownList("data parallelism", ("batch",)),
    KnownList("Megatron's tensor parallelism", ("heads", "ffn", "vocabulary")),
    KnownList(
        "Megatron's tensor parallelism with sequence parallelism",
        ("heads", "ffn", "vocabulary", "sequence"),
    ),
    KnownList("Megatron's tensor parallelism of layers alone", ("heads", "ffn")),
    KnownList("context parallelism", ("sequence",)),
    KnownList("ring attention", ("sequence~",)),
    KnownList("Ulysses, which exchanges heads and sequence", ("heads*", "sequence")),
    KnownList("expert parallelism", ("experts*", "batch")),
)
"""Shoeybi et al. 2019 and Korthikanti et al. 2022 (Megatron), Liu et al. 2023 (ring attention),
Jacobs et al. 2023 (Ulysses), Lepikhin et al. 2020 (experts). The first name that fits counts."""


def known_lists(planner: Planner, strategy: Strategy) -> dict[str, str]:
    """By degree the name of the list that a strategy states for it: of a known list in its place
    that leads to the same placed program. Degrees whose lists have no name are left out."""
    stated = strategy.axis_lists
    if not stated:
        return {}
    plan = planner.fingerprint(strategy)
    found: dict[str, str] = {}
    for user in stated:
        for known in KNOWN_LISTS:
            made = _stating(planner, strategy, user, known)
            if made is not None and planner.fingerprint(made) == plan:
                found[user] = known.name
                break
    return found


def _stating(planner: Planner, strategy: Strategy, user: str, known: KnownList) -> Strategy | None:
    """The strategy with a known list for a degree; None if the model has no such axes, or they do
    not divide."""
    words = [word for word in known.words if planner.program.named(word.rstrip(MARKS))]
    if not words:
        return None
    made = replace(strategy, axes=format_lists({**strategy.axis_lists, user: words}))
    return None if planner.workload.explain_lists(made) else made


__all__ = ["KNOWN_LISTS", "KnownList", "known_lists"]
