"""What `validate` and `calibrate` have in common: a file of measured runs, and which rows count."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autotune.cli.options import names_in
from distir.errors import DistirError

if TYPE_CHECKING:
    from autotune.validation import Case, Exclusion


def add_measurements(parser: argparse.ArgumentParser) -> None:
    """The file, and `--source`."""
    parser.add_argument(
        "file", metavar="FILE.csv", help="measured runs, one per row (columns: docs/validation.md)"
    )
    parser.add_argument(
        "--source",
        default=argparse.SUPPRESS,
        metavar="A,B,…",
        help="only rows from these source groups",
    )


def measurements(arguments: argparse.Namespace) -> tuple[list[Case], list[Exclusion]]:
    """The rows asked for that can be predicted, and those that cannot; raises `DistirError`."""
    from autotune.validation import Case, Exclusion, make_case, read_rows, without_copies

    rows = read_rows(arguments.file)
    if hasattr(arguments, "source"):
        wanted = names_in(arguments.source)
        known = {row.group: None for row in rows}
        for name in wanted:
            if name not in known:
                raise DistirError(
                    f"{arguments.file} has no source group {name!r}; it has "
                    f"{', '.join(sorted(known)) or 'no rows'}"
                )
        rows = [row for row in rows if row.group in wanted]
    rows, copies = without_copies(rows)
    made = [make_case(row) for row in rows]
    return (
        [each for each in made if isinstance(each, Case)],
        [*copies, *(each for each in made if isinstance(each, Exclusion))],
    )
