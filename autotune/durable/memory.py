"""What a study on a storage remembers for those who follow it, from one process to the next."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from autotune.durable.ledger import DurableLedger
from autotune.durable.workers import is_gone, is_of_this_machine, this_worker


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """Facts by name, kept as attributes of the study."""

    ledger: DurableLedger
    silence_seconds: float
    """How long a worker of another machine may be silent before it counts as dead."""

    @property
    def key(self) -> str:
        """Tells the study from all others, wherever they are kept."""
        known = self.recall("key")
        if known is None:
            known = uuid4().hex
            self.remember("key", known)
        return str(known)

    def recall(self, name: str) -> Any:
        """What was remembered; None if nothing was. Raises `LedgerError` if the storage fails."""
        return self.ledger.study.attributes().get(name)

    def remember(self, name: str, value: Any) -> None:
        """Keeps a plain JSON value. Raises `LedgerError` if the storage fails."""
        self.ledger.study.describe({name: value})

    @property
    def me(self) -> dict[str, Any]:
        """This process."""
        return this_worker()

    def lives(self, worker: dict[str, Any]) -> bool:
        """Whether a worker is there: on this machine its process, on another one signs of life."""
        if is_of_this_machine(worker):
            return not is_gone(worker)
        now = time.time()
        return any(
            each.worker == worker and now - each.alive <= self.silence_seconds
            for each in self.ledger.study.attempts()
            if each.state == "running"
        )


__all__ = ["StoredMemory"]
