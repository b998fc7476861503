"""Trying again what fails for a while, such as a request to a server that is started anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 3.0


@dataclass(slots=True)
class Patience:
    """Tries calls again as long as they fail for reasons that may pass. While there is something
    else to wait for, that is for ever; after `end`, until nothing has worked for some time.
    """

    may_pass: Callable[[Exception], bool]
    """Whether an error is worth another try."""
    seconds: float
    """How long is waited at the end where something worked before."""
    first_seconds: float
    """How long is waited in all where something failed and nothing ever worked."""
    error: Exception | None = None
    """The last error, while nothing has worked since."""
    _worked: bool = False
    _since: float = field(default_factory=time.monotonic)
    _ending: bool = False

    def attempt(self, call: Callable[[], T], done: Callable[[], T | None] = lambda: None) -> T:
        """What `call` returns, sooner or later. A failed call may have had its effect, only its
        answer was lost: before another one, `done` looks for what it would return. Raises what
        `call` raised if that will not pass, or when patience is at an end.
        """
        pause, failed = FIRST_PAUSE_SECONDS, False
        while True:
            try:
                found = done() if failed else None
                found = call() if found is None else found
            except Exception as error:
                failed = True
                if not self.may_pass(error):
                    raise
                self.error = error
                if self.is_spent:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                self.worked()
                return found

    def worked(self) -> None:
        """Notes that something worked."""
        self._since, self._worked, self.error = time.monotonic(), True, None

    def end(self) -> None:
        """From now on patience is limited."""
        self._ending = True
        if self._worked:
            self._since = time.monotonic()

    @property
    def limit(self) -> float:
        """How long is waited at the end."""
        return self.seconds if self._worked or self.error is None else self.first_seconds

    @property
    def is_spent(self) -> bool:
        """Whether nothing has worked for too long."""
        return self._ending and time.monotonic() - self._since > self.limit
