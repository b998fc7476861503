"""Certified search: the best of a space, found and proved by evaluating a small part of it.

Branch and bound over the tree of choices, the most promising first. A node carries bounds that hold
for everything below it (`distir.simulation.bounds`); it is ruled out with all that hangs below once
they show that nothing there fits, or is as good as what was found.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from autotune.chunks import evaluated_chunk
from autotune.collect import MEMORY, TIME, Collector
from autotune.objectives.objective import LARGER_IS_BETTER, Objective
from autotune.problem import Problem
from autotune.trial import Trial
from distir.errors import DistirError
from distir.simulation.bounds import Bound, Bounds, weakest
from distir.simulation.fast import Simulator
from distir.strategy import Strategy
from search_spaces import SearchSpace, Value

ORDERING = ("schedule", "chunks")
"""Choices that order the work of devices and do not change it."""
MOST = 64
"""Strategies that are evaluated before what was found rules out others."""

Advance = Callable[[int, "Trial | None"], None]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The best of a space, and what became of all others."""

    space_size: int
    ranked: tuple[Trial, ...]
    """The best, best first: those that exhaustive search finds."""
    evaluated: int
    feasible: int
    """Of those that were evaluated."""
    ruled_out: Mapping[str, int]
    """Strategies that were not evaluated, by what rules them out."""
    bounds: int
    """Bounds that were computed."""
    seconds: float
    closest: Trial | None
    """The infeasible one among the evaluated that misses by least."""
    complete: bool = True
    """False if it was interrupted; then nothing is proved."""

    @property
    def best(self) -> Trial | None:
        """The best feasible trial."""
        return self.ranked[0] if self.ranked else None

    def to_dict(self, batch_size: int) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "space_size": self.space_size,
            "evaluated": self.evaluated,
            "feasible": self.feasible,
            "seconds": self.seconds,
            "ranked": [trial.to_dict(batch_size) for trial in self.ranked],
            "certified": self.complete,
            "ruled_out": dict(self.ruled_out),
            "bounds": self.bounds,
        }


def certify(
    problem: Problem,
    objective: Objective,
    *,
    top: int = 1,
    advance: Advance = lambda done, best: None,
) -> Certificate:
    """The `top` best strategies of the problem's space, as exhaustive search would rank them.

    Raises `DistirError` for objectives that have no bounds: all but time and memory as distir
    simulates them.
    """
    search = _Search(problem, objective, top, advance)
    clock = time.perf_counter()
    complete = True
    try:
        search.run()
    except KeyboardInterrupt:
        complete = False
    found = search.found
    return Certificate(
        space_size=problem.space.count(),
        ranked=found.ranked,
        evaluated=found.evaluated,
        feasible=found.feasible,
        ruled_out=dict(search.ruled_out.most_common()),
        bounds=search.bounded,
        seconds=time.perf_counter() - clock,
        closest=found.closest,
        complete=complete,
    )


@dataclass(order=True, slots=True)
class _Node:
    """A part of the space: all that begins with `chosen`."""

    key: float
    """Seconds or bytes; nothing in it has less."""
    number: int
    chosen: dict[str, Value] = field(compare=False)
    leaves: int = field(compare=False)
    bound: Bound = field(compare=False)
    unsharded: bool = field(compare=False, default=False)
    """Whether it was bounded by the same without ZeRO."""


def order_last(space: SearchSpace) -> tuple[SearchSpace, int]:
    """The same space with what only orders work chosen last, and how many choices come before."""
    late: set[str] = set(ORDERING)
    for dimension in space.dimensions:
        if late.intersection(dimension.reads):
            late.add(dimension.name)
    first = [each for each in space.dimensions if each.name not in late]
    last = [each for each in space.dimensions if each.name in late]
    return SearchSpace([*first, *last], space.constraints), len(first)


