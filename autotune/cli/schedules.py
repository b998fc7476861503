"""`autotune schedules`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autotune.cli.listing import configure, show

if TYPE_CHECKING:
    from distir.registry import Entry
    from distir.schedules import ScheduleFamily

__all__ = ["SUMMARY", "configure", "execute"]

SUMMARY = "List the pipeline schedules."


def execute(arguments: argparse.Namespace) -> int:
    """Prints the list."""
    from distir.schedules import SCHEDULES

    def summary(entry: Entry[ScheduleFamily]) -> str:
        return entry.summary + ("" if entry.value.is_simulated else "; not simulated yet")

    return show(arguments, ((entry.name, summary(entry)) for entry in SCHEDULES))
