"""`autotune targets`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autotune.cli.listing import configure
from autotune.cli.output import Output

if TYPE_CHECKING:
    from autotune.launch import Target

__all__ = ["SUMMARY", "configure", "execute"]

SUMMARY = "List the frameworks that strategies can be written for, and what each of them can state."


def execute(arguments: argparse.Namespace) -> int:
    """Prints the list."""
    from autotune.launch import TARGETS

    output = Output(arguments)
    targets = [entry.value for entry in TARGETS]
    output.write([_plain(target) for target in targets], lambda: _table(targets))
    return 0


def _plain(target: Target) -> dict[str, Any]:
    return {
        "name": target.name,
        "version": target.version,
        "summary": target.summary,
        "stack": target.stack,
        "states": list(target.states),
        "limits": [limit.name for limit in target.all_limits],
    }


def _table(targets: list[Target]) -> Any:
    from rich.table import Table

    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True)
    table.add_column()
    for target in targets:
        states = ", ".join(name.replace("_", " ") for name in target.states)
        table.add_row(target.name, target.version, f"{target.summary}. States {states}.")
    return table
