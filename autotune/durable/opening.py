"""Beginning a study on a storage, going on with it, and joining others at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from autotune.durable.ledger import DurableLedger, Prune
from autotune.durable.memory import StoredMemory
from autotune.durable.optuna_storage import StoredStudy, file_of, shown_url
from autotune.durable.stated import FORMAT, Kept, differences, plain
from autotune.durable.workers import SILENCE_SECONDS
from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective
from autotune.problem import Problem
from distir.errors import DistirError
from distir.files import is_file


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """Where a study is kept."""

    name: str
    storage: str
    resumed_trials: int
    """How many trials were there when this process came."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "name": self.name,
            "storage": self.storage,
            "resumed_trials": self.resumed_trials,
        }


@dataclass(frozen=True, slots=True)
class OpenStudy:
    """A study that this process works on."""

    ledger: DurableLedger
    record: StudyRecord
    memory: StoredMemory
    notes: tuple[str, ...] = ()
    """What is not as it was, and does no harm."""


def found_study(kept: Kept) -> StoredStudy:
    """The study that is to be resumed. Raises `DistirError` if it is not there, or not one of
    these."""
    assert kept.storage is not None
    assert kept.study is not None
    where = shown_url(kept.storage)
    file = file_of(kept.storage)
    if file is not None and not is_file(file):  # which opening it would make
        raise DistirError(f"there is no study {kept.study!r} in {where}: there is no such file")
    found = StoredStudy.find(kept.storage, kept.study)
    if found is None:
        names = ", ".join(sorted(StoredStudy.names(kept.storage))) or "none"
        raise DistirError(f"there is no study {kept.study!r} in {where}; there are: {names}")
    attributes = found.attributes()
    if "problem" not in attributes:
        raise DistirError(
            f"the study {kept.study!r} in {where} was not started by autotune, or stopped before "
            "its problem was recorded; start a new one"
        )
    if attributes.get("format") != FORMAT:
        raise DistirError(
            f"the study {kept.study!r} in {where} was made by another version, "
            f"{attributes.get('versions')}; continue it with that version"
        )
    return found


def open_study(
    kept: Kept,
    problem: Problem,
    objective: Objective,
    statement: Mapping[str, Any],
    search: Mapping[str, Any],
    pruner: str | None = None,
) -> OpenStudy:
    """Begins the study that `kept` names, or goes on with it. `statement` and `search` say in plain
    values what is asked.

    Raises `DistirError` if it cannot be reached, is there or not there, or is about something else.
    """
    search = {**search, "retries": kept.retries, "heartbeat": kept.heartbeat}
    facts = {"title": problem.title, "space_size": problem.space.count()}
    if kept.resume:
        study = found_study(kept)
        attributes = study.attributes()
        asked = {"framework": None, **statement, **facts}
        for words in differences(attributes["problem"] | attributes["facts"], asked):
            advice = _framed(attributes["problem"], asked)
            raise DistirError(f"the study {kept.study!r} is a different one: {words}{advice}")
        changed = differences(attributes["versions"], _versions())
        notes = tuple(
            f"the study {kept.study!r} continues with different software: {w}" for w in changed
        )
        if not kept.helping and attributes["search"] != search:
            study.describe({"search": search})
    else:
        study, notes = _begun(kept, objective), ()
        named = {"format": FORMAT, "versions": _versions(), "facts": facts, "search": search}
        # Workers that come while it begins find a key that tells it from other studies.
        study.describe({**named, "key": uuid4().hex, "problem": dict(statement)})
    study.over(problem.space)
    ledger = DurableLedger(
        study,
        _values(study, objective),
        retries=kept.retries,
        silence=kept.heartbeat,
        prune=_prune(study, objective, pruner),
    )
    done = sum(entry.evaluation is not None for entry in ledger.entries())
    record = StudyRecord(study.name, shown_url(study.url), done)
    return OpenStudy(ledger, record, StoredMemory(ledger, kept.heartbeat), notes)


def _framed(kept: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """What to do about a study for a framework, where none is stated."""
    if asked["framework"] is not None or "framework" not in kept:
        return ""
    return (
        "; autotune.launch.load_problem_for makes a problem for a framework, as run --launch does"
    )


def ledger_that_prunes(problem: Problem, objective: Objective, pruner: str) -> DurableLedger:
    """A ledger in memory of which Optuna's pruner sees the trials."""
    study = StoredStudy.in_memory(_is_maximized(objective))
    study.over(problem.space)
    values, prune = _values(study, objective), _prune(study, objective, pruner)
    return DurableLedger(study, values, retries=0, silence=SILENCE_SECONDS, prune=prune)


def _is_maximized(objective: Objective) -> bool:
    """The direction of a new study; of an objective that has not said its metric yet, the usual."""
    return bool(objective.metric or objective.direction) and objective.maximize


def _prune(study: StoredStudy, objective: Objective, pruner: str | None) -> Prune | None:
    if pruner is None:
        return None
    ask, maximize = study.pruner(pruner), study.maximize[0]

    def prune(key: int, step: int, value: float) -> bool:
        return ask(key, step, value if maximize == objective.maximize else -value)

    return prune


def _begun(kept: Kept, objective: Objective) -> StoredStudy:
    assert kept.storage is not None
    assert kept.study is not None
    found = StoredStudy.find(kept.storage, kept.study)
    if found is None:
        others = [aim.maximize for aim in objective.others]
        directions = [_is_maximized(objective), *others]
        return StoredStudy.create(kept.storage, kept.study, directions)
    if (
        "problem" not in found.attributes()
        and found.is_empty
        and len(found.maximize) == len(objective.aims)
    ):
        return found  # whoever created it was killed at once
    raise DistirError(
        f"the study {kept.study!r} is in {shown_url(kept.storage)} already; continue it with "
        "--resume, or start a new one under another --study"
    )


def _values(study: StoredStudy, objective: Objective) -> Any:
    directions = study.maximize

    def values(evaluation: Evaluation) -> list[float] | None:
        """The metrics that count, or, if the study was created before their direction was known,
        their costs."""
        costs = objective.all_costs(evaluation)
        if costs is None:
            return None
        each = zip(objective.aims, costs, directions, strict=True)
        return [
            evaluation.metrics[aim.metric]
            if maximize == aim.maximize
            else (-cost if maximize else cost)
            for aim, cost, maximize in each
        ]

    return values


def _versions() -> dict[str, Any]:
    import platform

    from distir import __version__

    return {"distir": plain(__version__), "python": platform.python_version()}
