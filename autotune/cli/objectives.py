"""`autotune objectives`."""

from __future__ import annotations

import argparse

from autotune.cli.listing import configure, show

__all__ = ["SUMMARY", "configure", "execute"]

SUMMARY = "List the objectives: what a search maximizes or minimizes."


def execute(arguments: argparse.Namespace) -> int:
    """Prints the list."""
    from autotune.objectives import OBJECTIVE_GROUP, simulated_objectives
    from autotune.objectives.measured import MEASURED
    from autotune.objectives.measured import SUMMARY as HOW_MEASURED
    from autotune.plugins import plugin_summaries

    plugins = plugin_summaries(OBJECTIVE_GROUP).items()
    return show(arguments, [*simulated_objectives().items(), (MEASURED, HOW_MEASURED), *plugins])
