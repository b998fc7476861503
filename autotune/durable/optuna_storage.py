"""Studies on Optuna's storages; beside the samplers, the one file that knows Optuna.

A strategy is the parameters of a trial (`tp = 8`), what came of it the attribute `outcome` and
Optuna's own value and state, so that what reads Optuna's studies shows these. What a trial that
failed has printed are attributes too: workers share no disk but the storage. A trial that is
finished without an outcome was its worker's last.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from autotune.durable.attempts import Attempt
from autotune.file_lock import locked
from autotune.objectives.evaluation import OUTPUTS, Evaluation
from autotune.study.ledger import LedgerError
from distir.errors import DistirError, brief
from distir.files import is_file
from distir.strategy import Strategy
from search_spaces import SearchSpace

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from autotune.objectives.objective import Objective
    from autotune.study.trial import Trial

T = TypeVar("T")

KINDS = "sqlite:///FILE, postgresql://…, journal:FILE or grpc://HOST:PORT"
CONSTRAINT = "constraints:feasible"
"""Where Optuna's trials keep a constraint named `feasible` (`Trial.set_constraint`)."""
PRUNERS: Mapping[str, Callable[[Any], Any]] = {
    "median": lambda pruners: pruners.MedianPruner(),
    "hyperband": lambda pruners: pruners.HyperbandPruner(),
}
"""Optuna's pruners that can be asked for, by name."""
LOCK_SECONDS = 60.0
"""How long SQLite waits for another process that writes."""
PATIENCE_SECONDS = 300.0
"""How long a storage that is away is waited for."""
_PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0)
_SERVER_SECONDS = 5.0
PORTS = 1 << 16


