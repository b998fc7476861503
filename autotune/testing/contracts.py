"""The contracts. Subclass one, name the class `Test…`, give it the thing to test, and let
pytest collect it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.objectives.evaluation import as_evaluation
from autotune.objectives.objective import Measured
from autotune.samplers.sampler import Sampler
from autotune.testing.toys import toy_cost, toy_space
from distir.strategy import Strategy
from search_spaces import SearchSpace


class SamplerContract:
    """What every sampler does, whatever it learns."""

    budget = 30
    """Proposals that each test asks for."""

    def make_sampler(self, space: SearchSpace, seed: int) -> Sampler:
        """The sampler to test."""
        raise NotImplementedError("return your sampler over `space`, seeded with `seed`")

    def _propose(self, space: SearchSpace, seed: int) -> list[Strategy]:
        sampler = self.make_sampler(space, seed)
        proposals: list[Strategy] = []
        for _ in range(self.budget):
            strategy = sampler.ask()
            if strategy is None:
                break
            sampler.tell(strategy, toy_cost(strategy))
            proposals.append(strategy)
        return proposals

    def test_proposes_valid_strategies_only(self) -> None:
        """Every proposal is a strategy of the space."""
        space = toy_space()
        for strategy in self._propose(space, seed=1):
            assert space.explain(strategy) is None

    def test_proposes_something(self) -> None:
        """The first proposal of a space that is not empty is a strategy."""
        assert self.make_sampler(toy_space(), 0).ask() is not None

    def test_same_seed_same_proposals(self) -> None:
        """A search can be repeated."""
        assert self._propose(toy_space(), seed=3) == self._propose(toy_space(), seed=3)

    def test_survives_failed_trials(self) -> None:
        """Trials without a cost are no reason to stop."""
        space = toy_space()
        sampler = self.make_sampler(space, 0)
        for _ in range(min(self.budget, space.count())):
            strategy = sampler.ask()
            if strategy is None:
                return
            sampler.tell(strategy, None)

    def test_survives_infeasible_trials(self) -> None:
        """A space without a feasible strategy is searched like any other."""
        space = toy_space()
        sampler = self.make_sampler(space, 0)
        for _ in range(min(self.budget, space.count())):
            strategy = sampler.ask()
            if strategy is None:
                return
            sampler.tell(strategy, toy_cost(strategy), 0.5)

    def test_accepts_strategies_it_did_not_propose(self) -> None:
        """A study may tell what was known before."""
        space = toy_space()
        sampler = self.make_sampler(space, 0)
        for index in range(0, space.count(), 5):
            strategy = space.at(index)
            sampler.tell(strategy, toy_cost(strategy))
        proposal = sampler.ask()
        assert proposal is None or proposal in space

    def test_a_space_of_one_strategy(self) -> None:
        """One device leaves little to choose."""
        space = toy_space(devices=1).restricted(microbatches=(1,))
        proposal = self.make_sampler(space, 0).ask()
        assert proposal == Strategy()


class ObjectiveContract:
    """What every objective does, whatever it measures."""

    objective: Callable[[Strategy], Measured]
    """The objective to test: `objective = staticmethod(my_objective)`."""

    strategies: tuple[Strategy, ...] = (
        Strategy(),
        Strategy(dp=2, microbatches=2),
        Strategy(tp=2),
        Strategy(pp=2, microbatches=4),
    )
    """Strategies to measure; choose others if yours does not take these."""

    def test_returns_numbers_or_an_evaluation(self) -> None:
        """A number, a dict of numbers, or an `Evaluation`."""
        for strategy in self.strategies:
            evaluation = as_evaluation(type(self).objective(strategy))
            assert not evaluation.failed, evaluation.reason

    def test_feasible_strategies_have_finite_metrics(self) -> None:
        """Anything else would fail its trial."""
        for strategy in self.strategies:
            evaluation = as_evaluation(type(self).objective(strategy))
            if evaluation.feasible:
                assert evaluation.metrics
                assert all(math.isfinite(value) for value in evaluation.metrics.values())

    def test_infeasible_strategies_have_a_reason(self) -> None:
        """Infeasible is an answer, and an answer has a reason."""
        for strategy in self.strategies:
            evaluation = as_evaluation(type(self).objective(strategy))
            assert evaluation.feasible or evaluation.reason

    def test_names_the_same_metrics_for_all(self) -> None:
        """So that trials can be compared."""
        feasible = [
            evaluation
            for strategy in self.strategies
            if (evaluation := as_evaluation(type(self).objective(strategy))).feasible
        ]
        assert len({tuple(sorted(evaluation.metrics)) for evaluation in feasible}) <= 1
