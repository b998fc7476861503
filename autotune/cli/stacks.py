"""`autotune stacks`."""

from __future__ import annotations

import argparse

from autotune.cli.listing import configure, show

__all__ = ["SUMMARY", "configure", "execute"]

SUMMARY = "List the software stacks that come with distir."


def execute(arguments: argparse.Namespace) -> int:
    """Prints the list."""
    from distir.cost import load_stack, stack_names

    return show(arguments, ((name, load_stack(name).summary) for name in stack_names()))
