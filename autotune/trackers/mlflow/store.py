"""An experiment in MLflow, written call by call."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from autotune.trackers.followed import SQLITE
from autotune.trackers.mlflow.database import artifacts_beside, create_database
from autotune.trackers.patience import Patience
from distir.errors import DistirError

if TYPE_CHECKING:
    from mlflow import MlflowClient

NOT_FOUND = 404
"""What a store answers that has no such run."""
_NOTE = "mlflow.note.content"


class Store:
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

    def finished(self, condition: str) -> list[str]:
        """The finished runs that meet a condition, the first that was begun first."""
        found = [run.info for run in self.runs(f"{condition} and attributes.status = 'FINISHED'")]
        return [each.run_id for each in sorted(found, key=lambda x: (x.start_time, x.run_id))]

    def delete(self, run_id: str) -> None:
        """Takes a run away, with those that it is the parent of."""
        for each in self.runs(f"tags.`mlflow.parentRunId` = '{run_id}'"):
            self._delete(each.info.run_id)
        self._delete(run_id)

    def _delete(self, run_id: str) -> None:
        self._attempt(lambda: self._client.delete_run(run_id) or True, lambda: self._gone(run_id))

    def _gone(self, run_id: str) -> bool | None:
        return None if self.has(run_id) else True


def connected(uri: str) -> MlflowClient:
    """A client of the store at `uri`, whose database file is made if there is none. Raises
    `DistirError` where MLflow is not installed."""
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
    create_database(uri)
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


def experiment_named(client: MlflowClient, uri: str, name: str) -> str:
    """The id of the experiment of this name, which is made if there is none."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, artifacts_beside(uri))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # made by somebody else meanwhile?
            if found is None:
                raise
    return found.experiment_id