def import_optuna() -> ModuleType:
    """Optuna, imported late and quiet."""
    try:
        import optuna
    except ImportError as error:
        raise DistirError("studies on a storage need optuna; try: pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return optuna


def shown_url(url: str) -> str:
    """A storage as it may be shown: without a password."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", url)


def open_storage(url: str) -> BaseStorage:
    """The storage at `url`. Raises `DistirError`, in one line, if it cannot be reached."""
    optuna = import_optuna()
    kind, colon, rest = url.partition(":")
    try:
        if kind == "journal" and rest:
            return _journal(rest)
        if kind == "grpc" and rest.startswith("//"):
            return _proxy(rest[2:])
        if colon and "//" in rest:
            return optuna.storages.get_storage(_database(url))
    except DistirError:
        raise
    except ImportError as error:
        extras = {"grpc": "grpc", "postgres": "postgresql", "postgresql": "postgresql"}
        package = f"'distir[{extras[kind]}]'" if kind in extras else "its driver"
        raise DistirError(
            f"the storage {shown_url(url)} needs {_missing(error)}; try: pip install {package}"
        ) from error
    except Exception as error:
        if type(error).__name__ == "NoSuchModuleError":  # of SQLAlchemy: no database is called so
            raise DistirError(f"the storage is {shown_url(url)!r}; expected {KINDS}") from error
        raise DistirError(
            f"the storage {shown_url(url)} cannot be opened: {reason(error)}"
        ) from error
    raise DistirError(f"the storage is {shown_url(url)!r}; expected {KINDS}")


def _missing(error: BaseException) -> str:
    """The module that could not be imported."""
    while not getattr(error, "name", None) and error.__cause__ is not None:
        error = error.__cause__
    return getattr(error, "name", None) or "a module that is missing"


def file_of(url: str) -> str | None:
    """The file that a storage is; None of a server, or where options of SQLite say which it is."""
    kind, _, rest = url.partition(":")
    if kind == "journal":
        return rest
    plain = kind == "sqlite" and rest.startswith("///") and "?" not in rest
    return rest.removeprefix("///") if plain else None


def _journal(path: str) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    _check_journal(path)

    class WholeLines(JournalFileBackend):
        """A journal that goes on after a line that was cut short when its writer was killed, or
        when the disk was full. Nobody was told that such a line is written. Its lock is the
        kernel's, which lets go when its holder is killed; Optuna's own takes half a minute."""

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            lines = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in logs)
            with locked(Path(f"{path}.flock")), open(path, "r+b") as file:  # noqa: PTH123
                file.seek(_end_of_lines(file))
                file.truncate()
                file.write(lines.encode())
                file.flush()
                os.fsync(file.fileno())

        def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
            lines = log_number_from
            try:
                for log in super().read_logs(log_number_from):
                    lines += 1
                    yield log
            except ValueError:
                raise ValueError(f"its line {lines + 1} is damaged") from None

    return JournalStorage(WholeLines(path))


def _check_journal(path: str) -> None:
    """Raises `DistirError` if there is a file that is no journal, not even the beginning of one:
    studies would be written into it, and what is not a line of a journal cut off."""
    if not is_file(path):
        return
    with Path(path).open("rb") as file:
        begins = file.read(len(_JOURNAL_BEGINS))
    if not _JOURNAL_BEGINS.startswith(begins):
        raise DistirError(
            f"the storage journal:{path} cannot be opened: this file is not a journal of studies; "
            "expected one, or a file that does not exist yet"
        )


_JOURNAL_BEGINS = b'{"op_code":'
"""What each line of a journal of Optuna's begins with."""


def _end_of_lines(file: BinaryIO) -> int:
    """Where the last whole line of a file ends."""
    end = file.seek(0, 2)
    while end:
        file.seek(max(0, end - 4096))
        part = file.read(min(end, 4096))
        if b"\n" in part:
            return end - len(part) + part.rfind(b"\n") + 1
        end -= len(part)
    return 0


def _proxy(address: str) -> BaseStorage:
    from optuna.storages import GrpcStorageProxy

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < PORTS:
        raise DistirError(f"the storage is 'grpc://{address}'; expected grpc://HOST:PORT")
    proxy = GrpcStorageProxy(host=host, port=int(port))
    try:
        proxy.wait_server_ready(timeout=_SERVER_SECONDS)
    except ConnectionError as error:
        words = f"the storage grpc://{address} cannot be opened: nothing answered within"
        raise DistirError(f"{words} {_SERVER_SECONDS:g} s") from error
    return proxy


def _database(url: str) -> BaseStorage:
    from optuna.storages import RDBStorage

    url = re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        if url.partition("://")[2].strip("/") in ("", ":memory:"):
            raise DistirError(
                f"the storage {url} is in memory and disappears with its process; expected "
                "sqlite:///FILE"
            )
        options = {"connect_args": {"timeout": LOCK_SECONDS}}
    return RDBStorage(url, engine_kwargs=options)


def reason(error: BaseException) -> str:
    """What went wrong with a storage, in a line: what the driver said, of all that was raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    details = getattr(error, "details", None)  # of gRPC
    said = details() if callable(details) else str(error)
    lines = [line.strip() for line in str(said or "").splitlines() if line.strip()]
    return brief(lines[0]) if lines else type(error).__name__


def may_pass(error: BaseException) -> bool:
    """Whether a storage may work again: a database that is locked or gone, a server that is
    restarted. A full disk is none of these."""
    import sqlite3

    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    for each in chain:
        if isinstance(each, sqlite3.Error):
            return "locked" in str(each)
        code = getattr(each, "code", None)  # of gRPC
        if callable(code):
            return getattr(code(), "name", "") in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    return bool(names & {"OperationalError", "InterfaceError", "ConnectionError", "TimeoutError"})


class StoredStudy:
    """One study on a storage: its attributes, and its trials as attempts."""

    def __init__(self, storage: BaseStorage, url: str, name: str, study_id: int):
        self._storage, self._id = storage, study_id
        self.url, self.name = url, name
        self._fixed: dict[str, Any] = {}
        self._distributions: dict[str, BaseDistribution] = {}
        self._known: dict[int, Attempt] = {}
        self._patience_seconds = PATIENCE_SECONDS

    @classmethod
    def find(cls, url: str, name: str) -> StoredStudy | None:
        """The study of this name, if it is there."""
        storage = open_storage(url)
        try:
            return cls(storage, url, name, storage.get_study_id_from_name(name))
        except KeyError:
            return None
        except Exception as error:
            raise _unreachable(url, error) from error

    @classmethod
    def create(cls, url: str, name: str, maximize: Sequence[bool]) -> StoredStudy:
        """A new study. Raises `DistirError` if there is one of this name."""
        optuna = import_optuna()
        storage = open_storage(url)
        kinds = optuna.study.StudyDirection
        directions = [kinds.MAXIMIZE if each else kinds.MINIMIZE for each in maximize]
        try:
            return cls(storage, url, name, storage.create_new_study(directions, name))
        except optuna.exceptions.DuplicatedStudyError as error:
            raise DistirError(f"there is already a study {name!r}") from error
        except Exception as error:
            raise _unreachable(url, error) from error

    @classmethod
    def in_memory(cls, maximize: bool) -> StoredStudy:
        """A study that is gone with the process."""
        optuna = import_optuna()
        kinds = optuna.study.StudyDirection
        storage = optuna.storages.InMemoryStorage()
        name = "in-memory"
        direction = kinds.MAXIMIZE if maximize else kinds.MINIMIZE
        return cls(storage, name, name, storage.create_new_study([direction], name))

    @staticmethod
    def names(url: str) -> list[str]:
        """All studies of a storage."""
        return [each.study_name for each in open_storage(url).get_all_studies()]

    @property
    def optuna(self) -> optuna.Study:
        """The study as Optuna has it."""
        return import_optuna().load_study(study_name=self.name, storage=self._storage)

    @property
    def maximize(self) -> tuple[bool, ...]:
        """For each value of a trial, whether larger is better."""
        kinds = import_optuna().study.StudyDirection
        directions = self._reach(lambda: self._storage.get_study_directions(self._id))
        return tuple(each == kinds.MAXIMIZE for each in directions)

    @property
    def is_empty(self) -> bool:
        """Whether nobody has begun a trial."""
        return not self._reach(lambda: self._storage.get_all_trials(self._id, deepcopy=False))

    def attributes(self) -> dict[str, Any]:
        """What is known of the study."""
        return self._reach(lambda: self._storage.get_study_user_attrs(self._id))

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Keeps facts about the study."""
        for name, value in attributes.items():
            self._reach(lambda n=name, v=value: self._storage.set_study_user_attr(self._id, n, v))

    def over(self, space: SearchSpace) -> None:
        """States the space whose strategies the trials are."""
        values = {name: space.values(name) for name in space.names}
        self._fixed = {name: known[0] for name, known in values.items() if len(known) == 1}
        self._distributions = _distributions(space)

    def attempts(self) -> list[Attempt]:
        """All attempts, in the order of their numbers."""
        trials = self._reach(lambda: self._storage.get_all_trials(self._id, deepcopy=False))
        for trial in trials:
            if trial.number not in self._known or self._known[trial.number].state == "running":
                if (attempt := self._attempt(trial)) is not None:
                    self._known[trial.number] = attempt
        return [self._known[number] for number in sorted(self._known)]

    def _attempt(self, trial: FrozenTrial) -> Attempt | None:
        told = trial.user_attrs
        if "plan" not in told:
            return None  # somebody else's
        outcome = told.get("outcome")
        state = "running"
        if "withdrawn" in told:
            state = "withdrawn"
        elif trial.state.is_finished():
            state = "lost" if outcome is None else "done"
        return Attempt(
            trial.number,
            _key(trial),
            Strategy.from_dict({**self._fixed, **trial.params}),
            state,
            token=told["token"],
            asked=not told.get("enqueued", False),
            evaluation=None if outcome is None else _evaluation(outcome, told),
            value=trial.values[0] if trial.values else None,
            started=outcome["started"] if outcome else 0.0,
            seconds=outcome["seconds"] if outcome else 0.0,
            worker=told["worker"],
            alive=told["alive"],
        )

    def begin(self, strategy: Strategy, token: str, worker: dict[str, Any], *, asked: bool) -> int:
        """A new running attempt, whole at once; its key."""
        optuna = import_optuna()
        told = {
            "plan": strategy.label,
            "token": token,
            "worker": worker,
            "alive": time.time(),
            **({} if asked else {"enqueued": True}),
        }
        trial = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params={name: getattr(strategy, name) for name in self._distributions},
            distributions=self._distributions,
            user_attrs=told,
        )

        def begun() -> int | None:
            found = (each for each in self.attempts() if each.token == token)
            return next((each.key for each in found), None)

        return self._reach(lambda: self._storage.create_new_trial(self._id, trial), begun)

    def beat(self, key: int) -> None:
        """A sign of life of the worker at an attempt, if the storage takes it just now."""
        self._storage.set_trial_user_attr(key, "alive", time.time())

    def finish(
        self, key: int, evaluation: Evaluation, started: float, seconds: float,
        values: Sequence[float] | None,
    ) -> bool:  # fmt: skip
        """Keeps what came of an attempt. False if it has ended otherwise meanwhile."""
        outcome = _outcome(evaluation, started, seconds)

        def write() -> None:
            for name, text in evaluation.output.items():
                self._storage.set_trial_user_attr(key, name, text)
            self._storage.set_trial_user_attr(key, "outcome", outcome)
            if not (evaluation.failed or evaluation.pruned):
                self._storage.set_trial_system_attr(key, CONSTRAINT, _violation(evaluation))

        try:
            self._reach(write)
        except _EndedError:
            return "outcome" in self._told(key)
        self.end(key, values, pruned=evaluation.pruned)
        return True

    def end(self, key: int, values: Sequence[float] | None, *, pruned: bool = False) -> None:
        """Ends an attempt, if nobody else did: complete if it has values, else pruned or failed."""
        states = import_optuna().trial.TrialState
        without = states.PRUNED if pruned else states.FAIL
        state = without if values is None else states.COMPLETE
        try:
            self._reach(lambda: self._storage.set_trial_state_values(key, state, values))
        except _EndedError:
            return

    def pruner(self, name: str) -> Callable[[int, int, float], bool]:
        """A function that keeps the value of an attempt, given by its key, at a step, and says
        whether Optuna's pruner of this name would end it."""
        made = PRUNERS[name](import_optuna().pruners)
        study = self.optuna

        def prune(key: int, step: int, value: float) -> bool:
            def asked() -> bool:
                self._storage.set_trial_intermediate_value(key, step, value)
                return made.prune(study, self._storage.get_trial(key))

            try:
                return self._reach(asked)
            except _EndedError:
                return True  # its worker was taken for dead; another one is at it

        return prune

    def withdraw(self, key: int) -> None:
        """Gives an attempt back."""
        try:
            self._reach(lambda: self._storage.set_trial_user_attr(key, "withdrawn", True))
        except _EndedError:
            return
        self.end(key, None)

    def close(self) -> None:
        """Lets go of connections. A process that forks must not hand them on."""
        storage: Any = self._storage
        engine = getattr(getattr(storage, "_backend", None), "engine", None)
        if engine is not None:
            engine.dispose()
        elif hasattr(storage, "close"):
            storage.close()

    def hurry(self) -> None:
        """From now on a storage that is away is not waited for."""
        self._patience_seconds = 0.0

    def _told(self, key: int) -> dict[str, Any]:
        return self._reach(lambda: self._storage.get_trial(key)).user_attrs

    def _reach(self, call: Callable[[], T], done: Callable[[], T | None] = lambda: None) -> T:
        """What `call` returns, as soon as the storage is there. A call that failed may have had its
        effect: before another try, `done` looks for what it would return."""
        ended = import_optuna().exceptions.UpdateFinishedTrialError
        failed_since: float | None = None
        tries = 0
        while True:
            try:
                found = done() if tries else None
                return call() if found is None else found
            except LedgerError:
                raise
            except ended as error:
                raise _EndedError from error
            except Exception as error:
                now = time.monotonic()
                failed_since = now if failed_since is None else failed_since
                if not may_pass(error) or now - failed_since > self._patience_seconds:
                    raise _unreachable(self.url, error) from error
                time.sleep(_PAUSES_SECONDS[min(tries, len(_PAUSES_SECONDS) - 1)])
                tries += 1
                self._reconnect()

    def _reconnect(self) -> None:
        """Has a proxy connect anew: a connection that fails again and again pauses for minutes."""
        if self.url.startswith("grpc:"):
            before, self._storage = self._storage, copy(self._storage)
            cast("Any", before).close()


