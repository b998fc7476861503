"""What is written of a study: runs, metrics, files and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from autotune.exhaustive.grid import Grid
from autotune.objectives.costs import regret
from autotune.objectives.evaluation import finite
from autotune.objectives.objective import Objective
from autotune.result import TuneResult, flat_row
from autotune.study.trial import Trial, choices, ranked
from autotune.trackers.followed import Place
from autotune.trackers.mlflow.entries import (
    FEW_TRIALS,
    improves,
    metric_at,
    metric_at_begin,
    noteworthy,
    problem_input,
    shown_metrics,
)
from autotune.trackers.mlflow.store import Store, connected
from autotune.trackers.patience import Patience
from autotune.trackers.study_pages import (
    REGRET,
    SEARCH,
    described_study,
    final_numbers,
    problem_key,
    rounded,
)
from autotune.trackers.tracker import StudyHeader, StudyMemory
from distir.units import counted

Files: TypeAlias = Sequence[tuple[str, str | bytes]]
"""Files by name."""

TABLE = "trials.json"
TABLE_ROWS = 20_000
STEPS = 1000
"""Most points of a step metric of the grid."""
_METRICS_PER_CALL = 900  # MLflow takes 1,000


@dataclass(slots=True)
class StudyRun:
    """An open parent run and how much of the study is written."""

    run_id: str
    objective: Objective
    searcher: str
    batch_size: int
    memory: StudyMemory | None = None
    best: Trial | None = None
    written: int = 0
    steps: set[int] | None = None
    """Steps of the best so far that the store has from before; None before one has looked."""
    recorded: dict[int, str] = field(default_factory=dict[int, str])
    """The runs of trials, by number."""
    best_cost: float | None = None
    """The cost of the best plan that is known, once the search is over."""
    goes_on: bool = False
    """Whether another process has begun it."""


class StudyWriter:
    """Runs, metrics and tables of studies."""

    def __init__(self, store: Store):
        self._store = store
        self.experiment_id = store.experiment_id

    def open(self, header: StudyHeader, name: str, searcher: str) -> StudyRun:
        """Creates the parent run of a study."""
        problem = header.problem
        tags = {
            "kind": "study",
            "searcher": searcher,
            "problem": problem_key(header),
            "mlflow.runName": name,
            **_owner(header.memory),
        }
        run_id = self._store.create_run(tags)
        params = {
            "searcher": searcher,
            "objective": header.objective.name,
            "model": problem.model,
            "cluster": problem.cluster,
            "devices": problem.devices,
            "mode": problem.mode,
            "batch_size": problem.batch_size,
            "space": problem.space_name,
            "space_size": problem.space.count(),
            "seed": header.seed,
            **problem.settings,
        }
        self._batch(run_id, [], params)
        self._store.log_inputs(run_id, [problem_input(header)])
        return StudyRun(run_id, header.objective, searcher, problem.batch_size, header.memory)

    def has(self, run_id: str) -> bool:
        """Whether there is a run."""
        return self._store.has(run_id)

    def reopen(self, header: StudyHeader, run_id: str, name: str) -> StudyRun:
        """Goes on with the parent run of a study, of which some trials may have runs already."""
        owner = _owner(header.memory)
        tags = {"searcher": header.sampler, "mlflow.runName": name, **owner}
        self._store.go_on(run_id, tags)
        children = self._store.runs(f"tags.`mlflow.parentRunId` = '{run_id}'")
        for each in children:
            if each.info.status == "RUNNING":
                self._store.kill(each.info.run_id)
        ended = [each for each in children if each.info.status in ("FINISHED", "FAILED")]
        return StudyRun(
            run_id,
            header.objective,
            header.sampler,
            header.problem.batch_size,
            header.memory,
            recorded={int(each.data.params["number"]): each.info.run_id for each in ended},
            goes_on=True,
        )

    def bury(self, memory: StudyMemory, besides: str | None = None) -> None:
        """Closes the runs of a study whose processes died while they wrote them."""
        for each in self._store.runs(
            f"tags.study = '{memory.key}' and attributes.status = 'RUNNING'"
        ):
            worker = json.loads(each.data.tags["worker"])
            if each.info.run_id != besides and not memory.lives(worker):
                self._store.kill(each.info.run_id)

    def _grid_runs(self, header: StudyHeader) -> list[str]:
        """The runs of this problem's grid that are written already: one, unless several searches
        have just written theirs at once."""
        key = problem_key(header)
        return self._store.finished(f"tags.searcher = 'grid' and tags.problem = '{key}'")

    def study(self, run: StudyRun, result: TuneResult, files: Callable[[], Files]) -> None:
        """Completes the run of a study: what was found, regret, the best trial, files, table, runs
        of trials. `files` waits until they are made."""
        self._store.describe(run.run_id, described_study(result))
        self._store.tag_run(
            run.run_id, "mlflow.runName", run_name(run.searcher, run.objective, len(result.trials))
        )
        run.best_cost = None if result.best is None else result.best.cost
        finals = [metric_at_begin(name, value) for name, value in final_numbers(result).items()]
        self._batch(run.run_id, finals, {})
        self.steps(run, result.trials)
        grid_best = result.grid.best if result.grid else None
        if grid_best is not None and grid_best.cost is not None:
            self._batch(run.run_id, self._regrets(result.trials, grid_best.cost), {})
        for file, content in files():
            self._store.log_file(run.run_id, content, file)
        few = len(result.trials) <= FEW_TRIALS
        children = result.trials if few else noteworthy(result.trials)
        self._close(run, result.trials, children, interrupted=result.interrupted)

    def grid(self, header: StudyHeader, grid: Grid, trials: int) -> None:
        """Writes the grid as a study: its best, as a line as long as the longest search, which so
        many trials may be, and what is noteworthy of it. A grid that is there gets its line longer.
        """
        there = self._grid_runs(header)
        if there:
            made = StudyRun(there[0], header.objective, "grid", header.problem.batch_size)
            self._line(made, grid, (trials - 1,))
            return
        self._new_grid(header, grid, trials)
        # Other searches may have written theirs meanwhile. Whoever is last sees all; one is kept,
        # with the longest line.
        same = self._grid_runs(header)
        if len(same) > 1:
            steps = max(self._length(each, header) for each in same)
            made = StudyRun(same[0], header.objective, "grid", header.problem.batch_size)
            self._line(made, grid, (steps,))
            for each in same[1:]:
                self._store.delete(each)

    def _length(self, run_id: str, header: StudyHeader) -> int:
        """The last step of the line of a grid."""
        steps = self._store.steps_of(run_id, f"{SEARCH}best_{header.objective.metric}")
        return max(steps, default=0)

    def _new_grid(self, header: StudyHeader, grid: Grid, trials: int) -> None:
        run = self.open(header, f"grid, all {grid.space_size}", "grid")
        self._line(run, grid, (0, max(1, trials - 1)))
        run.best_cost = None if grid.best is None else grid.best.cost
        kept = {trial.number: trial for trial in (*grid.ranked, *grid.layouts, *grid.front)}
        if grid.closest is not None:
            kept[grid.closest.number] = grid.closest
        known = [kept[number] for number in sorted(kept)]
        self._close(run, known, noteworthy(known), interrupted=not grid.complete)

    def _line(self, run: StudyRun, grid: Grid, steps: Iterable[int]) -> None:
        """The best of a grid, and no regret, at these trials."""
        if grid.best is None or grid.best.cost is None:
            return
        points = [replace(grid.best, number=step) for step in steps]
        self._batch(run.run_id, self._best_so_far(run, points), {})
        self._batch(run.run_id, self._regrets(points, grid.best.cost), {})

    def steps(self, run: StudyRun, trials: Sequence[Trial]) -> None:
        """Writes the step metrics of the trials that were not written yet."""
        new = trials[run.written :]
        run.written = len(trials)
        points = self._best_so_far(run, new)
        if points and run.steps is None:
            known = self._store.steps_of(run.run_id, points[0].key) if run.goes_on else set[int]()
            run.steps = known
        self._batch(run.run_id, [each for each in points if each.step not in (run.steps or ())], {})

    def trials(self, run: StudyRun, trials: Iterable[Trial]) -> None:
        """Writes runs of the trials that have none yet."""
        for trial in trials:
            if trial.number not in run.recorded:
                run.recorded[trial.number] = self._trial(run, trial)
            elif points := _regret_points(run, trial):
                self._batch(run.recorded[trial.number], points, {})

    def _best_so_far(self, run: StudyRun, trials: Sequence[Trial]) -> list[Any]:
        points: list[Any] = []
        stride = -(-len(trials) // STEPS)
        for trial in trials:
            better = improves(trial, None if run.best is None else run.best.cost)
            if better:
                run.best = trial
            value = None if run.best is None else run.best.metric(run.objective.metric)
            if value is not None and (better or trial.number % stride == 0):
                points.append(metric_at(f"{SEARCH}best_{run.objective.metric}", value, trial))
        return points

    def _regrets(self, trials: Sequence[Trial], best_cost: float) -> list[Any]:
        points: list[Any] = []
        best: float | None = None
        stride = -(-len(trials) // STEPS)
        for trial in trials:
            better = improves(trial, best)
            best = trial.cost if better else best
            if best is not None and (better or trial.number % stride == 0):
                points.append(
                    metric_at(f"{SEARCH}regret_pct", 100 * regret(best, best_cost), trial)
                )
        return points

    def _close(
        self,
        run: StudyRun,
        trials: Sequence[Trial],
        children: Iterable[Trial],
        *,
        interrupted: bool,
    ) -> None:
        best = next(iter(ranked(trials)), None)
        if best is not None:
            # The metric that counts is there already, step by step.
            others = [
                metric_at(f"best_{name}", value, best)
                for name, value in best.evaluation.metrics.items()
                if name != run.objective.metric and finite(value)
            ]
            chosen = choices(best.strategy, run.batch_size)
            if run.memory is None:
                self._batch(run.run_id, others, chosen)
            else:  # the study may go on to another best plan, and parameters cannot be changed
                self._batch(run.run_id, others, {})
                for name, value in chosen.items():
                    self._store.tag_run(run.run_id, f"best_{name}", str(value))
        self.trials(run, children)
        self._table(run, trials[:TABLE_ROWS])
        self._store.end_run(run.run_id, "KILLED" if interrupted else "FINISHED")

    def _trial(self, run: StudyRun, trial: Trial) -> str:
        tags = {
            "kind": "trial",
            "searcher": run.searcher,
            "state": trial.state,
            "mlflow.parentRunId": run.run_id,
            "mlflow.runName": trial.label,
            **_owner(run.memory),
        }
        if trial.evaluation.reason:
            tags["reason"] = trial.evaluation.reason
        started = int(trial.started * 1000)
        run_id = self._store.create_run(tags, started)
        points = [
            metric_at(name, value, trial) for name, value in shown_metrics(trial, run.objective)
        ]
        points += _regret_points(run, trial)
        said = choices(trial.strategy, run.batch_size)
        params = {"searcher": run.searcher, "number": trial.number, **said}
        self._batch(run_id, points, params)
        for name, text in trial.evaluation.output.items():
            self._store.log_file(run_id, text, f"{name}.txt")
        status = "FAILED" if trial.failed else "FINISHED"
        ended = started + max(1, round(trial.seconds * 1000))
        self._store.end_run(run_id, status, ended)
        return run_id

    def _batch(self, run_id: str, metrics: Sequence[Any], params: dict[str, Any]) -> None:
        from mlflow.entities import Param

        values = [Param(name, str(value)) for name, value in params.items()]
        for first in range(0, max(1, len(metrics)), _METRICS_PER_CALL):
            part = metrics[first : first + _METRICS_PER_CALL]
            if part or values:
                self._store.log_batch(run_id, part, values)
            values = []

    def _table(self, run: StudyRun, trials: Sequence[Trial]) -> None:
        rows = [flat_row(trial, run.batch_size) for trial in trials]
        if rows:
            names = dict.fromkeys(name for row in rows for name in row)
            columns = {name: [row.get(name) for row in rows] for name in names}
            if run.goes_on and self._store.has_file(
                run.run_id, TABLE
            ):  # to which MLflow would append
                self._store.log_file(run.run_id, _table_text(columns), TABLE)
            else:
                self._store.log_table(run.run_id, columns, TABLE)


def _table_text(columns: dict[str, list[Any]]) -> str:
    """A table in the form in which MLflow keeps it."""
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

    frame: Any = pd.DataFrame(columns)
    return frame.to_json(orient="split", index=False, date_format="iso")


def run_name(searcher: str, objective: Objective, trials: int) -> str:
    """What people read of the run of a study."""
    return f"{searcher} {objective.name}, {counted(trials, 'trial')}"


def _regret_points(run: StudyRun, trial: Trial) -> list[Any]:
    """How far a trial is behind the best plan that is known, if both are."""
    if run.best_cost is None or trial.cost is None or not trial.feasible:
        return []
    return [metric_at(REGRET, rounded(100 * regret(trial.cost, run.best_cost)), trial)]


def _owner(memory: StudyMemory | None) -> dict[str, str]:
    """Tags that say which study a run is of, and which process writes it."""
    return {} if memory is None else {"study": memory.key, "worker": json.dumps(memory.me)}


def close_runs_of_the_dead(memory: StudyMemory, place: Place) -> None:
    """Closes what processes have left open in a place that died while they recorded a study. Of a
    store that does not answer it is left to the next resumption."""
    from mlflow.exceptions import MlflowException

    client = connected(place.uri)
    try:
        experiment = client.get_experiment_by_name(place.experiment)
        if experiment is not None:
            once = Patience(lambda error: False, 0.0, 0.0)
            StudyWriter(Store(client, experiment.experiment_id, once)).bury(memory)
    except (MlflowException, OSError):
        return
