"""The option `--report`: the result as one HTML file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.page.contents import Page
    from autotune.page.reports import Told


def add_report_option(parser: argparse.ArgumentParser) -> None:
    """The option of a command whose result has a report."""
    parser.add_argument(
        "--report",
        type=_html_file,
        default=argparse.SUPPRESS,
        metavar="FILE.html",
        help="write a report with charts, as one HTML file that works without a network",
    )


def _html_file(text: str) -> str:
    """The name of a file that browsers take for HTML; one without an ending may have any name."""
    suffix = Path(text).suffix.lower()
    if suffix not in ("", ".html", ".htm"):
        raise argparse.ArgumentTypeError(
            f"a report is an HTML file; expected a name such as {Path(text).stem}.html, not {text}"
        )
    return text


def is_wanted(arguments: argparse.Namespace) -> bool:
    """Whether the arguments ask for a report."""
    return hasattr(arguments, "report")


def write_report(
    arguments: argparse.Namespace, page: Callable[[Told], Page], launch: str | None = None
) -> None:
    """Writes the report to the file that the arguments name, if they name one. `launch` is the
    command that starts the best plan, where there is one."""
    if not is_wanted(arguments):
        return
    from autotune.cli.output import note
    from autotune.page.render import write_page
    from autotune.page.reports import Told

    write_page(page(Told(arguments.command_line, launch)), arguments.report)
    note(f"wrote {arguments.report}; open it in a browser")
