"""What a space looks like whose strategies stream by: a fair sample of them, what each value of a
choice can reach, what each two values can reach together, and what does not fit but would win.

All but the sample is exact. The sample has the strategies whose numbers, well mixed, come first: so
every strategy has the same chance, and nothing depends on where chunks begin.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from autotune.exhaustive.chunks import Chunk
from autotune.objectives.columns import MetricColumn
from autotune.objectives.simulator import needed_bytes
from autotune.study.trial import Trial
from distir.arrays import Flags, Indices
from distir.metrics import iteration_seconds, peak_memory_bytes
from distir.strategies import FIELDS, Strategies

MOST_POINTS = 6_000
"""Strategies of the largest sample."""

FEASIBLE, INFEASIBLE, FAILED = range(3)
"""States of a point."""


@dataclass(frozen=True, slots=True)
class Points:
    """Strategies of the space with what is drawn of them, in the order of the space."""

    numbers: NDArray[np.int64]
    strategies: Strategies
    costs: MetricColumn
    seconds: MetricColumn
    """Of an iteration; NaN where that is not known."""
    needed: MetricColumn
    """Bytes that a device must have; NaN where that is not known."""
    states: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(slots=True)
class Cell:
    """The strategies with certain values of some choices."""

    count: int = 0
    feasible: int = 0
    best: float = np.inf
    """The least cost of those that are feasible."""

    def add(self, count: int, feasible: int, best: float) -> None:
        """Takes more strategies in."""
        self.count += count
        self.feasible += feasible
        self.best = min(self.best, best)


@dataclass(slots=True)
class ChoiceSpread:
    """Sums over the logarithms of the costs of feasible strategies."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, count: int, total: float, squares: float) -> None:
        """Takes more strategies in."""
        self.count += count
        self.total += total
        self.squares += squares

    @property
    def mean(self) -> float:
        """The mean logarithm."""
        return self.total / self.count if self.count else 0.0


