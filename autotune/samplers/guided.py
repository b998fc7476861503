"""Few trials for slow objectives: the order that the simulator expects, corrected by what trials
show.

The first trials are those that are expected to be best, of different layouts. Then two choices
take turns: the one that promises most once a Gaussian process has learned how far expectations
were off, and the next in the expected order. Where expectations are right the order finds the best;
where they are wrong the process does; each loses no more than half of the turns to the other. Out
of memory says something about memory, and nothing about time. What fails for other reasons says
that strategies near it may fail, too.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autotune.samplers.encoding import Scale, relative
from autotune.samplers.expectation import Expectation, Prospects, unexpected
from autotune.samplers.experience import Experience, Observation
from autotune.samplers.failures import chance_not_to_fail
from autotune.samplers.features import Features, samples_of
from autotune.samplers.margin import Margin
from autotune.samplers.random import RandomSampler
from autotune.samplers.residual import Estimate, Residual, improvement
from autotune.samplers.sampler import Outcome, Remaining, Sampler
from autotune.samplers.slope import runs_against, slope_of
from distir.arrays import Flags, Floats, Indices
from distir.strategies import FIELDS, Strategies
from distir.strategy import IN_ORDER_ALONE, Strategy
from distir.units import percent
from search_spaces import SearchSpace

LAYOUTS_FIRST = 2
"""Trials of different layouts before the process is asked."""
LIKELY = 0.5
"""Chance to run from which on a strategy is tried in the expected order."""
NOISE = 0.035
"""Relative spread of repeated measurements, where nothing else is known."""
BETWEEN_LAYOUTS = 0.09
"""Relative error of plans with different layouts, beside what they share, where nothing else is
known."""
FEWEST_TO_EXPECT = 5
"""Trials before anything is said of what is left."""
BANDS = 2
"""Deviations by which the best of many may be better than expected."""
DRAWN = 4096
"""Strategies that are chosen from where nothing is expected of any."""
CARRIED_NOISE = 0.1
"""Standard deviation of what the same choice changes for another model or on another cluster."""

OUT_OF_MEMORY = re.compile(r"out.?of.?memory|\boom\b|cannot allocate|memoryerror", re.IGNORECASE)
"""How failures of training software say that the memory was not enough."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the best of the strategies that are left is expected to cost."""

    ratio: float
    """Over the best found: 1.2 is a fifth more."""
    deviation: float
    """Standard deviation of the logarithm of the ratio."""


class _Foretold(NamedTuple):
    """What was expected when these places had been tried."""

    scale: Scale
    places: frozenset[int]
    estimate: Estimate


