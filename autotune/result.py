"""What a search found, for people, notebooks and scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autotune.exhaustive.certificate import Certificate
from autotune.exhaustive.grid import Grid
from autotune.exhaustive.outside import Outside
from autotune.objectives.costs import regret
from autotune.objectives.objective import Objective
from autotune.packing import packed, unpacked
from autotune.problem import Problem
from autotune.rendering import Shown
from autotune.study.pareto import Pareto, pareto_of
from autotune.study.study import Stopped
from autotune.study.trial import Trial, best_of, best_of_layouts, closest_of, ranked
from autotune.study.verdict import INTERRUPTED, without_best
from distir.metrics import find_metric

if TYPE_CHECKING:
    import optuna

    from autotune.durable.opening import StudyRecord
    from autotune.durable.optuna_storage import StoredStudy


@dataclass(frozen=True, slots=True)
class TrackingRecord:
    """Where a study was recorded."""

    tracking_uri: str
    experiment: str
    run_id: str | None = None
    experiment_id: str | None = None
    links: dict[str, str] = field(default_factory=dict[str, str])
    """Pages worth opening, by what they show."""
    command: str | None = None
    """The command that serves the pages."""
    error: str | None = None
    """What went wrong, if recording failed somewhere."""
    interrupted: bool = False
    """Whether recording was interrupted."""
    note: str | None = None
    """Why the run of a study that was resumed is not the one it had."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        record = {
            "tracking_uri": self.tracking_uri,
            "experiment": self.experiment,
            "run_id": self.run_id,
        }
        said = {"error": self.error, "note": self.note}
        return record | {name: words for name, words in said.items() if words}


