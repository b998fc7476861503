"""`autotune clusters`."""

from __future__ import annotations

import argparse

from autotune.cli.listing import configure, show

__all__ = ["SUMMARY", "configure", "execute"]

SUMMARY = "List the clusters that come with distir."


def execute(arguments: argparse.Namespace) -> int:
    """Prints the list."""
    from distir.cost import cluster_names, load_cluster

    return show(arguments, ((name, load_cluster(name).summary) for name in cluster_names()))
