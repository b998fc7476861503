"""`autotune samplers`."""

from __future__ import annotations

import argparse

from autotune.cli.listing import configure, show

__all__ = ["SUMMARY", "configure", "execute"]

SUMMARY = "List the samplers: how strategies are proposed."


def execute(arguments: argparse.Namespace) -> int:
    """Prints the list."""
    from autotune.plugins import plugin_summaries
    from autotune.samplers import SAMPLER_GROUP, SAMPLERS

    plugins = plugin_summaries(SAMPLER_GROUP).items()
    return show(arguments, [*((entry.name, entry.summary) for entry in SAMPLERS), *plugins])
