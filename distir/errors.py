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
    ├── ArgumentError          a Python program hands in what is not of the expected kind
    └── UnknownNameError       a name is not in a registry

A message says what was found, what was expected and what to try. However long the data are that
it repeats, a message has no more than some thousand characters.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable

from distir.limits import MOST_MESSAGE_CHARACTERS, MOST_NAME_CHARACTERS, MOST_WORD_CHARACTERS


class DistirError(Exception):
    """Base of every error that is meant for the user."""

    def __init__(self, *details: object) -> None:
        super().__init__(*(brief(each) if isinstance(each, str) else each for each in details))


_LONG_WORD = re.compile(rf"\S{{{MOST_WORD_CHARACTERS + 1},}}")


def brief(text: str) -> str:
    """The text without the middle of words, and of the whole, that are too long for a message."""
    if len(text) <= MOST_WORD_CHARACTERS:
        return text
    ends = 16 * MOST_MESSAGE_CHARACTERS  # a bound on the work for texts of gigabytes
    text = _without_middle(text, ends)
    text = _LONG_WORD.sub(lambda word: _without_middle(word[0], MOST_WORD_CHARACTERS), text)
    return _without_middle(text, MOST_MESSAGE_CHARACTERS)


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    left_out = f" … {len(text) - most:,} characters … "
    half = most // 2 - len(left_out)
    return f"{text[:half]}{left_out}{text[-half:]}"


def shown(value: object) -> str:
    """`repr(value)`, without what makes it long: for messages that repeat what data say. It takes
    no longer for values that contain themselves, or one value many times."""
    return _SHOWN.repr(value)


class _Shown(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        """The number; of one that Python refuses to write down, its length."""
        if x.bit_length() < 256:
            return repr(x)
        return f"a number of some {x.bit_length() * 3 // 10:,} digits"


_SHOWN = _Shown()
_SHOWN.maxstring = _SHOWN.maxother = 120
_SHOWN.maxlevel = 3


def checked_name(name: str, what: str, error: type[DistirError]) -> str:
    """The name; raises `error` if it is longer than names are. `what` says in the message whose
    name it is."""
    if len(name) > MOST_NAME_CHARACTERS:
        raise error(
            f"the name of {what} has {len(name):,} characters, {shown(name)}; expected at most "
            f"{MOST_NAME_CHARACTERS}"
        )
    return name


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


class ArgumentError(DistirError, TypeError):
    """A Python program hands in a value that is not of the expected kind."""


class UnknownNameError(DistirError, LookupError):
    """A name is not in a registry; the message lists the near ones, or all if there are few."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(
            str(name)[:MOST_NAME_CHARACTERS].lower(), [n.lower() for n in names], n=5, cutoff=0.5
        )
        listed = [n for n in names if n.lower() in near] if near else names
        lead = "did you mean" if near else "expected one of"
        super().__init__(f"unknown {kind} {shown(name)}; {lead}: {', '.join(listed) or '(none)'}")
        self.kind = kind
        self.name = str(name)