@dataclass(slots=True)
class Landscape:
    """What is kept of a space that streams by in chunks."""

    most_points: int = MOST_POINTS
    seen: int = 0
    cells: dict[tuple[str, Hashable], Cell] = field(
        default_factory=dict[tuple[str, Hashable], Cell]
    )
    """By choice and value."""
    spreads: dict[tuple[str, Hashable], ChoiceSpread] = field(
        default_factory=dict[tuple[str, Hashable], ChoiceSpread]
    )
    """By choice and value."""
    spread: ChoiceSpread = field(default_factory=ChoiceSpread)
    """Of all feasible strategies."""
    pairs: dict[tuple[str, str], dict[tuple[Hashable, Hashable], Cell]] = field(
        default_factory=dict[tuple[str, str], dict[tuple[Hashable, Hashable], Cell]]
    )
    """By two choices and their values."""
    front: tuple[Trial, ...] = field(default=())
    """Feasible strategies than which none is both faster and needs less memory, fastest first."""
    out_of_reach: tuple[Trial, ...] = field(default=())
    """Infeasible strategies, the least violation first: each costs less than all before it."""
    _sampled: list[tuple[NDArray[np.uint64], Points]] = field(
        default_factory=list[tuple[NDArray[np.uint64], Points]]
    )

    def __repr__(self) -> str:
        return f"<Landscape of {self.seen} strategies>"

    def add(self, chunk: Chunk) -> None:
        """Takes the next chunk."""
        if not len(chunk):
            return
        strategies = Strategies.of(chunk.strategies)
        usable = chunk.evaluations.feasible & ~np.isnan(chunk.costs)
        self.seen += len(chunk)
        self._add_sample(chunk, strategies)
        self._add_effects(strategies, chunk.costs, usable)
        self._add_pairs(strategies, chunk.costs, usable)
        self._add_front(chunk)
        self._add_out_of_reach(chunk)

    @property
    def points(self) -> Points:
        """The sample, in the order of the space."""
        if len(self._sampled) > 1:
            self._shorten()
        return self._sampled[0][1] if self._sampled else _points(())

    @property
    def choices(self) -> list[str]:
        """The choices that vary."""
        counts: dict[str, int] = {}
        for name, _ in self.cells:
            counts[name] = counts.get(name, 0) + 1
        return [name for name in FIELDS if counts.get(name, 0) > 1]

    def values(self, choice: str) -> list[Hashable]:
        """The values of a choice, ascending where they can be compared."""
        return ordered([value for name, value in self.cells if name == choice])

    def explained(self, choice: str) -> float:
        """The share of the variance of the logarithm of costs that this choice explains by itself:
        the variance of the means over its values (a first-order index; Sobol 1993)."""
        if not self.spread.count:
            return 0.0
        mean = self.spread.mean
        variance = self.spread.squares / self.spread.count - mean**2
        between = sum(
            spread.count * (spread.mean - mean) ** 2
            for (name, _), spread in self.spreads.items()
            if name == choice
        )
        return between / self.spread.count / variance if variance > 1e-18 else 0.0

    # --- taking chunks in ------------------------------------------------------------------------

    def _add_sample(self, chunk: Chunk, strategies: Strategies) -> None:
        order = mixed(chunk.numbers)
        chosen = np.arange(len(chunk))
        if len(chunk) > self.most_points:
            chosen = np.sort(np.argpartition(order, self.most_points)[: self.most_points])
        evaluations = chunk.evaluations
        nothing = np.full(len(chunk), np.nan)
        states = np.where(evaluations.feasible, FEASIBLE, INFEASIBLE)
        states[evaluations.failed] = FAILED
        metrics = evaluations.metrics
        needed = needed_bytes(metrics) if peak_memory_bytes.name in metrics else nothing
        points = Points(
            chunk.numbers[chosen],
            strategies.taken(chosen),
            chunk.costs[chosen],
            metrics.get(iteration_seconds.name, nothing)[chosen],
            np.asarray(needed)[chosen],
            states[chosen].astype(np.int8),
        )
        self._sampled.append((order[chosen], points))
        if sum(len(points) for _, points in self._sampled) > 2 * self.most_points:
            self._shorten()

    def _shorten(self) -> None:
        order = np.concatenate([order for order, _ in self._sampled])
        points = _points([points for _, points in self._sampled])
        kept = np.arange(len(order))
        if len(order) > self.most_points:
            kept = np.argpartition(order, self.most_points)[: self.most_points]
        kept = kept[np.argsort(points.numbers[kept])]
        taken = Points(
            points.numbers[kept],
            points.strategies.taken(kept),
            points.costs[kept],
            points.seconds[kept],
            points.needed[kept],
            points.states[kept],
        )
        self._sampled = [(order[kept], taken)]

    def _add_effects(self, strategies: Strategies, costs: MetricColumn, usable: Flags) -> None:
        logarithms = np.log(np.abs(np.where(usable & (costs != 0), costs, 1.0)))
        self.spread.add(int(usable.sum()), float(logarithms.sum()), float((logarithms**2).sum()))
        bounded = np.where(usable, costs, np.inf)
        for name in FIELDS:
            values, codes = strategies.values[name], _codes(strategies, name)
            size = len(values)
            counts = np.bincount(codes, minlength=size)
            feasible = np.bincount(codes, usable, minlength=size)
            totals = np.bincount(codes, logarithms, minlength=size)
            squares = np.bincount(codes, logarithms**2, minlength=size)
            best = _least(codes, bounded, size)
            for code in np.flatnonzero(counts).tolist():
                key = name, values[code]
                self.cells.setdefault(key, Cell()).add(
                    int(counts[code]), int(feasible[code]), float(best[code])
                )
                self.spreads.setdefault(key, ChoiceSpread()).add(
                    int(feasible[code]), float(totals[code]), float(squares[code])
                )

    def _add_pairs(self, strategies: Strategies, costs: MetricColumn, usable: Flags) -> None:
        bounded = np.where(usable, costs, np.inf)

        def found(codes: Indices, size: int) -> tuple[Indices, Indices, MetricColumn]:
            """Of each code how many strategies have it and are usable, and the least cost."""
            counts = np.bincount(codes, minlength=size)
            feasible = np.bincount(codes[usable], minlength=size)
            return counts, feasible, _least(codes, bounded, size)

        # Most fields are the same in all strategies, or differ alone.
        alone = {
            name: found(_codes(strategies, name), len(strategies.values[name]))
            for name in FIELDS
            if name in strategies.codes
        }
        every = found(np.zeros(len(costs), np.int64), 1)
        for first, second in combinations(FIELDS, 2):
            values, others = strategies.values[first], strategies.values[second]
            varied = [name for name in (first, second) if name in strategies.codes]
            if len(varied) == 2:
                codes = _codes(strategies, first) * len(others) + _codes(strategies, second)
                counts, feasible, best = found(codes, len(values) * len(others))
            else:
                counts, feasible, best = alone[varied[0]] if varied else every
            step = len(others) if varied == [first] else 1
            cells = self.pairs.setdefault((first, second), {})
            for code in np.flatnonzero(counts).tolist():
                place, other = divmod(code * step, len(others)) if varied else (0, 0)
                key = values[place], others[other]
                cells.setdefault(key, Cell()).add(
                    int(counts[code]), int(feasible[code]), float(best[code])
                )

    def _add_front(self, chunk: Chunk) -> None:
        metrics = chunk.evaluations.metrics
        if iteration_seconds.name not in metrics or peak_memory_bytes.name not in metrics:
            return
        seconds, needed = metrics[iteration_seconds.name], np.asarray(needed_bytes(metrics))
        known = chunk.evaluations.feasible & np.isfinite(seconds) & np.isfinite(needed)
        chosen = np.flatnonzero(known)
        chosen = chosen[np.lexsort((needed[chosen], seconds[chosen]))]
        chosen = chosen[_falls(needed[chosen])]
        found = [chunk.trial(int(index)) for index in chosen]
        least, kept = np.inf, list[Trial]()
        for trial in sorted([*self.front, *found], key=_time_and_need):
            if _time_and_need(trial)[1] < least:
                least = _time_and_need(trial)[1]
                kept.append(trial)
        self.front = tuple(kept)

    def _add_out_of_reach(self, chunk: Chunk) -> None:
        evaluations = chunk.evaluations
        missed = ~evaluations.feasible & ~evaluations.failed & ~np.isnan(chunk.costs)
        chosen = np.flatnonzero(missed)
        order = np.lexsort((chunk.costs[chosen], evaluations.violation[chosen]))
        chosen = chosen[order]
        chosen = chosen[_falls(chunk.costs[chosen])]
        found = [chunk.trial(int(index)) for index in chosen]
        least, kept = np.inf, list[Trial]()
        for trial in sorted([*self.out_of_reach, *found], key=_missed_by):
            if trial.cost is not None and trial.cost < least:
                least = trial.cost
                kept.append(trial)
        self.out_of_reach = tuple(kept)


