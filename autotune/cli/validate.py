"""`autotune validate`."""

from __future__ import annotations

import argparse
from typing import Any

from autotune.cli.options import positive
from autotune.cli.output import Output, add_json_option, check_writable, note
from distir.errors import DistirError

SUMMARY = "Compare predictions with measured runs: error, ranking, regret and memory, by source."


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    parser.add_argument(
        "file", metavar="FILE.csv", help="measured runs, one a row (columns: docs/validation.md)"
    )
    parser.add_argument(
        "--stack",
        default=argparse.SUPPRESS,
        metavar="PROFILE",
        help="cost every row with this software stack (a name or a TOML file), instead of the one "
        "that its source tells",
    )
    parser.add_argument(
        "--source",
        default=argparse.SUPPRESS,
        metavar="A,B,…",
        help="only rows of these source groups",
    )
    parser.add_argument(
        "--worst", type=positive, default=10, metavar="N", help="rows to show, the worst first"
    )
    parser.add_argument(
        "--plot",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="draw predicted against measured seconds to a file: .png, .svg, .pdf or .html",
    )
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Predicts, compares, reports, and returns the exit status."""
    output = Output(arguments)
    plot: str | None = getattr(arguments, "plot", None)
    if plot is not None:
        from autotune.reports.scatter import check_format

        check_writable(plot)
        check_format(plot)
    with output.quiet():
        report = _report(arguments)
        if plot is not None:
            from autotune.reports.scatter import draw_scatter

            draw_scatter(report.outcomes, plot)
            note(f"wrote {plot}")
    output.write({"file": arguments.file, **report.to_dict()}, lambda: _shown(arguments, report))
    return 0


def _report(arguments: argparse.Namespace) -> Any:
    from autotune.cli.options import names_in
    from autotune.validation import Case, Exclusion, make_case, make_report, predict, read_rows

    rows = read_rows(arguments.file)
    if hasattr(arguments, "source"):
        wanted = names_in(arguments.source)
        known = sorted({row.group for row in rows})
        for name in wanted:
            if name not in known:
                raise DistirError(
                    f"{arguments.file} has no source group {name!r}; it has {', '.join(known)}"
                )
        rows = [row for row in rows if row.group in wanted]
    made = [make_case(row) for row in rows]
    cases = [each for each in made if isinstance(each, Case)]
    excluded = [each for each in made if isinstance(each, Exclusion)]
    outcomes, refused = predict(cases, stack=getattr(arguments, "stack", None))
    return make_report(outcomes, [*excluded, *refused])


def _shown(arguments: argparse.Namespace, report: Any) -> Any:
    from autotune.reports.validation import validation_report

    return validation_report(arguments.file, report, arguments.worst)
