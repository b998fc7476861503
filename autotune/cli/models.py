"""`autotune models`."""

from __future__ import annotations

import argparse

from autotune.cli.listing import configure, show

__all__ = ["SUMMARY", "configure", "execute"]

SUMMARY = "List the models that come with distir."


def execute(arguments: argparse.Namespace) -> int:
    """Prints the list."""
    from distir.models import FAMILIES, ZOO

    return show(arguments, [(each.name, each.summary) for each in (*ZOO, *FAMILIES)])
