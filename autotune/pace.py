"""How quickly a search goes on, and how long the rest of it takes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """How fast several processes get through a total. Times are those of a clock, in seconds.

    A process says what it has done when a whole chunk is done, up to minutes later; the others are
    then in the middle of theirs.
    """

    total: int
    processes: int = 1
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    _latest: int = 0
    _busy: float = 0.0
    _elapsed: float = 0.0

    def add(self, done: int, seconds: float, now: float | None = None) -> None:
        """Notes that one process has done `done` more in `seconds`."""
        self.done += done
        self._latest = done
        self._busy += seconds
        self._elapsed = (time.monotonic() if now is None else now) - self.began

    @property
    def rate(self) -> float | None:
        """Estimated rate per second: that of processes while they work, but no more than what is
        done and may be under way."""
        if not self.done or self._elapsed <= 0:
            return None
        most = (self.done + (self.processes - 1) * self._latest) / self._elapsed
        return min(most, self.processes * self.done / self._busy) if self._busy > 0 else most

    def left(self, now: float | None = None) -> float | None:
        """Seconds until all is done."""
        rate = self.rate
        if rate is None:
            return None
        return max(0.0, self.began + self.total / rate - (time.monotonic() if now is None else now))


__all__ = ["Pace"]
