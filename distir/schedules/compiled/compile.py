"""Compiled schedules: how many actions there are, what is in flight, and all actions as flat lists.

In the flat lists, every action comes after the actions that it needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from distir.schedules.compiled.costs import (
    BACKWARD,
    COMPLETING,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    PAIR,
    WEIGHT_PART,
    Pairs,
    RepeatedCosts,
)
from distir.schedules.compiled.situations import (
    MOST_RANKS,
    Situation,
    SituationTable,
    situation_table_of,
    situations_of,
)
from distir.schedules.core.action import Action, ActionKind
from distir.schedules.core.order import execution_order, numbered_actions
from distir.schedules.core.rhythm import Rhythm
from distir.schedules.core.schedule import Schedule


@dataclass(frozen=True, slots=True)
class PeakInFlight:
    """Microbatches in flight in the situations in which ranks hold most of them.

    There are up to three such situations: most microbatches are between F and B (the one of the
    action itself included), most are between B and W, or most are either.
    """

    stages_of_ranks: tuple[tuple[int, ...], ...]
    counts: tuple[tuple[tuple[int, int], ...], ...]
    """Per situation, for every stage of every rank, one rank after the other: the microbatches
    between F and B, and between B and W. Equal situations are listed once."""
    cost_kinds: tuple[int, ...]
    """The cost kinds of the schedule's actions, in ascending order."""


@dataclass(frozen=True, slots=True, eq=False)
class FlatActions:
    """The actions of a schedule as flat lists, each action after the actions that it needs.

    An overlapped pair has three entries, as `costs.py` says; the first of them is for the backward
    pass, like the last.
    """

    actions: tuple[Action, ...]
    rank: tuple[int, ...]
    """The rank of each action."""
    cost: tuple[int, ...]
    """The cost number `stage · COST_KINDS + cost kind` of each action."""
    needs: tuple[int, ...]
    """The action on another rank for whose message each action waits, or -1."""
    link: tuple[int, ...]
    """The number of the link on which the message of each action leaves, or -1."""
    num_links: int
    routes: Mapping[tuple[int, int], tuple[tuple[int, int], ...]]
    """See `CompiledSchedule.routes`."""
    last_gradients: tuple[tuple[int, ...], ...]
    """Per rank and stage of it, the action that completes its gradients there, or -1."""
    first: tuple[int, ...]
    """The first action of each rank."""


