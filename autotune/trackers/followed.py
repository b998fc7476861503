"""Where a study is recorded, as the study itself remembers it, so that its records go on after a
resumption and none is left open by a process that died."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.result import TuneResult
from autotune.study.ledger import LedgerError
from autotune.study.trial import Trial
from autotune.trackers.tracker import StudyHeader, StudyMemory

NAME = "tracked"
"""What the study calls it."""
SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Place:
    """A store, an experiment there, and the run that records the study."""

    uri: str
    experiment: str
    run_id: str
    worker: Mapping[str, Any]
    """The process that writes the run, or wrote it last."""

    @property
    def is_here(self) -> bool:
        """Whether the store may be reached from here: a database file may be another machine's."""
        file = database_file(self.uri)
        return file is None or file.exists()


def places(memory: StudyMemory) -> list[Place]:
    """Everywhere that the study is recorded, the latest last."""
    return [Place(**each) for each in memory.recall(NAME) or ()]


def place_at(memory: StudyMemory, uri: str, experiment: str) -> Place | None:
    """Where the study is recorded in an experiment of a store, if it is."""
    known = (each for each in places(memory) if (each.uri, each.experiment) == (uri, experiment))
    return next(known, None)


def remember(memory: StudyMemory, place: Place) -> None:
    """Notes where the study is recorded now."""
    where = place.uri, place.experiment
    others = [each for each in places(memory) if (each.uri, each.experiment) != where]
    memory.remember(NAME, [asdict(each) for each in (*others, place)])


class RunsOfTheDead:
    """A tracker of workers that record nothing themselves: when they end, it closes runs that are
    left open by processes that died. Where a store cannot be reached, it is left to the next
    resumption."""

    def __init__(self) -> None:
        self._memory: StudyMemory | None = None

    def start(self, header: StudyHeader) -> None:
        """Keeps what the study remembers."""
        self._memory = header.memory

    def log(self, trial: Trial) -> None:
        """Does nothing."""

    def finish(self, result: TuneResult) -> None:
        """Looks whether those who record the study are there."""
        memory = self._memory
        if memory is None:
            return
        try:
            for place in places(memory):
                if place.is_here and not memory.lives(dict(place.worker)):
                    from autotune.trackers.mlflow import close_runs_of_the_dead

                    close_runs_of_the_dead(memory, place)
        except LedgerError:
            return  # so is where the study is kept


def absolute(uri: str) -> str:
    """An address that means the same in every folder."""
    file = database_file(uri)
    return uri if file is None else f"{SQLITE}{file}"


def database_file(uri: str) -> Path | None:
    """The file of a database that is one."""
    name = uri[len(SQLITE) :].partition("?")[0]
    plain = uri.startswith(SQLITE) and name not in ("", ":memory:") and name[:5] != "file:"
    return Path(name).absolute() if plain else None


__all__ = [
    "SQLITE",
    "Place",
    "RunsOfTheDead",
    "absolute",
    "database_file",
    "place_at",
    "places",
    "remember",
]
