"""Counts work instead of timing it: a bound on calls holds on any machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


class TooManyCallsError(Exception):
    """A function made more calls than it may."""


def calls_of(function: Callable[[], object], most: int = sys.maxsize) -> int:
    """How many calls, of Python and of C functions, a function makes. Ends the function with a
    `TooManyCallsError` as soon as there are more than `most`, and raises it."""
    count = 0

    def counted(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")
        if count > most:
            raise TooManyCallsError

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(before)
    if count > most:  # the function may have caught the error
        raise TooManyCallsError(f"more than {most} calls")
    return count