def ordered(values: Sequence[Hashable]) -> list[Hashable]:
    """Values in ascending order; those of several types, or none that can be compared, by text."""
    try:
        return sorted(values)  # pyright: ignore[reportArgumentType,reportUnknownVariableType]
    except TypeError:
        return sorted(values, key=str)


def mixed(numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Numbers as if drawn at random, the same for the same number (splitmix64; Steele et al.
    2014)."""
    state = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _falls(values: MetricColumn) -> Flags:
    """Whether each value is below all values before it."""
    before = np.minimum.accumulate(np.concatenate([[np.inf], values]))
    return values < before[:-1]


def _time_and_need(trial: Trial) -> tuple[float, float, int]:
    metrics = trial.evaluation.metrics
    return metrics[iteration_seconds.name], float(needed_bytes(metrics)), trial.number


def _missed_by(trial: Trial) -> tuple[float, float, int]:
    return trial.evaluation.violation, trial.cost or 0.0, trial.number


def _codes(strategies: Strategies, name: str) -> Indices:
    codes = strategies.codes.get(name)
    return np.zeros(len(strategies), np.int64) if codes is None else codes.astype(np.int64)


def _least(codes: Indices, costs: MetricColumn, size: int) -> MetricColumn:
    """The least cost of each code."""
    least = np.full(size, np.inf)
    np.minimum.at(least, codes, costs)
    return least


def _points(parts: Sequence[Points]) -> Points:
    """The points of all parts."""

    def joined(name: str) -> NDArray[np.generic]:
        columns = [getattr(part, name) for part in parts]
        return np.concatenate(columns) if columns else np.empty(0)

    return Points(
        joined("numbers").astype(np.int64),
        reduce(Strategies.joined, [part.strategies for part in parts], Strategies.of(())),
        joined("costs").astype(np.float64),
        joined("seconds").astype(np.float64),
        joined("needed").astype(np.float64),
        joined("states").astype(np.int8),
    )


__all__ = ["FAILED", "FEASIBLE", "INFEASIBLE", "MOST_POINTS", "Cell", "Landscape", "Points"]
