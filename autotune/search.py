"""How to search, as a value: what for, by which sampler, for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.durable.optuna_storage import PRUNERS
from autotune.enqueued import Stated
from autotune.objectives import Objective
from autotune.problem import Problem
from autotune.samplers import FORMER, SAMPLERS, SamplerFactory
from autotune.several import objective_of_several
from autotune.statement import Goal
from distir.errors import DistirError
from distir.metrics import find_metric, peak_memory_bytes

DEFAULT_TRIALS = 50
MORE_TRIALS = 200
"""For large spaces, where trials take milliseconds."""
LARGE_SPACE = 500


@dataclass(frozen=True, kw_only=True)
class Search(Goal):
    """How to search: what for, by which sampler, for how long."""

    objectives: str | Sequence[str] | None = None
    """Several metrics to make large or small at once, such as `throughput,memory`: of the
    simulator, or what the objective gives, where that is a plug-in. The first ranks plans.
    `METRIC=maximize` or `METRIC=minimize` says the direction where the usual one is not meant.
    """
    sampler: str | SamplerFactory | None = None
    """By default `bounds` where the objective is simulated time or memory, `tpe` for other metrics
    of the simulator, and otherwise `guided`, which starts from what the simulator expects.
    """
    trials: int | None = None
    """Strategies to try; by default 50 (200 of a large space where the objective is simulated), or
    all for the sampler `grid`.
    """
    enqueue: Sequence[Stated] = ()
    """Plans to try first: strategies, or choices by name."""
    warm_start: Sequence[str] = ()
    """Studies on storages, as `STORAGE#NAME`, or the name of one on the same storage: how far the
    simulator was off there is where the sampler `guided` starts from here. They may be about other
    models or clusters."""
    timeout: float | None = None
    """Seconds after which no further trial is begun: the study's, whoever works on it."""
    stop_within: float | None = None
    """Ends the search when nothing left is expected to be better than the best by more than this
    fraction, as the sampler says, or, of samplers that do not, the simulator.
    """
    pruner: str | None = None
    """What ends trials that report on the way and do not promise enough: `median`, `hyperband`,
    or `none`; by default `median` where the objective reports to one end."""
    seed: int = 0
    compare_grid: bool | None = None
    """Whether to compare with exhaustive search; by default where that takes some seconds at most,
    and otherwise with what certified search can prove in twenty.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trials is not None and self.trials < 1:
            raise DistirError(f"trials is {self.trials}; expected at least 1")
        if self.timeout is not None and not self.timeout > 0:
            raise DistirError(f"timeout is {self.timeout} s; expected more than 0")
        if self.stop_within is not None and not 0 <= self.stop_within < 1:
            raise DistirError(
                f"stop_within is {self.stop_within}; expected a fraction such as 0.05"
            )
        pruners = (*PRUNERS, "none")
        if self.pruner not in (None, *pruners):
            raise DistirError(f"the pruner is {self.pruner!r}; expected {', '.join(pruners)}")
        own = self.sampler_name not in (*SAMPLERS.names(), *FORMER)
        if self.warm_start and not (own or self.sampler_name == "guided"):
            raise DistirError(
                "--warm-start works with the sampler guided and with your own; "
                f"{self.sampler_name} "
                "makes no use of earlier measurements"
            )
        if self.objectives:
            for option, asked in {
                "--pruner": self.pruner not in (None, "none"),
                "--stop-within": self.stop_within is not None,
                "--compare-grid": self.compare_grid is True,
            }.items():
                if asked:
                    raise DistirError(
                        f"{option} applies to a single objective, but --objectives names several"
                    )

    def over(self, problem: Problem) -> Objective:
        """The objective, or all of them, over the problem's simulator."""
        if not self.objectives:
            return super().over(problem)
        objective = objective_of_several(problem, self, self.objectives)
        self.check_isolates(objective)
        return objective

    def pruner_of(self, objective: Objective) -> str | None:
        """The pruner of trials of `objective`, if there is one. Raises `DistirError` if one is
        asked for and the objective does not report."""
        named = self.pruner or ("median" if objective.reporting and not self.objectives else "none")
        if named == "none":
            return None
        if objective.reporting is None:
            raise DistirError(
                f"--pruner {named} needs an objective that reports on the way: a function with a "
                "parameter named report"
            )
        return named

    @property
    def simulated(self) -> bool:
        """Whether the objective is a metric of the simulator."""
        return isinstance(self.objective, str) and find_metric(self.objective) is not None

    @property
    def chosen_sampler(self) -> str | SamplerFactory:
        """The sampler, stated or by default."""
        return self.sampler or self._usual_sampler

    @property
    def _usual_sampler(self) -> str:
        known = find_metric(self.objective) if isinstance(self.objective, str) else None
        if self.objectives:
            return "tpe"
        if known is None:
            return "guided"
        bounded = known.timed or known is peak_memory_bytes
        return "bounds" if bounded and self.metric is None and self.direction is None else "tpe"

    @property
    def sampler_name(self) -> str:
        """The sampler as it is shown."""
        named = self.chosen_sampler
        return named.lower() if isinstance(named, str) else getattr(named, "__name__", "custom")

    def budget(self, space_size: int) -> int:
        """Number of strategies to try in a space of `space_size`."""
        return min(self.trials or self._usual_budget(space_size), space_size)

    def _usual_budget(self, space_size: int) -> int:
        if self.sampler_name == "grid":
            return space_size
        return MORE_TRIALS if self.simulated and space_size > LARGE_SPACE else DEFAULT_TRIALS


__all__ = ["DEFAULT_TRIALS", "Search"]