class _EndedError(Exception):
    """An attempt has ended already."""


def _unreachable(url: str, error: Exception) -> LedgerError:
    return LedgerError(f"the storage {shown_url(url)} failed: {reason(error)}")


def study_in_memory(
    space: SearchSpace, trials: Iterable[Trial], objective: Objective
) -> optuna.Study:
    """A study of Optuna's with these trials, gone with the process."""
    optuna = import_optuna()
    aims = objective.aims
    study = optuna.create_study(
        directions=["maximize" if aim.maximize else "minimize" for aim in aims]
    )
    distributions = _distributions(space)
    states = optuna.trial.TrialState
    for each in trials:
        evaluation, costs = each.evaluation, objective.all_costs(each.evaluation)
        outcome = _outcome(evaluation, each.started, each.seconds)
        without = states.PRUNED if evaluation.pruned else states.FAIL
        study.add_trial(
            optuna.trial.create_trial(
                state=without if costs is None else states.COMPLETE,
                values=None if costs is None else [evaluation.metrics[aim.metric] for aim in aims],
                params={name: getattr(each.strategy, name) for name in distributions},
                distributions=distributions,
                user_attrs={"plan": each.label, **evaluation.output, "outcome": outcome},
                system_attrs={} if evaluation.failed else {CONSTRAINT: _violation(evaluation)},
            )
        )
    return study