class _Search:
    def __init__(self, problem: Problem, objective: Objective, top: int, advance: Advance):
        if not isinstance(problem.simulator, Simulator) or objective.many is None:
            raise DistirError(
                f"the objective {objective.name} cannot be certified: nothing bounds it; expected "
                "throughput, latency or memory"
            )
        self.metric = _bounded_metric(objective)
        self.space: SearchSpace = problem.space
        self.devices = problem.devices
        self.capacity = problem.memory_bytes
        self.objective = objective
        self.bounds = Bounds(problem.simulator)
        self.found = Collector(objective, top)
        self.advance = advance
        self.ruled_out: Counter[str] = Counter()
        self.bounded = 0
        self._nodes: list[_Node] = []
        self._made = 0
        self._batch: list[Strategy] = []
        self._size = 1
        self._worst = inf
        self.tree, self._shaped = order_last(self.space)
        # Before there is a choice, any of its values may follow.
        self._all = {name: self.space.values(name) for name in ("pp", "microbatches")}

    def run(self) -> None:
        """Goes through the space, the most promising part first."""
        self._add({}, self.space.count(), Bound())
        while self._nodes or self._batch:
            if self._nodes and self._nodes[0].key <= self._worst:
                node = heapq.heappop(self._nodes)
                if len(node.chosen) == len(self.tree.names):
                    self._batch.append(next(iter(self.tree.below(node.chosen))))
                else:
                    self._expand(node)
                if len(self._batch) < self._size:
                    continue
            if self._batch:
                self._evaluate()
            else:
                self._rule_out_the_rest()

    def _expand(self, node: _Node) -> None:
        if len(node.chosen) < self._shaped:
            name = self.tree.names[len(node.chosen)]
            for branch in self.tree.branches(node.chosen):
                chosen = {**node.chosen, name: branch.value}
                self._add(chosen, branch.leaves, node.bound.joined(self._begun(chosen)))
            return
        strategies = list(self.tree.below(node.chosen))
        if node.chosen.get("zero") and not node.unsharded:
            bounds = self.bounds.unsharded(strategies)
            self.bounded += 1
            bound = node.bound.joined(weakest(bounds))
            self._add(node.chosen, node.leaves, bound, unsharded=True)
            return
        self.bounded += 1
        for strategy, bound in zip(strategies, self.bounds.ordered(strategies), strict=True):
            values = strategy.to_dict()
            chosen = {name: values[name] for name in self.tree.names}
            self._add(chosen, 1, node.bound.joined(bound))

    def _begun(self, chosen: Mapping[str, Value]) -> Bound:
        """The bound for what the first choices leave open."""
        options = {
            name: (chosen[name],) if name in chosen else self._all[name] for name in self._all
        }
        return weakest(
            self.bounds.begun(self.devices, int(ranks), int(microbatches))
            for ranks in options["pp"]
            for microbatches in options["microbatches"]
        )

    def _add(
        self, chosen: dict[str, Value], leaves: int, bound: Bound, *, unsharded: bool = False
    ) -> None:
        """Adds a part of the space, unless it is ruled out already."""
        key = bound.size if self.metric == MEMORY else bound.seconds
        if bound.size > self.capacity or key > self._worst:
            self._rule_out(leaves, bound)
            return
        self._made += 1
        node = _Node(key, self._made, chosen, leaves, bound, unsharded)
        heapq.heappush(self._nodes, node)

    def _rule_out(self, leaves: int, bound: Bound) -> None:
        if bound.size > self.capacity:
            reason = f"does not fit: {bound.filled_by}"
        elif self.metric == MEMORY:
            reason = f"holds more: {bound.filled_by}"
        else:
            reason = f"takes longer: {bound.slowed_by}"
        self.ruled_out[reason] += leaves
        self.advance(leaves, self.found.best)

    def _rule_out_the_rest(self) -> None:
        for node in self._nodes:
            self._rule_out(node.leaves, node.bound)
        self._nodes.clear()

    def _evaluate(self) -> None:
        numbered = sorted((self.space.index(strategy), strategy) for strategy in self._batch)
        self.found.add(
            evaluated_chunk(
                self.objective,
                [number for number, _ in numbered],
                [strategy for _, strategy in numbered],
            )
        )
        self.advance(len(self._batch), self.found.best)
        self._batch.clear()
        self._size = min(2 * self._size, MOST)
        worst = self.found.worst
        if worst is not None:
            self._worst = worst.evaluation.metrics[self.metric]


def _bounded_metric(objective: Objective) -> str:
    """The metric that is bounded in place of the objective's: rates are so much work over time."""
    metric, natural = objective.metric, "minimize"
    if metric in LARGER_IS_BETTER:
        metric, natural = TIME, "maximize"
    if metric in (TIME, MEMORY) and objective.maximize == (natural == "maximize"):
        return metric
    raise DistirError(
        f"the metric {objective.metric} cannot be certified; expected {TIME} or {MEMORY} "
        f"minimized, or one of {', '.join(sorted(LARGER_IS_BETTER))} maximized"
    )