@dataclass(frozen=True, repr=False)
class TuneResult(Shown):
    """The trials of a study, the best of them, and the comparison with the grid.

    In a notebook it shows itself as a table; `trials`, `best` and `grid` are there for more. It can
    be pickled for other processes with the same version of Python.
    """

    problem: Problem
    objective: Objective
    sampler: str
    seed: int
    trials: list[Trial]
    seconds: float
    """Wall time of the search, without the grid."""
    grid: Grid | None = None
    """Exhaustive search, where the search was compared with that."""
    proof: Certificate | None = None
    """Certified search, where the search was compared with that."""
    outside: Outside | None = None
    """What is known of plans outside the space: a better one, or that there is none."""
    repeats: int = 0
    """Suggestions of the sampler that were answered from memory."""
    interrupted: bool = False
    """Whether the search, the comparison with the grid, or the look outside the space was
    interrupted."""
    error: str | None = None
    """What ended the search early, if the sampler failed."""
    stopped: Stopped | None = None
    """Why the search ended; None before it has begun."""
    kept: StudyRecord | None = None
    """Where the study is kept, if that is not in memory alone."""
    stored: StoredStudy | None = field(default=None, repr=False)
    tracking: TrackingRecord | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the connection to a storage, which other processes have to make themselves.
        kept = {each.name: getattr(self, each.name) for each in fields(self)}
        return _unpacked_result, (packed({**kept, "stored": None}),)

    def __repr__(self) -> str:
        found = "nothing feasible" if self.best is None else f"best {self.best.label}"
        return f"<TuneResult of {self.problem.title}: {len(self.trials)} trials, {found}>"

    @cached_property
    def study(self) -> optuna.Study:
        """The study as Optuna has it, for `optuna.visualization` and the like."""
        from autotune.durable.optuna_storage import study_in_memory

        if self.stored is not None:
            return self.stored.optuna
        return study_in_memory(self.problem.space, self.trials, self.objective)

    @cached_property
    def found(self) -> Trial | None:
        """The best feasible trial of the search; `None` if there was none."""
        return self._best_of(self.trials)

    @cached_property
    def best(self) -> Trial | None:
        """The best feasible plan that is known, by the search or by what it was compared with."""
        return self._best_of(self.ranked)

    def _best_of(self, trials: Sequence[Trial]) -> Trial | None:
        """The best feasible plan; of several objectives, the first of the front: what is equal in
        the first objective may be worse in another."""
        front = pareto_of(trials, self.objective)
        return best_of(trials) if front is None else front.plans[0]

    @cached_property
    def closest(self) -> Trial | None:
        """The infeasible trial that misses by least, of the grid where there is one."""
        if self.grid:
            return self.grid.closest
        proved = self.proof.closest if self.proof else None
        return closest_of([*self.trials, *([proved] if proved else [])])

    @property
    def said_without_best(self) -> str:
        """The answer where no plan was found: what is known of the space."""
        if self.interrupted:
            return INTERRUPTED
        if self.grid is not None:
            return self.grid.said_without_best
        count = self.problem.space.count()
        if self.proof is not None and self.proof.complete:
            return f"Nothing fits, as is proved of all {count:,} strategies."
        states = {trial.strategy: trial.state for trial in self.trials}
        infeasible = sum(state == "infeasible" for state in states.values())
        return without_best(infeasible, len(states), count)

    @cached_property
    def ranked(self) -> list[Trial]:
        """Feasible plans that are known, each once, best first."""
        known = {trial.strategy: trial for trial in self._compared_with}
        return ranked((known | {trial.strategy: trial for trial in self.trials}).values())

    @property
    def _all_to_compare(self) -> Sequence[Trial]:
        """Feasible plans, each once, that do not become more as trials are made, if there are
        such: those that a grid keeps."""
        if self.grid is None:
            return self.ranked
        return ranked({trial.strategy: trial for trial in self._compared_with}.values())

    @property
    def _compared_with(self) -> Sequence[Trial]:
        """What was kept of exhaustive or certified search."""
        if self.grid:
            return (*self.grid.ranked, *self.grid.layouts)
        return (*self.proof.ranked, *self.proof.layouts) if self.proof else ()

    @cached_property
    def pareto(self) -> Pareto | None:
        """The plans that no other one beats in all objectives, where there are several."""
        return pareto_of(self.ranked, self.objective)

    @property
    def as_good(self) -> int | None:
        """How many other feasible plans are behind the best by less than the errors of such plans
        differ; None where the metric is no time or rate that a simulator predicts. Those of a grid
        are counted where there is one, so that trials change nothing."""
        band, best = self.problem.band, self.best
        metric = self.objective.metric
        simulated = find_metric(metric) if self.objective.cheap else None
        if band is None or best is None or simulated is None or not simulated.timed:
            return None
        first, count = best.metric(metric), 0
        for trial in self._all_to_compare:
            if trial.strategy == best.strategy:
                continue
            value = trial.metric(metric)
            alike = best.strategy.differs_in_order_alone(trial.strategy)
            count += bool(first and value and not band.separates(first, value, alike=alike))
        return count

    @property
    def layouts(self) -> Sequence[Trial]:
        """The best of each layout, best first, of the grid where there is one."""
        return best_of_layouts(self.ranked)

    @property
    def regret(self) -> float | None:
        """The fraction that the search lost against the best plan that is known, 0 when it found
        that; `None` where it was not compared."""
        if self.grid:
            return self.grid.regret(self.found)
        if self.proof is None or self.found is None or self.best is None:
            return None
        if self.found.cost is None or self.best.cost is None:
            return None
        return regret(self.found.cost, self.best.cost)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        batch = self.problem.batch_size
        return {
            "model": self.problem.model,
            "cluster": self.problem.cluster,
            "devices": self.problem.devices,
            "mode": self.problem.mode,
            "batch_size": batch,
            "settings": self.problem.settings,
            "objective": self.objective.name,
            "metric": self.objective.metric,
            "direction": "maximize" if self.objective.maximize else "minimize",
            "sampler": self.sampler,
            "seed": self.seed,
            "space": self.problem.space_name,
            "space_size": self.problem.space.count(),
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "stopped_because": self.stopped.reason if self.stopped else None,
            "stopped_in_words": self.stopped.words if self.stopped else None,
            "study": self.kept.to_dict() if self.kept else None,
            "trials": [trial.to_dict(batch) for trial in self.trials],
            "best": self.problem.outcome(self.best) if self.best else None,
            "as_good": self.as_good,
            "pareto": self._front(),
            "search": {
                "sampler": self.sampler,
                "seed": self.seed,
                "trials": len(self.trials),
                "repeats": self.repeats,
                "seconds": self.seconds,
                "best": self.problem.outcome(self.found) if self.found else None,
            },
            "grid": self._comparison(),
            "outside": self.outside.to_dict(self.problem) if self.outside else None,
            "memory_limit_bytes": self.problem.memory_bytes,
            **({"error": self.error} if self.error else {}),
            "mlflow": self.tracking.to_dict() if self.tracking else None,
        }

    def _front(self) -> dict[str, Any] | None:
        """The Pareto front as plain JSON values."""
        front = self.pareto
        if front is None:
            return None
        return {
            "objectives": [
                {"metric": aim.metric, "direction": "maximize" if aim.maximize else "minimize"}
                for aim in front.aims
            ],
            "hypervolume": front.hypervolume,
            "reference": dict(front.reference),
            "share_of_box": front.share,
            "plans": [self.problem.outcome(trial) for trial in front.plans],
        }

    def _comparison(self) -> dict[str, Any] | None:
        """How the search did against exhaustive or certified search, as plain JSON values."""
        if self.grid:
            return self.grid.summary(self.found, self.problem)
        if self.proof:
            return self.proof.summary(self.best, self.found, self.problem)
        return None

    def to_frame(self) -> Any:
        """The trials as a pandas DataFrame, one row each."""
        import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

        return pd.DataFrame([flat_row(trial, self.problem.batch_size) for trial in self.trials])


def _unpacked_result(content: bytes) -> TuneResult:
    return TuneResult(**unpacked(content))


def flat_row(trial: Trial, batch_size: int) -> dict[str, Any]:
    """A trial as one flat row of a table."""
    plain = trial.to_dict(batch_size)
    return {
        "number": trial.number,
        **plain["strategy"],
        "state": trial.state,
        "reason": trial.evaluation.reason,
        **plain["metrics"],
        "seconds": trial.seconds,
    }
