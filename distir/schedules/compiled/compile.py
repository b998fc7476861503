"""A schedule, ready to be run: what it counts and holds, and its actions as flat lists, in an
order in which every action comes after what it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from distir.schedules.compiled.costs import (
    BACKWARD,
    COMPLETING,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
    CostRun,
)
from distir.schedules.compiled.held import Held, HeldMatrix, held_matrix_of, held_of
from distir.schedules.core.action import Action, Kind
from distir.schedules.core.order import execution_order, number
from distir.schedules.core.rhythm import Rhythm
from distir.schedules.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class InFlight:
    """Microbatches in flight when ranks hold most of them: when most are between F and B (an
    action's own among them), when most are between B and W, and when most are either, as far as
    that differs. `counts[i]` has both numbers for every stage of every rank, one rank after the
    other. `kinds` are the kinds of action that there are."""

    stages_of_ranks: tuple[tuple[int, ...], ...]
    counts: tuple[tuple[tuple[int, int], ...], ...]
    kinds: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FlatActions:
    """The actions of a schedule as flat lists.

    `cost[i]` is `stage · COST_KINDS + kind`; `needs[i]` the action on another rank whose message
    action `i` waits for, or -1; `link[i]` numbers the link on which its own message leaves, or -1.
    `last_gradients[r]` are, per stage of rank `r`, the actions in which its gradients are complete
    there, or -1. `first[r]` is the first action of rank `r`.
    """

    actions: tuple[Action, ...]
    rank: tuple[int, ...]
    cost: tuple[int, ...]
    needs: tuple[int, ...]
    link: tuple[int, ...]
    num_links: int
    routes: Mapping[tuple[int, int], tuple[tuple[int, int], ...]]
    last_gradients: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class CompiledSchedule:
    """A schedule, which must be valid, ready to be run. What is found in the lists of all actions
    is made when it is asked for; what a rhythm says is known without them."""

    source: Schedule | Rhythm

    @cached_property
    def schedule(self) -> Schedule:
        """All actions, rank by rank."""
        return self.source.schedule() if isinstance(self.source, Rhythm) else self.source

    @cached_property
    def flat(self) -> FlatActions:
        """All actions as flat lists."""
        return _flat(self.schedule)

    @property
    def stages(self) -> int:
        """Pipeline stages over all ranks, chunks included."""
        return self.source.stages

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions, each after what it needs."""
        return self.flat.actions

    @property
    def rank(self) -> tuple[int, ...]:
        """The rank of each action."""
        return self.flat.rank

    @property
    def cost(self) -> tuple[int, ...]:
        """`stage · COST_KINDS + kind` of each action."""
        return self.flat.cost

    @property
    def needs(self) -> tuple[int, ...]:
        """The action on another rank whose message each action waits for, or -1."""
        return self.flat.needs

    @property
    def link(self) -> tuple[int, ...]:
        """The link on which the message of each action leaves, or -1."""
        return self.flat.link

    @property
    def num_links(self) -> int:
        """How many links there are."""
        return self.flat.num_links

    @property
    def last_gradients(self) -> tuple[tuple[int, ...], ...]:
        """Per rank and stage of it the action in which its gradients are complete there, or -1."""
        return self.flat.last_gradients

    @property
    def first(self) -> tuple[int, ...]:
        """The first action of each rank."""
        return self.flat.first

    @cached_property
    def stages_of_ranks(self) -> tuple[tuple[int, ...], ...]:
        """The stages (chunks) that each rank holds, in pipeline order."""
        return self.source.stages_of_ranks

    @property
    def runs(self) -> tuple[tuple[CostRun, ...], ...]:
        """What each rank does, by cost; without a rhythm a word is said once."""
        source = self.source
        kinds = _cost_kinds(source.splits_backward)

        def costs(steps: Iterable[tuple[int, Kind]]) -> tuple[int, ...]:
            return tuple([stage * COST_KINDS + kinds[kind] for stage, kind in steps])

        if isinstance(source, Rhythm):
            return tuple(tuple((costs(r.word), r.times) for r in own) for own in source.ranks)
        return tuple(((costs((s, k) for s, k, _ in own), 1),) for own in source.ranks)

    @cached_property
    def counts(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Per rank and stage of it how many actions there are of each kind."""
        return tuple(map(_counts, self.runs, self.stages_of_ranks))

    @cached_property
    def count_matrix(self) -> NDArray[np.int64]:
        """The same as an array, (stages of all ranks, kinds), one rank after the other."""
        return np.array([*chain.from_iterable(self.counts)], np.int64)

    @cached_property
    def completing(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per rank its stages (places among its own) in the order in which their gradients are
        complete, and the kind of action with which they are."""
        return tuple(map(_completing, self.runs, self.stages_of_ranks))

    @cached_property
    def routes(self) -> Mapping[tuple[int, int], tuple[tuple[int, int], ...]]:
        """`routes[s, 1]` and `routes[s, -1]` are the pairs of ranks between which stage `s` sends
        to the next and to the previous stage."""
        return _ways(self.source) if isinstance(self.source, Rhythm) else self.flat.routes

    @cached_property
    def held(self) -> tuple[tuple[Held, ...], ...]:
        """The situations in which a rank's actions start, without those in which another, of the
        same stage and kind, holds at least as much."""
        return tuple(map(held_of, self.runs, self.stages_of_ranks))

    @cached_property
    def held_matrices(self) -> tuple[HeldMatrix, ...]:
        """What each rank holds, as arrays."""
        return tuple(map(held_matrix_of, self.runs, self.stages_of_ranks))

    @cached_property
    def in_flight(self) -> InFlight:
        """What ranks hold when they hold most microbatches."""
        kinds = {kind for matrix in self.held_matrices for kind in matrix.kinds.tolist()}
        counts: tuple[list[tuple[int, int]], ...] = ([], [], [])
        for matrix in self.held_matrices:
            held = matrix.counts.copy()
            if kinds != {FORWARD}:
                (own,) = np.nonzero(matrix.kinds == FORWARD)
                held[own, 2 * matrix.places[own]] += 1
            forward, backward = held[:, ::2].sum(axis=1), held[:, 1::2].sum(axis=1)
            for found, many in zip(counts, (forward, backward, forward + backward), strict=True):
                fullest = held[many.argmax()].tolist()
                found += zip(fullest[::2], fullest[1::2], strict=True)
        different = tuple(dict.fromkeys(map(tuple, counts)))
        return InFlight(self.stages_of_ranks, different, tuple(sorted(kinds)))

    @property
    def splits_backward(self) -> bool:
        """Whether some backward pass comes in two parts."""
        return any(kinds[WEIGHT_PART] for own in self.counts for kinds in own)


def compile_schedule(source: Schedule | Rhythm) -> CompiledSchedule:
    """The schedule, which must be valid, ready to be run; raises `DeadlockError` if ranks wait for
    each other (a rhythm is trusted)."""
    compiled = CompiledSchedule(source)
    if isinstance(source, Schedule):
        assert compiled.flat
    return compiled


def _flat(schedule: Schedule) -> FlatActions:
    kinds = _cost_kinds(schedule.splits_backward)
    numbered = number(schedule)
    needed = numbered.needs()
    order = execution_order(numbered, needed)
    place = [0] * len(order)
    for at, i in enumerate(order):
        place[i] = at
    listed = list(chain.from_iterable(schedule.ranks))
    costs = [stage * COST_KINDS + kinds[kind] for stage, kind, _ in listed]
    rank = numbered.rank
    ranks = len(schedule.ranks)
    links: dict[int, int] = {}
    needs = [-1] * len(order)
    link = [-1] * len(order)
    for i, source in enumerate(needed):
        if source >= 0 and rank[source] != rank[i]:
            at = place[source]
            needs[place[i]] = at
            way = (rank[source] * ranks + rank[i]) * 2 + (costs[i] % COST_KINDS == FORWARD)
            link[at] = links.setdefault(way, len(links))
    last = _ends(schedule, costs, numbered.starts)
    return FlatActions(
        actions=tuple([listed[i] for i in order]),
        rank=tuple([rank[i] for i in order]),
        cost=tuple([costs[i] for i in order]),
        needs=tuple(needs),
        link=tuple(link),
        num_links=len(links),
        routes=_routes(listed, rank, needed),
        last_gradients=tuple(tuple(place[i] if i >= 0 else -1 for i in own) for own in last),
        first=tuple(place[start] for start in numbered.starts),
    )


def _ways(rhythm: Rhythm) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """The pairs of ranks between which stages send."""
    found: dict[tuple[int, int], dict[tuple[int, int], None]] = {}
    for homes in rhythm.homes[: rhythm.microbatches]:
        for stage, (here, there) in enumerate(pairwise(homes)):
            if here != there:
                found.setdefault((stage, 1), {})[here, there] = None
                if rhythm.has_backward:
                    found.setdefault((stage + 1, -1), {})[there, here] = None
    return {way: tuple(pairs) for way, pairs in found.items()}


def _routes(
    actions: Sequence[Action], rank: Sequence[int], needed: Sequence[int]
) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """The pairs of ranks between which stages send."""
    found: dict[tuple[int, int], dict[tuple[int, int], None]] = {}
    for i, source in enumerate(needed):
        if source >= 0 and rank[source] != rank[i]:
            sender = actions[source].stage
            way = (sender, actions[i].stage - sender)
            found.setdefault(way, {})[rank[source], rank[i]] = None
    return {way: tuple(pairs) for way, pairs in found.items()}


def _cost_kinds(splits: bool) -> dict[str, int]:
    """What kinds of action cost, in a schedule that splits the backward pass or does not."""
    part = INPUT_PART if splits else BACKWARD
    return {"F": FORWARD, "B": part, "W": WEIGHT_PART, "BW": BACKWARD}


def kind_of(action: Action, splits: bool) -> int:
    """What the action costs, in a schedule that splits the backward pass or does not."""
    return _cost_kinds(splits)[action.kind]


def _ends(schedule: Schedule, costs: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    """Per rank and stage of it the number of the action that completes the gradients (-1
    without)."""
    last: list[list[int]] = []
    for start, actions, stages in zip(
        starts, schedule.ranks, schedule.stages_of_ranks, strict=True
    ):
        own = costs[start : start + len(actions)]
        latest = {cost: start + at for at, cost in enumerate(own)}
        first = [stage * COST_KINDS for stage in stages]
        last.append([max(latest.get(c + kind, -1) for kind in COMPLETING) for c in first])
    return last


def _counts(runs: Sequence[CostRun], stages: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    found: Counter[int] = Counter()
    for word, times in runs:
        for cost, count in Counter(word).items():
            found[cost] += count * times
    return tuple(
        tuple(found[stage * COST_KINDS + kind] for kind in range(COST_KINDS)) for stage in stages
    )


def _completing(runs: Sequence[CostRun], stages: Sequence[int]) -> tuple[tuple[int, int], ...]:
    found: dict[int, int] = {}  # the last first
    for word, times in reversed(runs):
        for cost in reversed(word if times else ()):
            if cost % COST_KINDS in COMPLETING:
                found.setdefault(cost // COST_KINDS, cost % COST_KINDS)
    places = {stage: place for place, stage in enumerate(stages)}
    return tuple((places[stage], kind) for stage, kind in reversed(found.items()))


__all__ = [
    "BACKWARD",
    "COMPLETING",
    "COST_KINDS",
    "FORWARD",
    "INPUT_PART",
    "WEIGHT_PART",
    "CompiledSchedule",
    "Held",
    "HeldMatrix",
    "InFlight",
    "compile_schedule",
    "kind_of",
]
