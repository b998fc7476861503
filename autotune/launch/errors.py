"""What can go wrong between a strategy and the files of a framework."""

from __future__ import annotations

from distir.errors import DistirError


class LaunchError(DistirError, ValueError):
    """A strategy cannot be stated for a framework, or a file of a framework cannot be read."""


class UnstatedError(LaunchError):
    """An option is needed that a file does not state."""
