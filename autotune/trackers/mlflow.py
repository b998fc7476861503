"""MLflow, the one file that knows it.

A study is one parent run: step metrics (the best so far, the regret against the grid) over the
number of the trial, and one table of all trials. Trials have runs of their own while they are few;
of many, the best, the Pareto front and the best of each layout do. The grid is a study beside it,
so that one chart shows the search against exhaustive search; of its trials the best are kept.

One thread with one client writes everything, apart from the search, which neither waits for it nor
fails with it. A quick study is written at its end, so that its run is the newest and on top; one
that lasts is written as it goes.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from autotune.grid import Grid
from autotune.objectives.evaluation import finite
from autotune.objectives.objective import Objective
from autotune.result import TrackingRecord, TuneResult, flat_row
from autotune.trackers.tracker import StudyHeader
from autotune.trial import Trial, best_of_layouts, choices, pareto_front, ranked, regret
from distir.errors import DistirError
from distir.metrics import find_metric

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEFAULT_URI = "sqlite:///mlflow.db"
FEW_TRIALS = 200
"""Most trials of a study that each get a run of their own."""
LIVE_AFTER_SECONDS = 5.0
"""Age in seconds from which a running study is written while it goes on."""
PATIENCE_SECONDS = 60.0
"""How long the end of a study waits for a writer that makes no progress."""
TABLE_ROWS = 20_000
STEPS = 1000
"""Most points of a step metric of the grid."""
_METRICS_PER_CALL = 900  # MLflow takes 1,000


class MlflowTracker:
    """Records a study in MLflow. Whatever goes wrong is reported by `finish` and stops nothing."""

    def __init__(self, tracking_uri: str | None = None, experiment: str | None = None):
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
        self._experiment = experiment
        self._inbox: queue.SimpleQueue[Trial | TuneResult] = queue.SimpleQueue()
        self._record: TrackingRecord | None = None
        self._error: str | None = None
        self._progress = time.monotonic()

    def start(self, header: StudyHeader) -> None:
        """Starts the writer."""
        problem = header.problem
        default = f"{problem.model} on {problem.devices} {problem.cluster}".replace("/", "-")
        self._experiment = self._experiment or default
        self._thread = threading.Thread(
            target=self._write, args=(header,), name="mlflow-writer", daemon=True
        )
        self._thread.start()

    def log(self, trial: Trial) -> None:
        """Hands a trial to the writer."""
        self._inbox.put(trial)

    def finish(self, result: TuneResult) -> TrackingRecord:
        """Waits until the writer is done, as long as it makes progress."""
        self._inbox.put(result)
        self._progress = time.monotonic()
        try:
            self._wait()
        except KeyboardInterrupt:
            self._error = "interrupted while recording"
        if self._thread.is_alive() and self._error is None:
            self._error = f"no answer from {self._uri} within {PATIENCE_SECONDS:g} s"
        record = self._record or TrackingRecord(self._uri, str(self._experiment))
        return replace(record, error=self._error)

    def _wait(self) -> None:
        while self._thread.is_alive() and time.monotonic() - self._progress < PATIENCE_SECONDS:
            self._thread.join(0.2)

    # The writer's thread

    def _write(self, header: StudyHeader) -> None:
        try:
            self._follow(header)
        except Exception as error:  # noqa: BLE001  the search goes on, the user is told
            lines = str(error).strip().splitlines() or [""]
            self._error = f"{type(error).__name__}: {lines[0]}"

    def _follow(self, header: StudyHeader) -> None:
        client = _client(self._uri)
        experiment_id = _experiment(client, self._uri, str(self._experiment))
        writer = _Writer(client, experiment_id, self)
        started = time.monotonic()
        trials: list[Trial] = []
        run: _StudyRun | None = None
        while True:
            item = self._inbox.get()
            if isinstance(item, TuneResult):
                break
            trials.append(item)
            if self._inbox.empty() and time.monotonic() - started > LIVE_AFTER_SECONDS:
                run = run or self._open(writer, header)
                writer.steps(run, trials)
        if item.grid is not None:
            writer.grid(header, item.grid)
        run = run or self._open(writer, header)
        writer.study(run, item)
        client.set_experiment_tag(experiment_id, "mlflow.note.content", self._note(header))

    def _open(self, writer: _Writer, header: StudyHeader) -> _StudyRun:
        name = f"{header.sampler} {header.objective.name}, {header.budget} trials"
        run = writer.open(header, name, header.sampler)
        self._record = self._linked(writer.experiment_id, run.run_id)
        return run

    def touch(self) -> None:
        """Notes that the writer makes progress."""
        self._progress = time.monotonic()

    def _linked(self, experiment_id: str, run_id: str) -> TrackingRecord:
        remote = self._uri.startswith(("http://", "https://"))
        host = self._uri.rstrip("/") if remote else "http://127.0.0.1:5000"
        pages = f"{host}/#/experiments/{experiment_id}"
        studies = quote("tags.kind = 'study'")
        return TrackingRecord(
            tracking_uri=self._uri,
            experiment=str(self._experiment),
            experiment_id=experiment_id,
            run_id=run_id,
            links={
                "this study": f"{pages}/runs/{run_id}",
                "searches against the grid": (
                    f"{pages}/runs?searchFilter={studies}&compareRunsMode=CHART"
                ),
                "all trials": f"{pages}/runs?searchFilter={quote(_TRIALS)}",
            },
            command=None if remote else f"mlflow ui --backend-store-uri {self._uri}",
        )

    def _note(self, header: StudyHeader) -> str:
        assert self._record is not None
        links = "\n".join(f"- [{what}]({url})" for what, url in self._record.links.items())
        serve = (
            f"\n\nServe these pages with `{self._record.command}`." if self._record.command else ""
        )
        return (
            f"How to distribute {header.problem.title}.\n\n{links}{serve}\n\n"
            "Regions of the space: chart view, Add chart, Parallel coordinates, with `searcher` "
            "and `schedule` as parameters. A table of every trial is in the artifact "
            "`trials.json` of each study."
        )


_FIRST = "search/"
"""Metrics with a slash have a section of their own in the charts, above all others."""

_TRIALS = "tags.kind = 'trial'"


@dataclass(slots=True)
class _StudyRun:
    """An open parent run and how much of the study is written."""

    run_id: str
    objective: Objective
    searcher: str
    batch_size: int
    best: float | None = None
    written: int = 0


class _Writer:
    """Runs, metrics and tables in one experiment."""

    def __init__(self, client: MlflowClient, experiment_id: str, owner: MlflowTracker):
        self._client = client
        self._owner = owner
        self.experiment_id = experiment_id

    def open(self, header: StudyHeader, name: str, searcher: str) -> _StudyRun:
        """Creates the parent run of a study."""
        problem = header.problem
        tags = {"kind": "study", "searcher": searcher, "mlflow.runName": name}
        run_id = self._client.create_run(self.experiment_id, tags=tags).info.run_id
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
        return _StudyRun(run_id, header.objective, searcher, problem.batch_size)

    def study(self, run: _StudyRun, result: TuneResult) -> None:
        """Completes the run of a study: regret, the best trial, table, runs of trials."""
        self.steps(run, result.trials)
        grid_best = result.grid.best if result.grid else None
        if grid_best is not None and grid_best.cost is not None:
            self._batch(run.run_id, self._regrets(run, result.trials, grid_best.cost), {})
        few = len(result.trials) <= FEW_TRIALS
        self._close(run, result.trials, result.trials if few else noteworthy(result.trials))

    def grid(self, header: StudyHeader, grid: Grid) -> None:
        """Writes the grid as a study: its best so far in the order of the space, and what is
        noteworthy of it.
        """
        run = self.open(header, f"grid, all {grid.space_size}", "grid")
        steps = list(grid.improvements)
        if steps:
            steps.append(replace(steps[-1], number=grid.evaluated - 1))
        self._batch(run.run_id, self._best_so_far(run, steps), {})
        if grid.best is not None and grid.best.cost is not None:
            self._batch(run.run_id, self._regrets(run, steps, grid.best.cost), {})
        kept = {trial.number: trial for trial in (*grid.ranked, *grid.layouts, *grid.front)}
        if grid.closest is not None:
            kept[grid.closest.number] = grid.closest
        trials = [kept[number] for number in sorted(kept)]
        self._close(run, trials, noteworthy(trials))

    def steps(self, run: _StudyRun, trials: Sequence[Trial]) -> None:
        """Writes the step metrics of the trials that were not written yet."""
        new = trials[run.written :]
        run.written = len(trials)
        self._batch(run.run_id, self._best_so_far(run, new), {})

    def _best_so_far(self, run: _StudyRun, trials: Sequence[Trial]) -> list[Any]:
        points: list[Any] = []
        stride = -(-len(trials) // STEPS)
        for trial in trials:
            improves = _improves(trial, run.best)
            if improves:
                run.best = trial.cost
            if run.best is not None and (improves or trial.number % stride == 0):
                value = -run.best if run.objective.maximize else run.best
                points.append(_point(f"{_FIRST}best_{run.objective.metric}", value, trial))
        return points

    def _regrets(self, run: _StudyRun, trials: Sequence[Trial], best_cost: float) -> list[Any]:
        points: list[Any] = []
        best: float | None = None
        stride = -(-len(trials) // STEPS)
        for trial in trials:
            improves = _improves(trial, best)
            best = trial.cost if improves else best
            if best is not None and (improves or trial.number % stride == 0):
                points.append(_point(f"{_FIRST}regret_pct", 100 * regret(best, best_cost), trial))
        return points

    def _close(self, run: _StudyRun, trials: Sequence[Trial], children: Iterable[Trial]) -> None:
        best = next(iter(ranked(trials)), None)
        if best is not None:
            # The metric that counts is there already, step by step.
            others = [
                _point(f"best_{name}", value, best)
                for name, value in best.evaluation.metrics.items()
                if name != run.objective.metric and finite(value)
            ]
            self._batch(run.run_id, others, choices(best.strategy, run.batch_size))
        for trial in children:
            self._trial(run, trial)
        self._table(run, trials[:TABLE_ROWS])
        self._client.set_terminated(run.run_id)
        self._owner.touch()

    def _trial(self, run: _StudyRun, trial: Trial) -> None:
        tags = {
            "kind": "trial",
            "searcher": run.searcher,
            "state": trial.state,
            "mlflow.parentRunId": run.run_id,
            "mlflow.runName": trial.label,
        }
        if trial.evaluation.reason:
            tags["reason"] = trial.evaluation.reason
        started = int(trial.started * 1000)
        created = self._client.create_run(self.experiment_id, start_time=started, tags=tags)
        points = [_point(name, value, trial) for name, value in shown_metrics(trial, run.objective)]
        said = choices(trial.strategy, run.batch_size)
        params = {"searcher": run.searcher, "number": trial.number, **said}
        self._batch(created.info.run_id, points, params)
        status = "FAILED" if trial.failed else "FINISHED"
        ended = started + max(1, round(trial.seconds * 1000))
        self._client.set_terminated(created.info.run_id, status, end_time=ended)
        self._owner.touch()

    def _batch(self, run_id: str, metrics: Sequence[Any], params: dict[str, Any]) -> None:
        from mlflow.entities import Param

        values = [Param(name, str(value)) for name, value in params.items()]
        for first in range(0, max(1, len(metrics)), _METRICS_PER_CALL):
            part = metrics[first : first + _METRICS_PER_CALL]
            if part or values:
                self._client.log_batch(run_id, metrics=part, params=values)
            values = []
            self._owner.touch()

    def _table(self, run: _StudyRun, trials: Sequence[Trial]) -> None:
        rows = [flat_row(trial, run.batch_size) for trial in trials]
        if rows:
            names = dict.fromkeys(name for row in rows for name in row)
            columns = {name: [row.get(name) for row in rows] for name in names}
            self._client.log_table(run.run_id, columns, "trials.json")
        self._owner.touch()


def noteworthy(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that get runs of their own: the best, the Pareto front with memory, and the best
    of each layout, in the order tried."""
    chosen = {each.number: each for each in [*best_of_layouts(trials), *pareto_front(trials)]}
    return [chosen[number] for number in sorted(chosen)][:FEW_TRIALS]