def _key(trial: Any) -> int:
    """The storage's own number of a trial, for which Optuna has no public name."""
    return trial._trial_id  # noqa: SLF001


def _violation(evaluation: Evaluation) -> float:
    return evaluation.violation or (0.0 if evaluation.feasible else 1.0)


def _distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    values = {name: space.values(name) for name in space.names}
    return {name: _distribution(known) for name, known in values.items() if len(known) > 1}


def _distribution(values: Sequence[Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if any(type(value) is not int for value in values):
        return CategoricalDistribution(tuple(values))
    return IntDistribution(min(values), max(values))


def _outcome(evaluation: Evaluation, started: float, seconds: float) -> dict[str, Any]:
    """An evaluation as strict JSON values."""
    return {
        "metrics": {name: _sayable(value) for name, value in evaluation.metrics.items()},
        "feasible": evaluation.feasible,
        "reason": evaluation.reason,
        "violation": evaluation.violation,
        "failed": evaluation.failed,
        "pruned": evaluation.pruned,
        "started": started,
        "seconds": seconds,
    }


def _sayable(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def _evaluation(outcome: Mapping[str, Any], told: Mapping[str, Any]) -> Evaluation:
    metrics = cast("Mapping[str, float | str]", outcome["metrics"])
    return Evaluation(
        {name: float(value) for name, value in metrics.items()},
        outcome["feasible"],
        outcome["reason"],
        outcome["violation"],
        failed=outcome["failed"],
        pruned=outcome.get("pruned", False),
        output={name: told[name] for name in OUTPUTS if name in told},
    )
