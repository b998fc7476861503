"""What can go wrong, as a tree.

    DistirError
    ├── ShapeError             operands of an op do not fit together
    ├── VerificationError      a function breaks a rule of the IR
    ├── ImportModelError       a model file or function cannot be read
    │   └── UnsupportedOpError     … because of an op that is not known here
    ├── TransformError         a transform's requirement does not hold
    ├── StrategyError          a strategy cannot be applied to this model, batch or cluster
    ├── ScheduleError          a schedule is not executable
    │   └── DeadlockError          … because ranks wait for each other
    ├── ClusterError           a hardware description is incomplete or inconsistent
    └── UnknownNameError       a name is not in a registry

A message says what was found, what was expected and what to try.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DistirError(Exception):
    """Base of every error that is meant for the user."""


class ShapeError(DistirError, ValueError):
    """Operands of an op do not fit together."""


class VerificationError(DistirError, ValueError):
    """A function breaks a rule of the IR."""


class ImportModelError(DistirError, ValueError):
    """A model file, configuration or function cannot be read."""


class UnsupportedOpError(ImportModelError):
    """A model uses an op that is not known here."""


class TransformError(DistirError, ValueError):
    """A transform's requirement does not hold."""


class StrategyError(DistirError, ValueError):
    """A strategy cannot be applied to this model, batch or cluster."""


class ScheduleError(DistirError, ValueError):
    """A schedule is not executable."""


class DeadlockError(ScheduleError):
    """Ranks of a schedule wait for each other."""


class ClusterError(DistirError, ValueError):
    """A hardware description is incomplete or inconsistent."""


class UnknownNameError(DistirError, LookupError):
    """A name is not in a registry; the message lists the near ones, or all if there are few."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=5, cutoff=0.5)
        shown = [n for n in names if n.lower() in near] if near else names
        lead = "did you mean" if near else "known are"
        super().__init__(f"unknown {kind} {name!r}; {lead}: {', '.join(shown) or '(none)'}")
        self.kind = kind
        self.name = name
