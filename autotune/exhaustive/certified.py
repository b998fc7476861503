"""Certified search: the best of a space, found and proved by evaluating a small part of it.

Branch and bound over parts of the space, the most promising first. Strategies of a part are
columns, and carry bounds (`distir.simulation.bounds`): first of what their matrix products take,
found for beginnings of strategies; then, for many at once, of their blocks without what
recomputation and sharding add; then without what sharding adds; then of their blocks as they are.
Strategies are ruled out once a bound shows that they do not fit, or are not as good as what was
found; what is left is evaluated. Where several are asked for, what may be as good as the best comes
first, then what may be nearly as good, so that the best is proved before all others are found.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from autotune.exhaustive.certificate import UNFIT, Certificate
from autotune.exhaustive.chunks import evaluated_chunk
from autotune.exhaustive.collect import MEMORY, TIME, Collector
from autotune.exhaustive.first_look import FirstLook, first_look
from autotune.exhaustive.parts import Part, Stage, alike_rows, joined, split, split_over
from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.study.trial import Trial, closest_of, rank
from distir.arguments import checked
from distir.arrays import Codes, Indices, distinct
from distir.errors import DistirError
from distir.garbage import collected_seldom
from distir.metrics import METRICS
from distir.simulation.bounds import REASONS, Bounds, ManyBounds, kept_whole
from distir.simulation.simulator import Simulator
from distir.simulation.wholes import ORDERING, SHAPING, updated_share
from distir.strategies import FIELDS, Strategies
from distir.strategy import KEEPS_ACTIVATIONS, KEEPS_PARAMETERS
from search_spaces import SearchSpace
from search_spaces.named import DEFAULTS

FEWEST, MANY, MOST = 32, 4096, 1 << 16
"""Strategies evaluated in the first batch if nothing is known, in the first if something is, and in
the largest: the best of a batch rules others out before the next, which is twice as large. In large
batches more strategies share programs."""

LEAST_BOUNDED = 1000
"""Strategies of the smallest space that is worth a first look and more than the cheapest bounds:
evaluating what these leave of a smaller one is as quick."""

MORE_FOR_MEMORY = 16
"""How many times as many strategies such a space has where memory is looked for: bounds of memory
take as long as those of time, and rule out less. With a time limit it has no more than others, as
an evaluation does not end early. Of 16 spaces of 1,617 to 19,032 strategies, drawn and timed as
`python -m experiments.certified` does, evaluating all took 51 s, and bounds 68 s (two cores,
December 2026).
"""

TOGETHER = 1 << 18
"""Strategies of which parts are bounded together at most, to bound memory."""

FURTHER = 1 / 64
"""How far beyond the best known one strategies are looked at next, as a fraction of it; then twice
as far, and so on."""

Advance = Callable[[int, "Trial | None"], None]


@checked
@collected_seldom()
def certify(
    problem: Problem,
    objective: Objective,
    *,
    top: int = 1,
    known: Trial | None = None,
    seconds: float = inf,
    nearest: bool = True,
    any_that_fits: bool = False,
    advance: Advance = lambda done, best: None,
) -> Certificate:
    """The `top` best strategies of the problem's space, as exhaustive search would rank them.

    `known`: a strategy of the space that was found before; without it, a first look finds one in
    all but small spaces. Where only the best is asked for, what is worse is ruled out from the
    beginning. After `seconds` the search ends, and says how good the strategies that are left might
    be. What it has found until then is not worse than the first look, if that had ended. Where
    nothing fits, some of what bounds rule out is tried, which takes seconds, to tell the `nearest`.
    If it is enough to know `any_that_fits`, it also ends with a first look that finds something.

    Raises `DistirError` for objectives that have no bounds: all but time and memory as distir
    simulates them.
    """
    clock = time.perf_counter()
    search = _Search(problem, objective, top, advance)
    search.ends = clock + seconds
    look = FirstLook(None, 0)
    complete, interrupted = True, False
    try:
        try:
            count = search.space.count()
            small = count < search.least_bounded
            if known is None and (not small or (any_that_fits and count >= LEAST_BOUNDED)):
                look = first_look(problem, objective, search.bounds, search.ends)
            if any_that_fits and look.best is not None:
                complete = False
            else:
                search.beat(known or look.best)
                search.begin()
                if small:
                    search.evaluate_all()
                else:
                    search.run()
        except _TimeIsUpError:
            complete = False
    except KeyboardInterrupt:
        complete, interrupted = False, True
    found = search.found
    looked = look.best
    ranked = found.ranked if complete or looked is None else _with(looked, found.ranked, top)
    evaluated = {trial.strategy for trial in found.ranked}
    of_look = sum(trial.strategy not in evaluated for trial in ranked)
    closest = found.closest_told
    if nearest and complete and not ranked:
        try:
            closest = search.nearest()
        except KeyboardInterrupt:  # what is proved is proved
            interrupted = True
    return Certificate(
        space_size=problem.space.count(),
        ranked=ranked,
        evaluated=found.evaluated + of_look,
        feasible=found.feasible + of_look,
        ruled_out=dict(search.ruled_out.most_common()),
        bounds=search.bounded,
        seconds=time.perf_counter() - clock,
        closest=closest,
        complete=complete,
        interrupted=interrupted,
        bound=None if complete else search.least_left,
        metric=search.metric,
        looked_at=look.tried,
        layouts=found.layouts,
    )


def look(problem: Problem, objective: Objective, seconds: float) -> Trial | None:
    """The best of some usual strategies of a large space (`first_look`); None where none is found,
    or where their bounds take longer than `seconds`. Raises what `certify` raises."""
    search = _Search(problem, objective, 1, lambda done, best: None)
    search.ends = time.perf_counter() + seconds
    try:
        return first_look(problem, objective, search.bounds, search.ends).best
    except _TimeIsUpError:
        return None


def _with(looked: Trial, ranked: tuple[Trial, ...], top: int) -> tuple[Trial, ...]:
    """The `top` best of a strategy and of others."""
    others = (trial for trial in ranked if trial.strategy != looked.strategy)
    return tuple(sorted((looked, *others), key=rank)[:top])


class _TimeIsUpError(Exception):
    """A search has taken as long as it may."""


FAMILY = ("axes", "sequence_parallel", "cp_exchange", "expert_order", "etp", "placement")
"""Choices that strategies have in common whose bounds are found together, at first."""
RECOMPUTED = ("recompute", "recompute_every", "recompute_layers")
"""Choices that they have in common, too, when more is said of them than of families."""
SHARED = (*FAMILY, "zero", "offload")
"""Choices that strategies have in common whose equal blocks have programs in common."""


SOME_NEAREST, MOST_NEAREST = 128, 50_000
"""Strategies that are tried where nothing fits, to tell what misses by least, and of how many."""


def order_last(space: SearchSpace) -> tuple[SearchSpace, int]:
    """The same space with what only orders work chosen last, and how many choices come before."""
    late: set[str] = set(ORDERING)
    for dimension in space.dimensions:
        if late.intersection(dimension.reads):
            late.add(dimension.name)
    first = [each for each in space.dimensions if each.name not in late]
    last = [each for each in space.dimensions if each.name in late]
    return SearchSpace([*first, *last], space.rules), len(first)


class _Search:
    def __init__(self, problem: Problem, objective: Objective, top: int, advance: Advance):
        if problem.finds_layers:
            raise DistirError(
                "with recompute auto nothing can be certified, since the layers that recompute are "
                "chosen plan by plan; state none, selective or full"
            )
        if not isinstance(problem.simulator, Simulator) or objective.many is None:
            raise DistirError(
                f"the objective {objective.name} cannot be certified, as there are no bounds for "
                "it; expected "
                "throughput, latency or memory"
            )
        self.metric = _bounded_metric(objective)
        self.space: SearchSpace = problem.space
        self.devices = problem.devices
        self.cost = problem.simulator.cost
        self.objective = objective
        self.bounds = Bounds(problem.simulator.stages, self._check_time)
        self.found = Collector(objective, top)
        self.advance = advance
        self.ruled_out: Counter[str] = Counter()
        self.bounded = 0
        self._parts: list[tuple[float, int, Part]] = []
        self._made = 0
        self._size = FEWEST
        self._top, self._worst = top, inf
        self._known = self._reach = inf
        self._widens = False
        """Whether what is as good as the known is reached step by step, as nothing was known from
        the beginning."""
        self._further = 0.0
        self.ends = inf
        self._current: Sequence[Part] = ()
        """What is looked at, until what is left of it is among the parts again."""
        self._started = False
        self.tree, self._shaped = order_last(self.space)
        self._smallest = inf
        self._nearest: list[Part] = []
        """Of what does not fit, the parts whose bound is the smallest, while nothing is known that
        fits."""

    def begin(self) -> None:
        """Bounds the whole space by its products."""
        for part in list(self._families()):
            self._add(part)
        self._started = True

    def evaluate_all(self) -> None:
        """Evaluates all that is left."""
        self._current, self._parts = [part for *_, part in self._parts], []
        if self._current:
            self._evaluate(self._unfolded(joined(self._current))[0])
        self._current = ()

    def run(self) -> None:
        """Goes through the space, the most promising part first."""
        while self._parts:
            part = self._left(self._next())
            self._current = (part,)
            if len(part.table):
                self._check_time()
                for refined in list(self._refined(part)):
                    self._add(refined)
            self._current = ()
            best = self.found.best
            if self._known == inf and best is not None:
                # It may be far from the best: what is promising is looked at first.
                self._known, self._reach = best.evaluation.metrics[self.metric], -inf
                self._widens = True

    def beat(self, known: Trial | None) -> None:
        """Begins with what is no worse than a strategy that is known, if one is; where only the
        best is asked for, rules out what is worse."""
        value = None if known is None else known.metric(self.metric)
        if known is not None and known.feasible and value is not None:
            self._known = self._reach = value
            self._size = MANY
            if self._top == 1:
                self._worst = value

    @property
    def least_bounded(self) -> int:
        """Strategies of the smallest space that is worth more than the cheapest bounds."""
        by_size = self.metric == MEMORY and self.ends == inf
        return LEAST_BOUNDED * (MORE_FOR_MEMORY if by_size else 1)

    @property
    def _within(self) -> float:
        """Seconds that a strategy may take to be as good as what was found."""
        return inf if self.metric == MEMORY else self._worst

    @property
    def least_left(self) -> float | None:
        """What the best bounded of the strategies that are left takes at least; None if they are
        not bounded yet."""
        if not self._started:
            return None
        left = [*(part for *_, part in self._parts), *self._current]
        keys = (self._keys(part) for part in left if len(part.table))
        return min((float(each.min()) for each in keys), default=None)

    def _check_time(self) -> None:
        if time.perf_counter() > self.ends:
            raise _TimeIsUpError

    def _next(self) -> Part:
        """What is looked at next: as long as nothing was found to compare with, the most promising
        of the parts that are bounded best; then, together, all that is within reach, as what
        strategies share is looked at once. If something good was known from the beginning, that is
        all that may be as good; else it begins with what is about as promising as the best."""
        if self._known < inf:
            self._reach_further()
            return self._next_together()
        chosen = min(self._parts, key=lambda each: (-each[-1].stage, *each[:-1]))
        self._current = chosen[-1:]
        self._parts.remove(chosen)
        heapq.heapify(self._parts)
        return chosen[-1]

    def _reach_further(self) -> None:
        """Where nothing is left within reach, extends it to what may be a little worse; at most to
        the worst that is asked for."""
        least = self._parts[0][0]
        if least > self._reach:
            self._further = 2 * self._further or FURTHER
            beyond = self._known * (1 + self._further) if self._worst == inf else self._worst
            if self._widens:
                beyond = min(beyond, least * (1 + self._further))
            self._reach = max(least, beyond)

    def _next_together(self) -> Part:
        """The most promising strategies of one stage, those within reach, as one part."""
        stage, size = self._parts[0][-1].stage, 0
        chosen: list[Part] = []
        left: list[tuple[float, int, Part]] = []  # ascends, which makes it a heap
        for each in sorted(self._parts, key=lambda each: each[:-1]):
            least, _, part = each
            here = part.stage == stage and least <= self._reach
            if here and (not chosen or size + len(part.table) <= TOGETHER):
                chosen.append(part)
                size += len(part.table)
            else:
                left.append(each)
        self._current, self._parts = chosen, left
        together = joined(chosen)
        within = self._keys(together) <= self._reach
        self._add(together.taken(~within))
        return together.taken(within)

    def _families(self) -> Iterator[Part]:
        """The whole space, bounded by its products."""
        _, nodes, codes = self.tree.tree.below(np.zeros(1, np.int64), 0, self._shaped)
        table = self._strategies(codes, len(nodes))
        first, which = table.distinct(("pp", "microbatches"))
        ranks, microbatches = (table.taken(first).column(n) for n in ("pp", "microbatches"))
        offloading = any(table.values["offload"])
        begun = self.bounds.begun(self.devices, ranks, microbatches, offloading=offloading)
        self.bounded += len(first)
        leaves = self.tree.tree.leaves_below(self._shaped)[nodes]
        whole = Part(Stage.PRODUCTS, table, begun.taken(which), leaves, nodes)
        kept = np.isin(table.column("keep_gathered"), KEEPS_ACTIVATIONS)
        alike = [table.distinct(FAMILY)[1], kept, *split_over(table)]
        yield from split(whole, alike)

    def _strategies(self, codes: Mapping[str, Codes], count: int) -> Strategies:
        known = self.tree.tree.values
        values = {name: known.get(name) or (DEFAULTS[name],) for name in FIELDS}
        return Strategies(values, self._varying(codes), count)

    def _refined(self, part: Part) -> Iterator[Part]:
        """What is left of a part, with better bounds or less what was evaluated."""
        table = part.table
        if part.stage == Stage.PRODUCTS:
            for each in self._relaxed(part):
                yield from split(each, [each.table.distinct(RECOMPUTED)[1]])
        elif part.stage == Stage.RELAXED:
            bounds = self.bounds.unsharded(table, self._within)
            part = self._bounded(part, Stage.UNSHARDED, bounds)
            table = part.table
            kept = np.isin(table.column("keep_gathered"), KEEPS_PARAMETERS)
            levels = table.distinct(("zero",))[1]
            yield from split(part, [levels, table.column("zero_degree") > 0, kept])
        elif part.stage == Stage.UNSHARDED:
            yield self._bounded(part, Stage.BLOCKS, self.bounds.ordered(table, self._within))
        else:
            order = self._order(part)
            self._evaluate(part.taken(order[: self._size]))
            yield part.taken(order[self._size :])
            self._size = min(2 * self._size, MOST)

    def _relaxed(self, part: Part) -> Iterator[Part]:
        """What is left of the strategies of a part. Seconds are found once for beginnings that
        differ only in what they recompute and shard, and update as large a share of parameters,
        with all orders of work behind them; a beginning whose quickest order is too slow is ruled
        out before its strategies are listed."""
        _, program = kept_whole(part.table).distinct(SHAPING)
        _, share = distinct(updated_share(part.table))
        program = program * (1 + int(share.max(initial=0))) + share
        first, which = distinct(program * (1 + int(part.nodes.max(initial=0))) + part.nodes)
        ordered, begun = self._unfolded(part.taken(first))
        begins = np.searchsorted(begun, np.arange(len(first)))
        time, size = self.bounds.relaxed(part.table, ordered.table, begins[which])
        self.bounded += len(ordered.table) + len(part.table)
        quickest = _quickest(time, begins)[which]
        part = replace(
            part,
            bounds=part.bounds.joined(
                replace(size, seconds=time.seconds[quickest], slowed_by=time.slowed_by[quickest])
            ),
        )
        kept = self._kept(part)
        part, begin = part.taken(kept), begins[which[kept]]
        together = np.cumsum(part.leaves) // TOGETHER
        for number in np.unique(together):
            rows = np.flatnonzero(together == number)
            every, row = self._unfolded(part.taken(rows))
            inside = np.arange(len(row)) - np.searchsorted(row, row)
            bounds = every.bounds.joined(time.taken(begin[rows][row] + inside))
            yield self._left(replace(every, stage=Stage.RELAXED, bounds=bounds))

    def _order(self, part: Part) -> Indices:
        """The order in which strategies are looked at: the most promising ones first; or, if all
        have to be looked at anyway, those together whose blocks have programs in common."""
        table, keys = part.table, self._keys(part)
        if self._known == inf:
            return np.argsort(keys, kind="stable")
        kept = np.isin(table.column("keep_gathered"), KEEPS_PARAMETERS)
        sharded = table.column("zero_degree") > 0
        first, alike = alike_rows([table.distinct(SHARED)[1], kept, sharded, *split_over(table)])
        best = np.full(len(first), inf)
        np.minimum.at(best, alike, keys)
        return np.lexsort((keys, alike, best[alike]))

    def _bounded(self, part: Part, stage: Stage, bounds: ManyBounds) -> Part:
        """What is left of a part with further bounds."""
        self.bounded += len(part.table)
        return self._left(replace(part, stage=stage, bounds=part.bounds.joined(bounds)))

    def _unfolded(self, part: Part) -> tuple[Part, Indices]:
        """Every strategy of a part, and the row that it begins with."""
        depth = len(self.tree.names)
        which, nodes, late = self.tree.tree.below(part.nodes, self._shaped, depth)
        early = part.table.taken(which)
        table = Strategies(early.values, {**early.codes, **self._varying(late)}, len(which))
        leaves = np.ones(len(which), np.int64)
        return Part(part.stage, table, part.bounds.taken(which), leaves, nodes), which

    def _varying(self, codes: Mapping[str, Codes]) -> dict[str, Codes]:
        known = self.tree.tree.values
        return {name: column for name, column in codes.items() if len(known[name]) > 1}

    def _keys(self, part: Part) -> NDArray[np.float64]:
        return part.bounds.size if self.metric == MEMORY else part.bounds.seconds

    def _add(self, part: Part) -> None:
        """Adds the strategies of a part that are not ruled out."""
        part = self._left(part)
        if len(part.table):
            self._made += 1
            heapq.heappush(self._parts, (float(self._keys(part).min()), self._made, part))

    def _left(self, part: Part) -> Part:
        """The strategies of a part that are not ruled out."""
        return part.taken(self._kept(part))

    def _kept(self, part: Part) -> NDArray[np.bool_]:
        """Which strategies of a part are not ruled out."""
        too_large = ~self.cost.fits(part.bounds.size, part.table.communicators)
        lost = too_large | (self._keys(part) > self._worst)
        if lost.any():
            self._rule_out(part.taken(lost), too_large[lost])
        return ~lost

    def _rule_out(self, part: Part, too_large: NDArray[np.bool_]) -> None:
        if too_large.any() and self._known == inf and not self.found.feasible:
            self._keep_nearest(part.taken(too_large))
        by_size = too_large | (self.metric == MEMORY)
        reasons = np.where(by_size, part.bounds.filled_by, part.bounds.slowed_by)
        verbs = np.where(too_large, 0, np.where(by_size, 1, 2))
        for verb, said in enumerate((UNFIT, "holds more", "takes longer")):
            counts = np.bincount(reasons[verbs == verb], part.leaves[verbs == verb])
            for reason in np.flatnonzero(counts):
                self.ruled_out[f"{said}: {REASONS[reason]}"] += int(counts[reason])
        self.advance(int(part.leaves.sum()), self.found.best)

    def _keep_nearest(self, part: Part) -> None:
        """Keeps what does not fit by the least of all bounds so far."""
        smallest = float(part.bounds.size.min())
        if smallest < self._smallest:
            self._smallest, self._nearest = smallest, []
        if smallest == self._smallest:
            self._nearest.append(part.taken(part.bounds.size == smallest))

    def nearest(self) -> Trial | None:
        """Where nothing fits, the trial that misses by least: of those that were evaluated, and of
        some that are not where bounds say that these may miss by less, or rule out everything."""
        tried = Collector(self.objective, 1)
        for part in self._nearest:
            begun = part.taken(np.cumsum(part.leaves) <= max(MOST_NEAREST, int(part.leaves[0])))
            every = self._unfolded(begun)[0] if part.stage == Stage.PRODUCTS else begun
            count = min(len(every.table), max(1, SOME_NEAREST // len(self._nearest)))
            spread = np.linspace(0, len(every.table) - 1, count).astype(np.int64)
            self._into(tried, every.table.taken(spread))
        return closest_of(each for each in (self.found.closest_told, tried.closest_told) if each)

    def _evaluate(self, part: Part) -> None:
        """Evaluates the strategies of a part."""
        self._into(self.found, part.table)
        self.advance(len(part.table), self.found.best)
        worst = self.found.worst
        if worst is not None:
            self._worst = min(self._worst, worst.evaluation.metrics[self.metric])

    def _into(self, collector: Collector, table: Strategies) -> None:
        """Evaluates strategies for a collector."""
        numbers = np.array([self.space.index(strategy) for strategy in table], np.int64)
        ascending = np.argsort(numbers)
        collector.add(evaluated_chunk(self.objective, numbers[ascending], table.taken(ascending)))


def _quickest(bounds: ManyBounds, begins: Indices) -> Indices:
    """Where in each group of bounds, which begin at these places, that of the least seconds is."""
    group = np.repeat(np.arange(len(begins)), np.diff([*begins, len(bounds.seconds)]))
    return np.lexsort((bounds.seconds, group))[begins]


def can_be_certified(problem: Problem, objective: Objective) -> bool:
    """Whether `certify` has bounds for this, and evaluates many strategies at once."""
    return objective.many is not None and can_be_bounded(problem, objective)


def can_be_bounded(problem: Problem, objective: Objective) -> bool:
    """Whether there are bounds for this: of time or memory, as distir simulates them."""
    if not isinstance(problem.simulator, Simulator) or not objective.trusted:
        return False
    try:
        _bounded_metric(objective)
    except DistirError:
        return False
    return True


def _bounded_metric(objective: Objective) -> str:
    """The metric that is bounded in place of the objective's: time, where that alone decides."""
    bounded = {each.name: each.value for each in METRICS if each.value.timed or each.name == MEMORY}
    metric = bounded.get(objective.metric)
    if metric is None or objective.maximize != metric.larger_is_better:
        known = ", ".join(f"{each.name} {each.direction}d" for each in bounded.values())
        raise DistirError(
            f"the metric {objective.metric} cannot be certified as it is; expected {known}"
        )
    return TIME if metric.timed else MEMORY
