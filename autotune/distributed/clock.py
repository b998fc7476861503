"""What time it is in a process that is measured: by its host, or by the stream of its GPU.

A GPU runs behind its host, so a moment of its stream is an event, whose time is read after the
step.
"""

# pyright: basic
from __future__ import annotations

import platform
import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from autotune.distributed.backend import load_torch

_RSS_BYTES = 1 if sys.platform == "darwin" else 1024
"""Unit of `ru_maxrss`."""
_MILLISECONDS = 1e-3


class Clock(Protocol):
    """Tells moments within a step. `device` is the hardware whose time it tells."""

    @property
    def device(self) -> str: ...

    def begin_step(self) -> float:
        """The time, in seconds, when all that was begun before is done."""
        ...

    def end_step(self) -> float:
        """The time, in seconds, when all that was begun in the step is done."""
        ...

    def now(self) -> Any:
        """A moment, to be read after the step."""
        ...

    def read(self, moment: Any) -> float:
        """The time of a moment, in seconds, on the axis of `begin_step`."""
        ...

    def peak_bytes(self) -> float:
        """The most memory that was taken: of a host by the process with all its libraries, of a GPU
        by its tensors."""
        ...


@dataclass(frozen=True, slots=True)
class HostClock:
    """The host's clock."""

    device: str = platform.processor() or platform.machine()

    def begin_step(self) -> float:
        return time.perf_counter()

    end_step = now = begin_step

    def read(self, moment: Any) -> float:
        return moment

    def peak_bytes(self) -> float:
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_BYTES)


@dataclass(frozen=True, slots=True)
class ProcessorClock(HostClock):
    """The time for which this process had a processor: that of other programs is not counted. It
    tells nothing of waiting."""

    def begin_step(self) -> float:
        return time.process_time()

    end_step = now = begin_step


@dataclass(slots=True)
class StreamClock:
    """The clock of the stream in which a GPU computes."""

    _torch: Any = field(default_factory=load_torch)
    _begin: Any = None
    _start: float = 0.0

    @property
    def device(self) -> str:
        return self._torch.cuda.get_device_name()

    def begin_step(self) -> float:
        self._torch.cuda.synchronize()
        self._begin = self.now()
        self._start = time.perf_counter()
        return self._start

    def end_step(self) -> float:
        self._torch.cuda.synchronize()
        return time.perf_counter()

    def now(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self, moment: Any) -> float:
        return self._start + _MILLISECONDS * self._begin.elapsed_time(moment)

    def peak_bytes(self) -> float:
        return float(self._torch.cuda.max_memory_allocated())


def clock_of(where: str) -> Clock:
    """The clock for what computes there."""
    return StreamClock() if where == "cuda" else HostClock()


def busy_clock_of(where: str) -> Clock:
    """The clock for work that waits for nobody."""
    return StreamClock() if where == "cuda" else ProcessorClock()


__all__ = ["Clock", "HostClock", "ProcessorClock", "StreamClock", "busy_clock_of", "clock_of"]