@dataclass(frozen=True, eq=False)
class CompiledSchedule:
    """What simulators and executors need to know of a schedule, which must be valid.

    Properties are computed when they are first asked for. For a rhythm most of them come from its
    patterns; only `schedule` and `flat` list all actions.
    """

    source: Schedule | Rhythm

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule with all actions, rank by rank."""
        return self.source.schedule() if isinstance(self.source, Rhythm) else self.source

    @cached_property
    def flat(self) -> FlatActions:
        """All actions as flat lists."""
        return _flat(self.schedule, self.pairs)

    @property
    def stages(self) -> int:
        """Pipeline stages over all ranks, chunks included."""
        return self.source.stages

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions, each after the actions that it needs."""
        return self.flat.actions

    @property
    def rank(self) -> tuple[int, ...]:
        """The rank of each action."""
        return self.flat.rank

    @property
    def cost(self) -> tuple[int, ...]:
        """The cost number `stage · COST_KINDS + cost kind` of each action."""
        return self.flat.cost

    @property
    def needs(self) -> tuple[int, ...]:
        """The action on another rank for whose message each action waits, or -1."""
        return self.flat.needs

    @property
    def link(self) -> tuple[int, ...]:
        """The number of the link on which the message of each action leaves, or -1."""
        return self.flat.link

    @property
    def num_links(self) -> int:
        """Number of links between ranks."""
        return self.flat.num_links

    @property
    def last_gradients(self) -> tuple[tuple[int, ...], ...]:
        """Per rank and stage of it, the action that completes its gradients there, or -1."""
        return self.flat.last_gradients

    @property
    def first(self) -> tuple[int, ...]:
        """The first action of each rank."""
        return self.flat.first

    @property
    def copies(self) -> int:
        """How many ranks hold a stage: two where a schedule runs in both directions."""
        return sum(map(len, self.stages_of_ranks)) // self.stages

    @cached_property
    def stages_of_ranks(self) -> tuple[tuple[int, ...], ...]:
        """The stages (chunks) that each rank holds, in pipeline order."""
        return self.source.stages_of_ranks

    @property
    def repeated_costs(self) -> tuple[tuple[RepeatedCosts, ...], ...]:
        """Per rank, its repeated patterns of cost numbers, as if the actions of overlapped pairs
        ran one after the other. Without a rhythm, all actions of a rank are one pattern that comes
        once."""
        return tuple(
            tuple((pattern, times) for pattern, _, times in patterns) for patterns in self._patterns
        )

    @cached_property
    def placed_costs(self) -> tuple[tuple[RepeatedCosts, ...], ...]:
        """`repeated_costs` with the positions of stages in `stages_of_ranks` in place of stages:
        ranks that do alike with other stages have the same."""
        return tuple(map(_placed, self.repeated_costs, self.stages_of_ranks))

    @cached_property
    def timed_costs(self) -> tuple[tuple[RepeatedCosts, ...], ...]:
        """`repeated_costs` with the three entries of each overlapped pair in place of its
        actions."""
        if not self.pairs:
            return self.repeated_costs
        number = {pair: self.stages + index for index, pair in enumerate(self.pairs)}
        return tuple(
            tuple((_timed(pattern, begins, number), times) for pattern, begins, times in patterns)
            for patterns in self._patterns
        )

    @cached_property
    def pairs(self) -> Pairs:
        """The stages of the overlapped pairs that the schedule has, in ascending order."""
        found = {
            (pattern[position] // COST_KINDS, pattern[position + 1] // COST_KINDS)
            for patterns in self._patterns
            for pattern, begins, _ in patterns
            for position in begins
        }
        return tuple(sorted(found))

    @cached_property
    def pair_counts(self) -> NDArray[np.int64]:
        """How often ranks run each of `pairs`, of shape (ranks, pairs)."""
        number = {pair: index for index, pair in enumerate(self.pairs)}
        found = np.zeros((len(self._patterns), len(number)), np.int64)
        for rank, patterns in enumerate(self._patterns):
            for pattern, begins, times in patterns:
                for position in begins:
                    pair = pattern[position] // COST_KINDS, pattern[position + 1] // COST_KINDS
                    found[rank, number[pair]] += times
        return found

    @cached_property
    def _patterns(self) -> tuple[tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...], ...]:
        """Per rank, its repeated patterns of cost numbers, the positions in them at which
        overlapped pairs begin, and how often they are repeated."""
        source = self.source
        cost_kinds = _cost_kinds(source.splits_backward)

        def costs(steps: Iterable[tuple[int, ActionKind]]) -> tuple[int, ...]:
            return tuple([stage * COST_KINDS + cost_kinds[kind] for stage, kind in steps])

        if isinstance(source, Rhythm):
            return tuple(
                tuple((costs(each.pattern), each.overlapped, each.times) for each in repeated)
                for repeated in source.ranks
            )
        overlapped = source.overlapped or ((),) * len(source.ranks)
        return tuple(
            ((costs((stage, kind) for stage, kind, _ in actions), begins, 1),)
            for actions, begins in zip(source.ranks, overlapped, strict=True)
        )

    @cached_property
    def counts(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Per rank and stage of it, the number of actions of each cost kind."""
        return tuple(map(_counts, self.placed_costs, map(len, self.stages_of_ranks)))

    @cached_property
    def count_matrix(self) -> NDArray[np.int64]:
        """`counts` as an array of shape (stages of all ranks, cost kinds), one rank after the
        other."""
        return np.array([*chain.from_iterable(self.counts)], np.int64)

    @cached_property
    def counts_alone(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """`counts` without the actions of overlapped pairs."""
        if not self.pairs:
            return self.counts
        alone = map(_placed, self.timed_costs, self.stages_of_ranks)
        return tuple(map(_counts, alone, map(len, self.stages_of_ranks)))

    @cached_property
    def matrix_alone(self) -> NDArray[np.int64]:
        """`counts_alone` as an array, like `count_matrix`."""
        return np.array([*chain.from_iterable(self.counts_alone)], np.int64)

    @cached_property
    def completing(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per rank, its stages (positions in `stages_of_ranks`) in the order in which their
        gradients are complete, each with the cost kind of the action that completes them: of an
        overlapped pair, `PAIR`."""
        completing = partial(_completing, stages=self.stages, pairs=self.pairs)
        return tuple(map(completing, self.timed_costs, self.stages_of_ranks))

    @cached_property
    def between_completions(self) -> tuple[tuple[tuple[tuple[int, int, int], ...], ...], ...]:
        """Per rank and entry of `completing`, the completing actions between those of the entry
        before and of this entry (for the first entry: none): the stage (its position), the cost
        kind and the number of actions."""
        return tuple(map(_between_completions, self.placed_costs, map(len, self.stages_of_ranks)))

    @cached_property
    def first_stages(self) -> tuple[int, ...]:
        """Per rank, the stage of its first action, as a position in `stages_of_ranks`."""
        return tuple(
            own.index(next(pattern[0] for pattern, times in repeated if times) // COST_KINDS)
            for repeated, own in zip(self.repeated_costs, self.stages_of_ranks, strict=True)
        )

    @cached_property
    def routes(self) -> Mapping[tuple[int, int], tuple[tuple[int, int], ...]]:
        """`routes[s, 1]` and `routes[s, -1]` are the pairs of ranks between which stage `s` sends
        messages to the next and to the previous stage."""
        return _rhythm_routes(self.source) if isinstance(self.source, Rhythm) else self.flat.routes

    @cached_property
    def situations(self) -> tuple[tuple[Situation, ...], ...]:
        """Per rank, the undominated situations in which its actions start."""
        return tuple(map(situations_of, self.placed_costs, self.stages_of_ranks))

    @cached_property
    def situation_tables(self) -> tuple[SituationTable, ...]:
        """`situations` as arrays."""
        return tuple(map(situation_table_of, self.placed_costs, self.stages_of_ranks))

    @cached_property
    def peak_in_flight(self) -> PeakInFlight:
        """The microbatches in flight when ranks hold most of them."""
        tables = self.situation_tables
        cost_kinds = set[int]().union(*(table.kinds for table in tables))
        peaks = zip(*(table.fullest for table in tables), strict=True)
        different = tuple(dict.fromkeys(tuple(chain.from_iterable(peak)) for peak in peaks))
        return PeakInFlight(self.stages_of_ranks, different, tuple(sorted(cost_kinds)))

    @property
    def splits_backward(self) -> bool:
        """Whether some backward pass comes in two parts."""
        return any(of_stage[WEIGHT_PART] for of_rank in self.counts for of_stage in of_rank)


def compile_schedule(source: Schedule | Rhythm) -> CompiledSchedule:
    """Compiles a schedule, which must be valid.

    Raises `DeadlockError` if ranks wait for each other. That is not checked for a rhythm.
    """
    compiled = CompiledSchedule(source)
    if isinstance(source, Schedule):
        assert compiled.flat
    return compiled


def _flat(schedule: Schedule, pairs: Pairs) -> FlatActions:
    cost_kinds = _cost_kinds(schedule.splits_backward)
    numbered = numbered_actions(schedule)
    needed = numbered.needs()
    order = execution_order(numbered, needed)
    listed = list(chain.from_iterable(schedule.ranks))
    costs = [stage * COST_KINDS + cost_kinds[kind] for stage, kind, _ in listed]
    last = _last_gradients(schedule, costs, numbered.starts)
    cost = [costs[i] for i in order]
    reads_at: dict[int, int] = {}  # entries that await the messages of overlapped backward passes
    if pairs:
        order, cost = _with_pair_entries(order, costs, numbered.pairs, pairs, schedule.stages)
        first = schedule.stages * COST_KINDS
        reads_at = {
            i: at
            for at, (i, number) in enumerate(zip(order, cost, strict=True))
            if number >= first and number % COST_KINDS == INPUT_PART
        }
    position = [0] * len(listed)
    for at, i in enumerate(order):
        position[i] = at
    rank = numbered.rank
    ranks = len(schedule.ranks)
    links: dict[int, int] = {}
    needs = [-1] * len(order)
    link = [-1] * len(order)
    for i, source in enumerate(needed):
        if source >= 0 and rank[source] != rank[i]:
            at = position[source]
            needs[reads_at.get(i, position[i])] = at
            route = (rank[source] * ranks + rank[i]) * 2 + (costs[i] % COST_KINDS == FORWARD)
            link[at] = links.setdefault(route, len(links))
    return FlatActions(
        actions=tuple([listed[i] for i in order]),
        rank=tuple([rank[i] for i in order]),
        cost=tuple(cost),
        needs=tuple(needs),
        link=tuple(link),
        num_links=len(links),
        routes=_routes(listed, rank, needed),
        last_gradients=tuple(
            tuple(position[i] if i >= 0 else -1 for i in of_rank) for of_rank in last
        ),
        first=tuple(position[start] for start in numbered.starts),
    )


def _with_pair_entries(
    order: Sequence[int],
    costs: Sequence[int],
    begins: Collection[int],
    pairs: Pairs,
    stages: int,
) -> tuple[list[int], list[int]]:
    """The actions in their order, with three entries for each overlapped pair, and the cost number
    of each entry. `begins` are the forward passes of pairs; each is followed by the other action,
    whose number is the next."""
    number = {pair: stages + index for index, pair in enumerate(pairs)}
    entries: list[int] = []
    cost: list[int] = []
    for i in order:
        if i in begins:
            entries += (i + 1, i, i + 1)
            cost += _timed((costs[i], costs[i + 1]), (0,), number)
        elif i - 1 not in begins:
            entries.append(i)
            cost.append(costs[i])
    return entries, cost


def _timed(
    pattern: Sequence[int], begins: Sequence[int], number: Mapping[tuple[int, int], int]
) -> tuple[int, ...]:
    """A pattern of cost numbers with three entries for each overlapped pair that begins at one of
    these positions; pairs are numbered like stages."""
    found: list[int] = []
    done = 0
    for position in begins:
        forward, backward = pattern[position : position + 2]
        first = number[forward // COST_KINDS, backward // COST_KINDS] * COST_KINDS
        found += pattern[done:position]
        found += (first + INPUT_PART, first + FORWARD, first + BACKWARD)
        done = position + 2
    return (*found, *pattern[done:])


def _rhythm_routes(rhythm: Rhythm) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """See `CompiledSchedule.routes`."""
    routes: dict[tuple[int, int], dict[tuple[int, int], None]] = {}
    for ranks in rhythm.ranks_of_stages[: rhythm.microbatches]:
        for stage, (here, there) in enumerate(pairwise(ranks)):
            if here != there:
                routes.setdefault((stage, 1), {})[here, there] = None
                if rhythm.has_backward:
                    routes.setdefault((stage + 1, -1), {})[there, here] = None
    return {stage_and_step: tuple(pairs) for stage_and_step, pairs in routes.items()}


def _routes(
    actions: Sequence[Action], rank: Sequence[int], needed: Sequence[int]
) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """See `CompiledSchedule.routes`. `needed[i]` is the action of another stage that action i
    needs, or -1."""
    routes: dict[tuple[int, int], dict[tuple[int, int], None]] = {}
    for i, source in enumerate(needed):
        if source >= 0 and rank[source] != rank[i]:
            sender = actions[source].stage
            stage_and_step = (sender, actions[i].stage - sender)
            routes.setdefault(stage_and_step, {})[rank[source], rank[i]] = None
    return {stage_and_step: tuple(pairs) for stage_and_step, pairs in routes.items()}


def _cost_kinds(splits: bool) -> dict[str, int]:
    """The cost kind of each action kind, in a schedule that splits the backward pass or not."""
    part = INPUT_PART if splits else BACKWARD
    return {"F": FORWARD, "B": part, "W": WEIGHT_PART, "BW": BACKWARD}


def cost_kind(action: Action, splits: bool) -> int:
    """The cost kind of an action; `splits` says whether the schedule splits the backward pass."""
    return _cost_kinds(splits)[action.kind]


def _last_gradients(
    schedule: Schedule, costs: Sequence[int], starts: Sequence[int]
) -> list[list[int]]:
    """Per rank and stage of it, the action that completes its gradients there, or -1. Actions are
    numbered rank by rank; `starts` are the first numbers of the ranks."""
    last: list[list[int]] = []
    for start, actions, stages in zip(
        starts, schedule.ranks, schedule.stages_of_ranks, strict=True
    ):
        of_rank = costs[start : start + len(actions)]
        latest = {cost: start + at for at, cost in enumerate(of_rank)}
        first = [stage * COST_KINDS for stage in stages]
        last.append([max(latest.get(c + kind, -1) for kind in COMPLETING) for c in first])
    return last


def _placed(repeated: Sequence[RepeatedCosts], stages: Sequence[int]) -> tuple[RepeatedCosts, ...]:
    """See `CompiledSchedule.placed_costs`; of one rank, without the entries of overlapped pairs."""
    place = {
        stage * COST_KINDS + kind: at * COST_KINDS + kind
        for at, stage in enumerate(stages)
        for kind in range(COST_KINDS)
    }
    return tuple(
        [
            (tuple([place[cost] for cost in pattern if cost in place]), times)
            for pattern, times in repeated
        ]
    )


@lru_cache(maxsize=MOST_RANKS)
def _counts(placed: tuple[RepeatedCosts, ...], stages: int) -> tuple[tuple[int, ...], ...]:
    """Of a rank, the number of actions by stage and cost kind."""
    counts = [0] * (stages * COST_KINDS)
    for pattern, times in placed:
        for cost in pattern:
            counts[cost] += times
    return tuple(
        tuple(counts[first : first + COST_KINDS]) for first in range(0, len(counts), COST_KINDS)
    )


def _completing(
    repeated: Sequence[RepeatedCosts], own: Sequence[int], *, stages: int, pairs: Pairs
) -> tuple[tuple[int, int], ...]:
    """See `CompiledSchedule.completing`; of one rank, which holds its `own` of all `stages`."""
    last: dict[int, int] = {}  # by stage, the one that is complete last first
    for pattern, times in reversed(repeated):
        for cost in reversed(pattern if times else ()):
            stage, kind = divmod(cost, COST_KINDS)
            if kind in COMPLETING:
                if stage >= stages:
                    stage, kind = pairs[stage - stages][1], PAIR
                last.setdefault(stage, kind)
        if len(last) == len(own):
            break
    position = {stage: at for at, stage in enumerate(own)}
    return tuple((position[stage], kind) for stage, kind in reversed(last.items()))


@lru_cache(maxsize=MOST_RANKS)
def _between_completions(
    placed: tuple[RepeatedCosts, ...], stages: int
) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """See `CompiledSchedule.between_completions`; of one rank."""
    found: list[dict[int, int]] = []  # the last entry first
    seen: set[int] = set()
    since: dict[int, int] = {}  # by cost number, the actions since the entry found last
    for pattern, times in reversed(placed):
        completing = [cost for cost in pattern if cost % COST_KINDS in COMPLETING]
        for cost in reversed(completing if times else ()):
            if cost // COST_KINDS in seen:
                since[cost] = since.get(cost, 0) + 1
            else:
                seen.add(cost // COST_KINDS)
                found.append(since)
                since = {}
        if len(seen) == stages:
            break
        for cost in completing:
            if times > 1:
                since[cost] = since.get(cost, 0) + times - 1
    return tuple(
        tuple((cost // COST_KINDS, cost % COST_KINDS, n) for cost, n in counts.items())
        for counts in [*[dict[int, int]()] * bool(found), *reversed(found[1:])]
    )


__all__ = [
    "BACKWARD",
    "COMPLETING",
    "COST_KINDS",
    "FORWARD",
    "INPUT_PART",
    "PAIR",
    "WEIGHT_PART",
    "CompiledSchedule",
    "PeakInFlight",
    "Situation",
    "SituationTable",
    "compile_schedule",
    "cost_kind",
]