class GuidedSampler:
    """Proposes each strategy of an expectation once, then those of `rest` that are left."""

    def __init__(
        self,
        expected: Expectation,
        batch_size: int,
        *,
        noise: float = NOISE,
        between_layouts: float = BETWEEN_LAYOUTS,
        experience: Experience = (),
        rest: Sampler | None = None,
    ) -> None:
        """`experience`: what other studies have learned of their expectations; `between_layouts`:
        how far these may be off for a plan that no trial is like."""
        table = expected.table
        self._carried = experience
        self._samples = samples_of(table, batch_size)
        features = Features(table.values)
        self._rows = features.rows(table, self._samples)
        self._simulated = expected.log_cost
        self._expected = _moved(expected, self._rows, features, experience)
        self._noise, self._between_layouts = noise, between_layouts
        self._rest = rest
        self._elsewhere: set[Strategy] = set()
        self._places = {strategy: place for place, strategy in enumerate(table)}
        self._layouts = expected.layouts()
        self._plans = table.distinct([name for name in FIELDS if name not in IN_ORDER_ALONE])[1]
        self._open: Flags = np.ones(len(expected), np.bool_)
        self._residual: Residual | None = None
        self._costs: dict[int, float] = {}
        self._ran: dict[int, bool] = {}
        self._failed: list[int] = []
        self._before: _Foretold | None = None
        self._errors: list[float] = []
        """Of estimates that were made before a trial, what was found less what was expected."""

    def ask(self) -> Strategy | None:
        """The next strategy to try; None when all have been."""
        if not self._open.any():
            return self._next_of_rest()
        turn = len(self._costs) - LAYOUTS_FIRST
        if turn < 0:
            place = self._best_expected(self._open & self._in_new_layouts)
        elif turn % 2 == 0:
            place = self._most_promising()
        else:
            place = self._best_expected(self._open)
        self._open[place] = False
        return self._expected.table[place]

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """Learns what a strategy cost, that it did not fit, or that it failed."""
        place = self._places.get(strategy)
        if place is None:
            self._elsewhere.add(strategy)
            return
        self._open[place] = False
        if violation > 0:
            self._ran[place] = False
        elif cost is not None:
            self._ran[place] = True
            self._costs[place] = cost
        else:
            self._failed.append(place)

    def tell_outcome(self, outcome: Outcome) -> None:
        """Learns from a trial; one that failed for want of memory says that it did not fit."""
        starved = outcome.cost is None and OUT_OF_MEMORY.search(outcome.reason or "")
        self.tell(outcome.strategy, outcome.cost, 1.0 if starved else outcome.violation)

    def _next_of_rest(self) -> Strategy | None:
        while self._rest is not None and (strategy := self._rest.ask()) is not None:
            if strategy not in self._places and strategy not in self._elsewhere:
                return strategy
        return None

    @property
    def experience(self) -> Experience:
        """What this study, and those it was told of, have learned of what was simulated."""
        found = self._found - self._simulated[self._tried]
        ratios = dict(zip(self._costs, found.tolist(), strict=True))
        return (
            *self._carried,
            *(
                Observation(
                    self._expected.table[place],
                    int(self._samples[place]),
                    ratios.get(place),
                    float(self._expected.log_fill[place]),
                    ran,
                )
                for place, ran in self._ran.items()
            ),
        )

    @property
    def forecast(self) -> Forecast | None:
        """The best expected of the strategies that are left and likely to fit; None where there is
        none, or nothing was found to compare with."""
        likely = self._open & (self._chance_to_run >= LIKELY)
        if not likely.any() or not self._costs:
            return None
        estimate = self._estimate()
        place = int(np.argmin(np.where(likely, estimate.mean, np.inf)))
        ratio = math.exp(float(estimate.mean[place] - self._found.min()))
        return Forecast(ratio, float(estimate.deviation[place]))

    def best_remaining(self) -> Remaining | None:
        """The least that a strategy which is left, and likely to fit, may cost by the process. What
        it has learned of like strategies says little of others: for these the errors count by
        which such plans are known to differ. Where costs run against what the simulator expects,
        nothing is known of what it expects to be worst."""
        likely = self._open & (self._chance_to_run >= LIKELY)
        best = min(self._costs.values(), default=0.0)
        if not likely.any() or best == 0 or len(self._costs) < FEWEST_TO_EXPECT:
            return None
        if runs_against(self._simulated[self._tried], self._found):
            return None
        estimate = self._foretold()
        unlike = ~np.isin(self._plans, self._plans[self._tried]) * self._between_layouts
        known = np.maximum(np.hypot(unlike, self._noise), self._missed)
        band = np.maximum(estimate.deviation, known)
        least = np.where(likely, estimate.mean - BANDS * band, np.inf)
        place = int(np.argmin(least))
        label, size = self._expected.table[place].label, percent(relative(float(band[place])))
        why = f"the uncertainty of the correction at {label}"
        if self._missed >= band[place] > 0:
            why = f"the error of the correction for the last {len(self._errors)} trials"
        elif known[place] > estimate.deviation[place]:
            which = "no trial resembles" if unlike[place] else "resemble those that were tried"
            why = f"the usual error of plans that {which}, such as {label}"
        return Remaining(
            self._scale.cost(float(least[place])),
            f"the simulator's costs of the {int(likely.sum()):,} remaining strategies that are "
            f"likely to fit, corrected by {len(self._costs)} trials, less {BANDS} bands of {size}, "
            f"which is {why}",
        )

    def _foretold(self) -> Estimate:
        """Estimates; notes how far the ones before were off for what was tried since."""
        scale, before = self._scale, self._before
        if before is not None and before.scale.sign == scale.sign:
            new = [place for place in self._costs if place not in before.places]
            found = scale.steadied([self._costs[place] for place in new])
            self._errors += (found - before.estimate.mean[new]).tolist()
            del self._errors[:-FEWEST_TO_EXPECT]
        estimate = self._estimate()
        self._before = _Foretold(scale, frozenset(self._costs), estimate)
        return estimate

    @property
    def _missed(self) -> float:
        """How far off the last estimates were, root mean square."""
        return float(np.sqrt(np.mean(np.square(self._errors)))) if self._errors else 0.0

    @property
    def _tried(self) -> Indices:
        """The places of strategies whose cost is known."""
        return np.array(list(self._costs), np.int64)

    @property
    def _found(self) -> Floats:
        """Their costs on the scale of estimates."""
        return self._scale.steadied(list(self._costs.values()))

    @property
    def _scale(self) -> Scale:
        """The scale of estimates."""
        return Scale.of(list(self._costs.values()))

    @property
    def _log_ratios(self) -> Floats:
        return self._found - self._expected.log_cost[self._tried]

    @property
    def _chance_to_run(self) -> Floats:
        """The chance of every strategy to fit, and not to fail for another reason."""
        ends = chance_not_to_fail(self._rows, list(self._costs), self._failed)
        return self._chance_to_fit * ends

    @property
    def _chance_to_fit(self) -> Floats:
        known = [(each.log_fill, each.ran) for each in self._carried if each.ran is not None]
        known += [(float(self._expected.log_fill[place]), ran) for place, ran in self._ran.items()]
        margin = Margin.learned([fill for fill, _ in known], [ran for _, ran in known])
        return margin.chance_to_fit(self._expected.log_fill)

    @property
    def _in_new_layouts(self) -> Flags:
        """Strategies whose layout was not tried, if any of them is likely to run; otherwise all."""
        tried = self._layouts[[*self._ran, *self._failed]]
        new = ~np.isin(self._layouts, tried)
        usable = new & self._open & (self._chance_to_run >= LIKELY)
        return new if usable.any() else np.ones_like(new)

    def _best_expected(self, among: Flags) -> int:
        """The next in the expected order of those that are likely to run; where none is, the one
        that is likeliest to."""
        chance = self._chance_to_run
        likely = among & (chance >= LIKELY)
        if not likely.any():
            return int(np.argmax(np.where(among, chance, -1.0)))
        return int(np.argmin(np.where(likely, self._expected.log_cost, np.inf)))

    def _most_promising(self) -> int:
        """The one that promises to gain most; the next in the expected order where none does."""
        gain = improvement(self._estimate(), self._found.min()) * self._chance_to_run
        gain = np.where(self._open, gain, 0.0)
        return int(np.argmax(gain)) if gain.any() else self._best_expected(self._open)

    def _estimate(self) -> Estimate:
        """The logarithm of every strategy's cost."""
        expected, tried = self._expected.log_cost, self._tried
        ratios = self._log_ratios
        tilt = slope_of(expected[tried], ratios, self._noise) * expected
        self._residual = Residual.fitted(
            self._rows[tried], ratios - tilt[tried], self._noise, before=self._residual
        )
        error = self._residual.at(self._rows)
        return Estimate(expected + tilt + error.mean, error.deviation)


def _moved(
    expected: Expectation, rows: Floats, features: Features, experience: Experience
) -> Expectation:
    """The expectation as other studies would correct it."""
    known = [(each, each.log_ratio) for each in experience if each.log_ratio is not None]
    if not known:
        return expected
    table = Strategies.of(each.strategy for each, _ in known)
    samples = np.array([each.samples for each, _ in known], np.int64)
    ratios = np.array([ratio for _, ratio in known])
    residual = Residual.fitted(features.rows(table, samples), ratios, CARRIED_NOISE)
    return Expectation(
        expected.table, expected.log_cost + residual.at(rows).mean, expected.log_fill
    )


def guided(space: SearchSpace, seed: int, prospects: Prospects | None = None) -> GuidedSampler:
    """Starts from what a simulator expects; from nothing where there is none."""
    rest = RandomSampler(space, seed)
    if prospects is None:
        return GuidedSampler(unexpected(space.samples(random.Random(seed), DRAWN)), 1, rest=rest)
    return GuidedSampler(
        prospects.simulated(),
        prospects.batch_size,
        noise=prospects.noise,
        between_layouts=prospects.between_layouts,
        experience=prospects.experience,
        rest=rest,
    )


__all__ = ["Forecast", "GuidedSampler", "guided"]
