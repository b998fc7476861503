"""`autotune schedules`."""

from __future__ import annotations

import argparse

from autotune.cli.listing import configure, show

__all__ = ["SUMMARY", "configure", "execute"]

SUMMARY = "List the pipeline schedules."


def execute(arguments: argparse.Namespace) -> int:
    """Prints the list."""
    from distir.schedules import SCHEDULES

    return show(arguments, [(entry.name, entry.summary) for entry in SCHEDULES])
