"""Strategies of a problem with lower bounds on what they cost: what samplers of simulated
objectives choose from.

A bound costs as much per *kind* of program as hundreds of strategies of one kind, so that a large
space is not bounded as a whole. The pool begins with the strategies whose finer choices are as they
are by default, and grows around the best that is found. Of many axis lists it takes a few at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice

import numpy as np

from autotune.problem import Problem
from autotune.samplers.expectation import Expectation
from autotune.samplers.sampler import Outcome
from distir.arrays import Flags, Indices
from distir.garbage import collected_seldom
from distir.metrics import iteration_seconds, peak_memory_bytes
from distir.simulation.bounds import Bounds
from distir.simulation.simulator import Simulator
from distir.strategies import Strategies
from distir.strategy import DEGREES, Strategy, words_apart
from search_spaces.columns import SpaceColumns
from search_spaces.named import DEFAULTS

FINE = (
    "cp_exchange",
    "keep_gathered",
    "zero_degree",
    "recompute_every",
    "recompute_layers",
    "placement",
    "axes",
)
"""Choices that the pool begins without: they refine a strategy, and multiply the kinds."""
COARSE = ("zero", "recompute", "sequence_parallel", "offload", "sync_every", "outer_optimizer")
"""Other choices that make another kind of program."""
MOST_LISTS = 32
"""Axis lists that are taken at once: bounds of as many kinds of a transformer take 1 to 5 s."""


@dataclass(frozen=True)
class BoundedPool:
    """A problem's strategies with bounds, part by part."""

    problem: Problem
    of_memory: bool
    """Whether memory is made small, and not time."""

    @property
    def metric(self) -> str:
        """The metric that is bounded."""
        return peak_memory_bytes.name if self.of_memory else iteration_seconds.name

    @cached_property
    def _table(self) -> Strategies:
        columns = SpaceColumns(self.problem.space)
        return columns.taken(0, len(columns))[1]

    @cached_property
    def _simulator(self) -> Simulator:
        simulator = self.problem.simulator
        assert isinstance(simulator, Simulator)
        return simulator

    @cached_property
    def _bounds(self) -> Bounds:
        return Bounds(self._simulator.stages)

    @property
    def is_whole(self) -> bool:
        """Whether the pool begins with the whole space."""
        return bool(self._plain.all())

    @cached_property
    def _plain(self) -> Flags:
        plain = np.ones(len(self._table), np.bool_)
        for name in FINE:
            plain &= self._table.column(name) == DEFAULTS[name]
        return plain if plain.any() else self._with_lists(self._table.values["axes"])

    def _with_lists(self, lists: Iterable[str]) -> Flags:
        """The strategies with the first of these axis lists."""
        return np.isin(self._table.column("axes"), list(islice(lists, MOST_LISTS)))

    def start(self) -> Expectation:
        """The strategies that the pool begins with."""
        return self._bounded(np.flatnonzero(self._plain))

    def around(self, strategy: Strategy) -> Expectation:
        """Strategies of the same layout that differ in no more than one choice of the kind of
        program, and in any other."""
        same = np.ones(len(self._table), np.bool_)
        for name in DEGREES:
            same &= self._table.column(name) == getattr(strategy, name)
        lists = sorted(set(self._table.column("axes")[same]))  # whatever the process hashes to
        same &= self._with_lists(sorted(lists, key=partial(words_apart, strategy.axes)))
        near = np.flatnonzero(same)
        table = self._table.taken(near)
        changed = np.zeros(len(near), np.int64)
        for name in (*FINE, *COARSE):
            changed += table.column(name) != getattr(strategy, name)
        return self._bounded(near[changed <= 1])

    @collected_seldom()
    def _bounded(self, places: Indices) -> Expectation:
        table = self._table.taken(places)
        found, seconds = self._bounds.ordered_and_expected(table)
        room = self._simulator.cost.room_bytes(table.communicators)
        least = np.log(found.size if self.of_memory else found.seconds)
        expected = least if self.of_memory else np.maximum(np.log(seconds), least)
        return Expectation(table, expected, np.log(found.size / room), least)

    def log_fill(self, outcome: Outcome) -> float | None:
        """The logarithm of what a strategy's tensors fill of the room that there is for them."""
        peak = outcome.metrics.get(peak_memory_bytes.name)
        if not peak:
            return None
        room = self._simulator.cost.room_bytes(outcome.strategy.communicators)
        return float(np.log(peak / room))


__all__ = ["BoundedPool"]
