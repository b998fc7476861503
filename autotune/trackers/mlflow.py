"""MLflow, the one file that knows it.

A study is one parent run: step metrics (the best so far, the regret against the grid) over the
number of the trial, a description with the answer, files, and one table of all trials. Trials have
runs of their own while they are few; of many, the best, the Pareto front and the best of each
layout do. A study on a storage that is resumed goes on with its run; what a process has left open
that died is closed as killed. The grid is a study beside it, once per problem: in charts a line at
the height that searches may reach; of its trials the best are kept.

One thread with one client writes everything, apart from the search, which neither waits for it nor
fails with it. A quick study is written at its end, when its report is shown already, so that its
run is the newest and on top; one that lasts is written as it goes. While a store does not answer,
what is to be written is kept, and tried again; after the search, for a while.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import secrets
import sqlite3
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from autotune.exhaustive.grid import Grid
from autotune.file_lock import locked
from autotune.objectives.costs import regret
from autotune.objectives.evaluation import finite
from autotune.objectives.objective import Objective
from autotune.result import TrackingRecord, TuneResult, flat_row
from autotune.study.trial import Trial, best_of_layouts, choices, pareto_front, ranked
from autotune.trackers.followed import (
    SQLITE,
    Place,
    absolute,
    database_file,
    place_at,
    places,
    remember,
)
from autotune.trackers.patience import Patience
from autotune.trackers.study_files import Written, files_of
from autotune.trackers.study_pages import (
    REGRET,
    SEARCH,
    described_study,
    final_numbers,
    problem_key,
    readable,
    rounded,
    view_of_charts,
    view_of_searches,
    view_of_table,
)
from autotune.trackers.tracker import StudyHeader, StudyMemory
from distir.errors import DistirError
from distir.metrics import find_metric
from distir.user_code import one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient

Files: TypeAlias = Sequence[tuple[str, str | bytes]]
"""Files by name."""

DEFAULT_URI = "sqlite:///mlflow.db"
FEW_TRIALS = 200
"""Most trials of a study that each get a run of their own."""
LIVE_AFTER_SECONDS = 2.0
"""Age in seconds from which a running study is written while it goes on."""
PATIENCE_SECONDS = 60.0
"""How long the end of a study waits for a store that has stopped to answer."""
FIRST_PATIENCE_SECONDS = 20.0
"""How long it waits, since the beginning of the study, for a store that never answered."""
TABLE = "trials.json"
TABLE_ROWS = 20_000
NOT_FOUND = 404
"""What a store answers that has no such run."""
STEPS = 1000
"""Most points of a step metric of the grid."""
_METRICS_PER_CALL = 900  # MLflow takes 1,000


class MlflowTracker:
    """Records a study in MLflow. Whatever goes wrong is reported by `finish` and stops nothing."""

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        written: Callable[[TuneResult], Written] = Written,
    ):
        """`written`: the study with what its command knows beside the result, for its files."""
        self._written = written
        self._stated_uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._uri = self._stated_uri or DEFAULT_URI
        self._experiment = experiment
        self._note_of_run: str | None = None
        self._inbox: queue.SimpleQueue[Trial | TuneResult] = queue.SimpleQueue()
        self._files: queue.SimpleQueue[Files] = queue.SimpleQueue()
        self._record: TrackingRecord | None = None
        self._error: str | None = None
        self._interrupted = False
        self._trials: list[Trial] = []

    def start(self, header: StudyHeader) -> None:
        """Starts the writer, which imports MLflow once there is something to write."""
        self._patience = Patience(self._may_pass, PATIENCE_SECONDS, FIRST_PATIENCE_SECONDS)
        self._thread = threading.Thread(
            target=self._write, args=(header,), name="mlflow-writer", daemon=True
        )
        self._thread.start()

    def log(self, trial: Trial) -> None:
        """Hands a trial to the writer."""
        self._inbox.put(trial)

    def finish(self, result: TuneResult) -> TrackingRecord:
        """Makes the files of the study, then waits until the writer is done, as long as it makes
        progress."""
        self._inbox.put(result)
        try:
            self._files.put(self._made(result))
            self._patience.end()
            while self._thread.is_alive() and not self._patience.is_spent:
                self._thread.join(0.2)
        except KeyboardInterrupt:
            self._error, self._interrupted = "interrupted while recording", True
        if self._thread.is_alive() and self._error is None:
            self._error = self._no_answer()
        record = self._record or TrackingRecord(self._uri, str(self._experiment))
        return replace(record, error=self._error, interrupted=self._interrupted)

    def _made(self, result: TuneResult) -> Files:
        """The files of the study; none if that goes wrong, which is told."""
        try:
            return tuple(files_of(self._written(result)))
        except Exception as error:  # noqa: BLE001  numbers are recorded all the same
            self._error = f"the files of the study were not made: {one_line(error)}"
            return ()

    def _no_answer(self) -> str:
        error = self._patience.error
        why = "" if error is None else f" ({one_line(error)})"
        return f"no answer from {self._uri} within {self._patience.limit:g} s{why}"

    # The writer's thread

    def _write(self, header: StudyHeader) -> None:
        try:
            self._follow(header)
        except Exception as error:  # noqa: BLE001  the search goes on, the user is told
            if self._error is None:  # else the user was told already
                self._error = self._no_answer() if self._patience.is_spent else one_line(error)

    def _may_pass(self, error: Exception) -> bool:
        return may_pass(error, self._uri)

    def _gathered(self) -> TuneResult | None:
        """The study, if it is over soon; None if it has lasted for so long that it is to be written
        as it goes."""
        live = time.monotonic() + LIVE_AFTER_SECONDS
        while (left := live - time.monotonic()) > 0:
            try:
                item = self._inbox.get(timeout=left)
            except queue.Empty:
                return None
            if isinstance(item, TuneResult):
                return item
            self._trials.append(item)
        return None

    def _settle(self, header: StudyHeader) -> None:
        """Says where the study is recorded, as far as that was not stated: where it was before."""
        known = [] if header.memory is None else [x for x in places(header.memory) if x.is_here]
        stated = None if self._stated_uri is None else absolute(self._stated_uri)
        if known and stated in (None, known[-1].uri):
            if absolute(self._uri) != known[-1].uri:
                self._uri = known[-1].uri
            self._experiment = self._experiment or known[-1].experiment
        problem = header.problem
        usual = f"{problem.model} on {problem.devices} {problem.cluster}".replace("/", "-")
        self._experiment = self._experiment or usual

    def _follow(self, header: StudyHeader) -> None:
        self._settle(header)
        result = self._gathered()
        client = _client(self._uri)
        name = str(self._experiment)
        experiment_id = self._patience.attempt(lambda: _experiment(client, self._uri, name))
        store = _Store(client, experiment_id, self._patience)
        with store.failing_runs():
            self._record_study(header, _Writer(store), result)
            store.note(self._note(header))
            for key, state in shared_views(header).items():
                store.tag(f"mlflow.sharedViewState.{key}", json.dumps(state))

    def _record_study(
        self, header: StudyHeader, writer: _Writer, result: TuneResult | None
    ) -> None:
        run: _StudyRun | None = None
        while result is None:
            if self._trials and self._inbox.empty():
                run = run or self._open(writer, header)
                writer.steps(run, self._trials)
                if header.budget <= FEW_TRIALS:
                    writer.trials(run, self._trials)
            item = self._inbox.get()
            if isinstance(item, TuneResult):
                result = item
            else:
                self._trials.append(item)
        if result.grid is not None:
            writer.grid(header, result.grid, len(result.trials))
        run = run or self._open(writer, header)
        writer.study(run, result, self._files.get)

    def _open(self, writer: _Writer, header: StudyHeader) -> _StudyRun:
        name = _run_name(header.sampler, header.objective, header.budget)
        run = self._former(writer, header, name) or writer.open(header, name, header.sampler)
        if header.memory is not None:
            uri, me = absolute(self._uri), header.memory.me
            remember(header.memory, Place(uri, str(self._experiment), run.run_id, me))
        self._record = self._linked(writer.experiment_id, run.run_id)
        return run

    def _former(self, writer: _Writer, header: StudyHeader, name: str) -> _StudyRun | None:
        """The run of a study that is resumed, after those of processes that died are closed."""
        memory = header.memory
        if memory is None:
            return None
        former = place_at(memory, absolute(self._uri), str(self._experiment))
        if former is None:
            writer.bury(memory)
            return None
        why = None
        if memory.lives(dict(former.worker)):
            why = "is being written by another process"
        elif not writer.has(former.run_id):
            why = "is not in the store any more"
        writer.bury(memory, besides=former.run_id)
        if why is None:
            return writer.reopen(header, former.run_id, name)
        self._note_of_run = f"The study's run {former.run_id} {why}; this is a new one."
        return None

    def _linked(self, experiment_id: str, run_id: str) -> TrackingRecord:
        remote = self._uri.startswith(("http://", "https://"))
        host = self._uri.rstrip("/") if remote else "http://127.0.0.1:5000"
        pages = f"{host}/#/experiments/{experiment_id}"
        return TrackingRecord(
            tracking_uri=self._uri,
            experiment=str(self._experiment),
            experiment_id=experiment_id,
            run_id=run_id,
            links={
                "this study": f"{pages}/runs/{run_id}?{_VIEW}",
                "its report": f"{pages}/runs/{run_id}/artifacts/report.html?{_VIEW}",
                "searches against the grid": (
                    f"{pages}/runs?viewStateShareKey={SEARCHES_KEY}&compareRunsMode=CHART&{_VIEW}"
                ),
                "all trials": f"{pages}/runs?viewStateShareKey={TABLE_KEY}&{_VIEW}",
                "regions of the space": (
                    f"{pages}/runs?viewStateShareKey={CHARTS_KEY}&compareRunsMode=CHART&{_VIEW}"
                ),
            },
            command=None if remote else f"mlflow ui --backend-store-uri {self._uri}",
            note=self._note_of_run,
        )

    def _note(self, header: StudyHeader) -> str:
        assert self._record is not None
        links = "\n".join(f"- [{what}]({url})" for what, url in self._record.links.items())
        serve = (
            f"\n\nServe these pages with `{self._record.command}`." if self._record.command else ""
        )
        return (
            f"How to distribute {header.problem.title}.\n\n{links}{serve}\n\n"
            "A table of every trial is in the artifact `trials.json` of each study. Where the "
            "links open no columns and no charts, MLflow has changed how it keeps them: choose "
            "columns, or Add chart, Parallel coordinates."
        )


_NOTE = "mlflow.note.content"
_VIEW = "workflowType=machine_learning"
"""Opens the pages for models in training, not those for language models in use."""
TABLE_KEY, CHARTS_KEY, SEARCHES_KEY = "autotune-table", "autotune-regions", "autotune-searches"
"""What links call the views that are set up for people."""


@dataclass(slots=True)
class _StudyRun:
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


class _Store:
    """An experiment that is written call by call, each as often as it takes, and once in effect."""

    def __init__(self, client: MlflowClient, experiment_id: str, patience: Patience):
        self._client: Any = client  # its types are partly unknown
        self._attempt = patience.attempt
        self._open: list[str] = []
        self.experiment_id = experiment_id

    @contextlib.contextmanager
    def failing_runs(self) -> Generator[None, None, None]:
        """Marks runs as failed that an error leaves unfinished, if the store still takes that."""
        try:
            yield
        except Exception:
            for run_id in self._open:
                with contextlib.suppress(Exception):
                    self._client.set_terminated(run_id, "FAILED")
            raise

    def create_run(self, tags: dict[str, str], start_time: int | None = None) -> str:
        """The id of a new run."""
        key = uuid4().hex
        named = {**tags, "key": key}

        def create() -> str:
            created = self._client.create_run(self.experiment_id, start_time=start_time, tags=named)
            return created.info.run_id

        def created() -> str | None:
            runs = self._client.search_runs([self.experiment_id], f"tags.key = '{key}'")
            return runs[0].info.run_id if runs else None

        run_id = self._attempt(create, created)
        self._open.append(run_id)
        return run_id

    def go_on(self, run_id: str, tags: dict[str, str]) -> None:
        """Opens a run again."""
        self._attempt(lambda: self._client.update_run(run_id, "RUNNING"))
        for name, text in tags.items():
            self.tag_run(run_id, name, text)
        self._open.append(run_id)

    def has(self, run_id: str) -> bool:
        """Whether there is a run, and nobody has deleted it."""
        from mlflow.exceptions import MlflowException

        def there() -> bool:
            try:
                run = self._client.get_run(run_id)
            except MlflowException as error:
                if error.get_http_status_code() == NOT_FOUND:
                    return False
                raise
            same = run.info.experiment_id == self.experiment_id
            return same and run.info.lifecycle_stage == "active"

        return self._attempt(there)

    def runs(self, condition: str) -> list[Any]:
        """All runs that meet a condition."""

        def pages() -> list[Any]:
            found: list[Any] = []
            token: str | None = None
            while True:
                page = self._client.search_runs([self.experiment_id], condition, page_token=token)
                found.extend(page)
                token = page.token
                if not token:
                    return found

        return self._attempt(pages)

    def steps_of(self, run_id: str, metric: str) -> set[int]:
        """The steps at which a metric is written."""
        points = self._attempt(lambda: self._client.get_metric_history(run_id, metric))
        return {point.step for point in points}

    def has_file(self, run_id: str, file: str) -> bool:
        """Whether a run has a file of this name."""
        there = self._attempt(lambda: self._client.list_artifacts(run_id))
        return any(each.path == file for each in there)

    def tag_run(self, run_id: str, name: str, text: str) -> None:
        """Tags a run."""
        self._attempt(lambda: self._client.set_tag(run_id, name, text))

    def kill(self, run_id: str) -> None:
        """Closes a run of a process that died."""
        self._attempt(lambda: self._client.set_terminated(run_id, "KILLED"))

    def log_batch(self, run_id: str, metrics: Sequence[Any], params: Sequence[Any]) -> None:
        """Metrics and parameters; MLflow keeps equal ones once."""
        self._attempt(lambda: self._client.log_batch(run_id, metrics=metrics, params=params))

    def log_table(self, run_id: str, columns: dict[str, list[Any]], file: str) -> None:
        """A table, which MLflow would append to one that is there."""

        def written() -> bool | None:
            there = [each.path for each in self._client.list_artifacts(run_id)]
            return True if file in there else None

        self._attempt(lambda: self._client.log_table(run_id, columns, file) or True, written)

    def end_run(self, run_id: str, status: str, end_time: int | None = None) -> None:
        """Closes a run."""
        self._attempt(lambda: self._client.set_terminated(run_id, status, end_time=end_time))
        self._open.remove(run_id)

    def note(self, text: str) -> None:
        """Describes the experiment."""
        self.tag(_NOTE, text)

    def tag(self, name: str, text: str) -> None:
        """Tags the experiment."""
        self._attempt(lambda: self._client.set_experiment_tag(self.experiment_id, name, text))

    def describe(self, run_id: str, text: str) -> None:
        """Describes a run, in Markdown."""
        self.tag_run(run_id, _NOTE, text)

    def log_file(self, run_id: str, content: str | bytes, file: str) -> None:
        """A file of a run; written again, it is the same."""
        folder, _, name = file.rpartition("/")
        with tempfile.TemporaryDirectory() as here:
            path = Path(here, name)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            self._attempt(lambda: self._client.log_artifact(run_id, str(path), folder or None))

    def log_inputs(self, run_id: str, datasets: Sequence[Any]) -> None:
        """What a run is about; MLflow keeps equal ones once."""
        self._attempt(lambda: self._client.log_inputs(run_id, datasets))

    def finished(self, condition: str) -> str | None:
        """A finished run that meets a condition, if there is one."""
        search = partial(self._client.search_runs, [self.experiment_id], condition, max_results=1)
        found = (run.info for run in self._attempt(search))
        return next((info.run_id for info in found if info.status == "FINISHED"), None)


class _Writer:
    """Runs, metrics and tables of studies."""

    def __init__(self, store: _Store):
        self._store = store
        self.experiment_id = store.experiment_id

    def open(self, header: StudyHeader, name: str, searcher: str) -> _StudyRun:
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
        self._store.log_inputs(run_id, [_problem_input(header)])
        return _StudyRun(run_id, header.objective, searcher, problem.batch_size, header.memory)

    def has(self, run_id: str) -> bool:
        """Whether there is a run."""
        return self._store.has(run_id)

    def reopen(self, header: StudyHeader, run_id: str, name: str) -> _StudyRun:
        """Goes on with the parent run of a study, of which some trials may have runs already."""
        owner = _owner(header.memory)
        tags = {"searcher": header.sampler, "mlflow.runName": name, **owner}
        self._store.go_on(run_id, tags)
        children = self._store.runs(f"tags.`mlflow.parentRunId` = '{run_id}'")
        for each in children:
            if each.info.status == "RUNNING":
                self._store.kill(each.info.run_id)
        ended = [each for each in children if each.info.status in ("FINISHED", "FAILED")]
        return _StudyRun(
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

    def _grid_run(self, header: StudyHeader) -> str | None:
        """The run of this problem's grid, if it is written already."""
        key = problem_key(header)
        return self._store.finished(f"tags.searcher = 'grid' and tags.problem = '{key}'")

    def study(self, run: _StudyRun, result: TuneResult, files: Callable[[], Files]) -> None:
        """Completes the run of a study: what was found, regret, the best trial, files, table, runs
        of trials. `files` waits until they are made."""
        self._store.describe(run.run_id, described_study(result))
        self._store.tag_run(
            run.run_id, "mlflow.runName", _run_name(run.searcher, run.objective, len(result.trials))
        )
        run.best_cost = None if result.best is None else result.best.cost
        finals = [_at_begin(name, value) for name, value in final_numbers(result).items()]
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
        there = self._grid_run(header)
        if there is not None:
            made = _StudyRun(there, header.objective, "grid", header.problem.batch_size)
            self._line(made, grid, (trials - 1,))
            return
        run = self.open(header, f"grid, all {grid.space_size}", "grid")
        self._line(run, grid, (0, max(1, trials - 1)))
        run.best_cost = None if grid.best is None else grid.best.cost
        kept = {trial.number: trial for trial in (*grid.ranked, *grid.layouts, *grid.front)}
        if grid.closest is not None:
            kept[grid.closest.number] = grid.closest
        known = [kept[number] for number in sorted(kept)]
        self._close(run, known, noteworthy(known), interrupted=not grid.complete)

    def _line(self, run: _StudyRun, grid: Grid, steps: Iterable[int]) -> None:
        """The best of a grid, and no regret, at these trials."""
        if grid.best is None or grid.best.cost is None:
            return
        points = [replace(grid.best, number=step) for step in steps]
        self._batch(run.run_id, self._best_so_far(run, points), {})
        self._batch(run.run_id, self._regrets(points, grid.best.cost), {})

    def steps(self, run: _StudyRun, trials: Sequence[Trial]) -> None:
        """Writes the step metrics of the trials that were not written yet."""
        new = trials[run.written :]
        run.written = len(trials)
        points = self._best_so_far(run, new)
        if points and run.steps is None:
            known = self._store.steps_of(run.run_id, points[0].key) if run.goes_on else set[int]()
            run.steps = known
        self._batch(run.run_id, [each for each in points if each.step not in (run.steps or ())], {})

    def trials(self, run: _StudyRun, trials: Iterable[Trial]) -> None:
        """Writes runs of the trials that have none yet."""
        for trial in trials:
            if trial.number not in run.recorded:
                run.recorded[trial.number] = self._trial(run, trial)
            elif points := _regret_points(run, trial):
                self._batch(run.recorded[trial.number], points, {})

    def _best_so_far(self, run: _StudyRun, trials: Sequence[Trial]) -> list[Any]:
        points: list[Any] = []
        stride = -(-len(trials) // STEPS)
        for trial in trials:
            improves = _improves(trial, None if run.best is None else run.best.cost)
            if improves:
                run.best = trial
            value = None if run.best is None else run.best.metric(run.objective.metric)
            if value is not None and (improves or trial.number % stride == 0):
                points.append(_point(f"{SEARCH}best_{run.objective.metric}", value, trial))
        return points

    def _regrets(self, trials: Sequence[Trial], best_cost: float) -> list[Any]:
        points: list[Any] = []
        best: float | None = None
        stride = -(-len(trials) // STEPS)
        for trial in trials:
            improves = _improves(trial, best)
            best = trial.cost if improves else best
            if best is not None and (improves or trial.number % stride == 0):
                points.append(_point(f"{SEARCH}regret_pct", 100 * regret(best, best_cost), trial))
        return points

    def _close(
        self,
        run: _StudyRun,
        trials: Sequence[Trial],
        children: Iterable[Trial],
        *,
        interrupted: bool,
    ) -> None:
        best = next(iter(ranked(trials)), None)
        if best is not None:
            # The metric that counts is there already, step by step.
            others = [
                _point(f"best_{name}", value, best)
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

    def _trial(self, run: _StudyRun, trial: Trial) -> str:
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
        points = [_point(name, value, trial) for name, value in shown_metrics(trial, run.objective)]
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

    def _table(self, run: _StudyRun, trials: Sequence[Trial]) -> None:
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


def _run_name(searcher: str, objective: Objective, trials: int) -> str:
    return f"{searcher} {objective.name}, {trials} trials"


def _regret_points(run: _StudyRun, trial: Trial) -> list[Any]:
    """How far a trial is behind the best plan that is known, if both are."""
    if run.best_cost is None or trial.cost is None or not trial.feasible:
        return []
    return [_point(REGRET, rounded(100 * regret(trial.cost, run.best_cost)), trial)]


def _owner(memory: StudyMemory | None) -> dict[str, str]:
    """Tags that say which study a run is of, and which process writes it."""
    return {} if memory is None else {"study": memory.key, "worker": json.dumps(memory.me)}


def close_runs_of_the_dead(memory: StudyMemory, place: Place) -> None:
    """Closes what processes have left open in a place that died while they recorded a study. Of a
    store that does not answer it is left to the next resumption."""
    from mlflow.exceptions import MlflowException

    client = _client(place.uri)
    try:
        experiment = client.get_experiment_by_name(place.experiment)
        if experiment is not None:
            once = Patience(lambda error: False, 0.0, 0.0)
            _Writer(_Store(client, experiment.experiment_id, once)).bury(memory)
    except (MlflowException, OSError):
        return


def shared_views(header: StudyHeader) -> dict[str, dict[str, Any]]:
    """By key, the columns and charts that links open."""
    objective = header.objective
    return {
        TABLE_KEY: view_of_table(objective),
        CHARTS_KEY: view_of_charts(objective),
        SEARCHES_KEY: view_of_searches(objective),
    }


def _problem_input(header: StudyHeader) -> Any:
    """The problem as the dataset of a study: the same for all studies of it."""
    from mlflow.entities import Dataset, DatasetInput

    problem = header.problem
    source = json.dumps({"model": problem.model, "cluster": problem.cluster})
    profile = {
        "devices": problem.devices,
        "batch_size": problem.batch_size,
        "mode": problem.mode,
        "space": problem.space_name,
        "strategies": problem.space.count(),
    }
    made = Dataset(
        name=problem.title[:500],
        digest=problem_key(header),
        source_type="code",
        source=source,
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset=made)


def _at_begin(name: str, value: float) -> Any:
    """A number of a whole study, which charts show as a bar beside those of others."""
    from mlflow.entities import Metric

    return Metric(name, value, int(time.time() * 1000), 0)


def noteworthy(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that get runs of their own: the best, the Pareto front with memory, and the best
    of each layout, in the order tried."""
    chosen = {each.number: each for each in [*best_of_layouts(trials), *pareto_front(trials)]}
    return [chosen[number] for number in sorted(chosen)][:FEW_TRIALS]


def shown_metrics(trial: Trial, objective: Objective) -> list[tuple[str, float]]:
    """Metrics to record. Infeasible trials go without what would sort them on top: the
    objective and speeds.
    """
    shown = {
        name: value
        for name, value in trial.evaluation.metrics.items()
        if finite(value) and (trial.feasible or not (name == objective.metric or _is_timed(name)))
    }
    return list((shown | readable(shown)).items())


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
    # `Patience` says how often a request is tried.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
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
    # These report errors that are raised as well, and told once.
    for name in ("mlflow.store.db.utils", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _create_database(uri)
    return MlflowClient(tracking_uri=uri)


def may_pass(error: Exception, uri: str) -> bool:
    """Whether an error is a store's that may work again: a server that is not there or is not well,
    a database that is locked or gone."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import OperationalError

    if uri.startswith(SQLITE):
        return "database is locked" in str(error)
    if isinstance(error, MlflowException):
        return error.get_http_status_code() in (408, 429) or error.get_http_status_code() >= 500
    if isinstance(error, RequestException):
        return error.response is None or error.response.status_code >= 500
    return isinstance(error, (ConnectionError, TimeoutError, OperationalError))


def _experiment(client: MlflowClient, uri: str, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, _artifacts_beside(uri))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # made by somebody else meanwhile?
            if found is None:
                raise
    return found.experiment_id


def _create_database(uri: str) -> None:
    """Creates a new database file as a whole. MLflow makes tables in hundreds of steps, among which
    neither another process nor an interrupt may come."""
    from mlflow import MlflowClient

    file = database_file(uri)
    if file is None or _has_content(file) or not file.parent.is_dir():
        return
    with locked(file.with_name(f".{file.name}.lock")):
        if _has_content(file):
            return
        part = file.with_name(f".{file.name}.{secrets.token_hex(8)}.part")
        try:
            with unsynced(part):
                client: Any = MlflowClient(tracking_uri=f"{SQLITE}{part}")
                client.search_experiments(max_results=1)
            _synced(part)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def unsynced(file: Path) -> Generator[None, None, None]:
    """While this lasts, connections to a database file that nobody else knows do not wait for the
    disk at each of hundreds of steps."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def connected(connection: Any, _: Any) -> None:
        if not isinstance(connection, sqlite3.Connection):
            return  # somebody else's, meanwhile
        names = [row[2] for row in connection.execute("PRAGMA database_list")]
        if any(Path(name).name == file.name for name in names):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", connected)
    try:
        yield
    finally:
        event.remove(Engine, "connect", connected)


def _synced(file: Path) -> None:
    """Waits until a file is on the disk."""
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def _has_content(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _artifacts_beside(uri: str) -> str | None:
    """The folder `mlruns` beside a database file, wherever the search runs; else MLflow's
    default.
    """
    file = database_file(uri)
    return None if file is None else (file.parent / "mlruns").as_uri()
