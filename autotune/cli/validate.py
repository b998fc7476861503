"""`autotune validate`."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.cli.measurements import add_measurements, measurements
from autotune.cli.options import positive
from autotune.cli.output import Output, add_json_option, note
from autotune.cli.report import add_report_option, write_report

if TYPE_CHECKING:
    from autotune.page.contents import Page
    from autotune.page.reports import Told

SUMMARY = "Compare predictions with measured runs: error, ranking, regret and memory, by source."


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    add_measurements(parser)
    parser.add_argument(
        "--stack",
        default=argparse.SUPPRESS,
        metavar="STACK",
        help="cost every row with this software stack (a name or a TOML file), instead of the one "
        "that its source implies",
    )
    parser.add_argument(
        "--products",
        default=argparse.SUPPRESS,
        metavar="FILE.toml",
        help="measured matrix products, which take the place of rates where they apply; a stack "
        "may name such a file itself",
    )
    parser.add_argument(
        "--worst", type=positive, default=10, metavar="N", help="rows to show, worst first"
    )
    parser.add_argument(
        "--plot",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="draw predicted against measured seconds to a file: .png, .svg, .pdf or .html",
    )
    add_report_option(parser)
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Predicts, compares, reports, and returns the exit status."""
    output = Output(arguments, "plot", "report")
    plot: str | None = getattr(arguments, "plot", None)
    if plot is not None:
        from autotune.reports.scatter import check_format

        check_format(plot)
    with output.working():
        report = _report(arguments)
        if plot is not None:
            from autotune.reports.scatter import draw_scatter

            with output.saving():
                draw_scatter(report.outcomes, plot)
                note(f"wrote {plot}")
        with output.saving():
            write_report(arguments, partial(_page, arguments.file, report))
    output.write({"file": arguments.file, **report.to_dict()}, lambda: _shown(arguments, report))
    if not report.outcomes:
        note(f"{arguments.file}: no row has a measured time that can be predicted", is_error=True)
        return 1
    return 0


def _page(file: str, report: Any, told: Told) -> Page:
    from autotune.page.validation import validation_page

    return validation_page(file, report, told)


def _report(arguments: argparse.Namespace) -> Any:
    from autotune.validation import make_report, predict
    from distir.cost import load_products

    cases, excluded = measurements(arguments)
    products = load_products(arguments.products) if hasattr(arguments, "products") else None
    stack = getattr(arguments, "stack", None)
    outcomes, refused = predict(cases, stack=stack, products=products)
    return make_report(outcomes, [*excluded, *refused])


def _shown(arguments: argparse.Namespace, report: Any) -> Any:
    from autotune.reports.validation import validation_report

    return validation_report(arguments.file, report, arguments.worst)
