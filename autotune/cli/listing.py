"""What the subcommands that list things have in common."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from autotune.cli.output import Output, add_json_option

if TYPE_CHECKING:
    from rich.table import Table


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the only option of a list."""
    add_json_option(parser)


def show(arguments: argparse.Namespace, entries: Iterable[tuple[str, str]]) -> int:
    """Prints names and lines; as JSON a list of `name` and `summary`."""
    output = Output(arguments)
    rows = list(entries)
    output.write(
        [{"name": name, "summary": summary} for name, summary in rows], lambda: _table(rows)
    )
    return 0


def _table(rows: list[tuple[str, str]]) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True, style="bold")
    for name, summary in rows:
        table.add_row(name, summary)
    return table
