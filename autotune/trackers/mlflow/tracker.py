"""The tracker: one thread with one client writes everything, apart from the search, which neither
waits for it nor fails with it.

A quick study is written at its end, when its report is shown already, so that its run is the newest
and on top; one that lasts is written as it goes. While a store does not answer, what is to be
written is kept, and tried again; after the search, for a while.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from autotune.result import TrackingRecord, TuneResult
from autotune.study.trial import Trial
from autotune.trackers.followed import Place, absolute, place_at, places, remember
from autotune.trackers.mlflow.entries import FEW_TRIALS
from autotune.trackers.mlflow.store import Store, connected, experiment_named, may_pass
from autotune.trackers.mlflow.writer import Files, StudyRun, StudyWriter, run_name
from autotune.trackers.patience import Patience
from autotune.trackers.study_files import Written, files_of
from autotune.trackers.study_pages import view_of_charts, view_of_searches, view_of_table
from autotune.trackers.tracker import StudyHeader
from distir.user_code import one_line

DEFAULT_URI = "sqlite:///mlflow.db"
LIVE_AFTER_SECONDS = 2.0
"""Age in seconds from which a running study is written while it goes on."""
PATIENCE_SECONDS = 60.0
"""How long the end of a study waits for a store that has stopped to answer."""
FIRST_PATIENCE_SECONDS = 20.0
"""How long it waits, since the beginning of the study, for a store that never answered."""
_VIEW = "workflowType=machine_learning"
"""Opens the pages for models in training, not those for language models in use."""
TABLE_KEY, CHARTS_KEY, SEARCHES_KEY = "autotune-table", "autotune-regions", "autotune-searches"
"""What links call the views that are set up for people."""


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
            self._error = f"the files of the study could not be written: {one_line(error)}"
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
        client = connected(self._uri)
        name = str(self._experiment)
        experiment_id = self._patience.attempt(lambda: experiment_named(client, self._uri, name))
        store = Store(client, experiment_id, self._patience)
        with store.failing_runs():
            self._record_study(header, StudyWriter(store), result)
            store.note(self._note(header))
            for key, state in shared_views(header).items():
                store.tag(f"mlflow.sharedViewState.{key}", json.dumps(state))

    def _record_study(
        self, header: StudyHeader, writer: StudyWriter, result: TuneResult | None
    ) -> None:
        run: StudyRun | None = None
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

    def _open(self, writer: StudyWriter, header: StudyHeader) -> StudyRun:
        name = run_name(header.sampler, header.objective, header.budget)
        run = self._former(writer, header, name) or writer.open(header, name, header.sampler)
        if header.memory is not None:
            uri, me = absolute(self._uri), header.memory.me
            remember(header.memory, Place(uri, str(self._experiment), run.run_id, me))
        self._record = self._linked(writer.experiment_id, run.run_id)
        return run

    def _former(self, writer: StudyWriter, header: StudyHeader, name: str) -> StudyRun | None:
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
            why = "is no longer in the store"
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
            "A table of every trial is in the artifact `trials.json` of each study. If the links "
            "show no columns or charts, MLflow has changed how it stores them: choose columns, or "
            "Add chart, Parallel coordinates."
        )


def shared_views(header: StudyHeader) -> dict[str, dict[str, Any]]:
    """By key, the columns and charts that links open."""
    objective = header.objective
    return {
        TABLE_KEY: view_of_table(objective),
        CHARTS_KEY: view_of_charts(objective),
        SEARCHES_KEY: view_of_searches(objective),
    }