def shown_metrics(trial: Trial, objective: Objective) -> list[tuple[str, float]]:
    """Metrics to record. Infeasible trials go without what would sort them on top: the
    objective and speeds.
    """
    return [
        (name, value)
        for name, value in trial.evaluation.metrics.items()
        if finite(value) and (trial.feasible or not (name == objective.metric or _is_timed(name)))
    ]


def _is_timed(metric: str) -> bool:
    known = find_metric(metric)
    return known is not None and known.timed


def _improves(trial: Trial, best: float | None) -> bool:
    usable = trial.feasible and trial.cost is not None
    return usable and (best is None or (trial.cost or 0.0) < best)


def _point(name: str, value: float, trial: Trial) -> Any:
    from mlflow.entities import Metric

    ended = int((trial.started + trial.seconds) * 1000)
    return Metric(name, value, ended, trial.number)


def _client(uri: str) -> MlflowClient:
    # A server that does not answer should not hold up the end of a search for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    warnings.filterwarnings("ignore", module="mlflow")  # deprecations that are MLflow's to mend
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise DistirError(
            "tracking needs mlflow; try: pip install mlflow, or --no-tracking"
        ) from error
    for name in ("mlflow", "alembic"):  # which report every step of creating a database
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


def _experiment(client: MlflowClient, uri: str, name: str) -> str:
    found = client.get_experiment_by_name(name)
    return found.experiment_id if found else client.create_experiment(name, _artifacts_beside(uri))


def _artifacts_beside(uri: str) -> str | None:
    """The folder `mlruns` beside a database file, wherever the search runs; else MLflow's
    default.
    """
    prefix = "sqlite:///"
    if not uri.startswith(prefix):
        return None
    return (Path(uri[len(prefix) :]).absolute().parent / "mlruns").as_uri()
