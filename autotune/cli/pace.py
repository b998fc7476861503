"""How quickly a search goes on, and how long the rest of it takes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """How fast several processes get through a total. Times are those of a clock, in seconds.

    A process says what it has done when a whole chunk is done, up to minutes later; the others are
    then in the middle of theirs. Of one process alone, the first part says little: it takes what
    all share, such as programs and bounds, and so the rate is that of the parts after it.
    """

    total: int
    processes: int = 1
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    _latest: int = 0
    _busy: float = 0.0
    _elapsed: float = 0.0
    _first: tuple[int, float] | None = None
    """What the first part was, and when it was done, in seconds since the begin."""

    def add(self, done: int, seconds: float, now: float | None = None) -> None:
        """Notes that one process has done `done` more in `seconds`."""
        self.done += done
        self._latest = done
        self._busy += seconds
        self._elapsed = (time.monotonic() if now is None else now) - self.began
        self._first = self._first or (done, self._elapsed)

    @property
    def rate(self) -> float | None:
        """Estimated rate per second: that of processes while they work, but no more than what is
        done and may be under way."""
        if not self.done or self._elapsed <= 0:
            return None
        if self.processes == 1:
            return self._rate_of_one()
        most = (self.done + (self.processes - 1) * self._latest) / self._elapsed
        return min(most, self.processes * self.done / self._busy) if self._busy > 0 else most

    def _rate_of_one(self) -> float:
        """The rate of a process that is alone: of all parts but the first, if there are more; of
        that, of the time that it worked on it, where that is known."""
        first, at = self._first or (0, 0.0)
        if self.done > first and self._elapsed > at:
            return (self.done - first) / (self._elapsed - at)
        return self.done / min(self._elapsed, self._busy or self._elapsed)

    def left(self, now: float | None = None) -> float | None:
        """Seconds until all is done."""
        rate = self.rate
        if rate is None:
            return None
        since = (time.monotonic() if now is None else now) - self.began
        if self.processes == 1:
            return max(0.0, (self.total - self.done) / rate - (since - self._elapsed))
        return max(0.0, self.total / rate - since)


__all__ = ["Pace"]
