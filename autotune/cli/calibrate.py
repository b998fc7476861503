"""`autotune calibrate`."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.measurements import add_measurements, measurements
from autotune.cli.options import names_in
from autotune.cli.output import Output, add_json_option, note
from distir.errors import DistirError
from distir.files import write_text

if TYPE_CHECKING:
    from autotune.calibration import Calibration, Constant, Priced
    from autotune.validation import Case, Exclusion

UNTIMED = "no measured time"
"""The reason for which a row that only says how much memory was taken tells no constant."""

SUMMARY = "Fit the constants of the cost model to measured runs, and judge them on unseen ones."


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    add_measurements(parser)
    parser.add_argument(
        "--hardware",
        default=argparse.SUPPRESS,
        metavar="A,B,…",
        help="only rows of these families of devices, such as A100,H100 (default: all)",
    )
    parser.add_argument(
        "--constants",
        default=argparse.SUPPRESS,
        metavar="A,B,…",
        help="fit only these (default: all that the rows determine)",
    )
    parser.add_argument(
        "--stack",
        default="fsdp-eager",
        metavar="STACK",
        help="the software stack from which the written one takes its facts",
    )
    parser.add_argument(
        "--output",
        default=argparse.SUPPRESS,
        metavar="FILE.toml",
        help="write the fitted constants as a software stack, which --stack reads",
    )
    parser.add_argument(
        "--products",
        default=argparse.SUPPRESS,
        metavar="FILE.toml",
        help="write the time of each matrix product of the runs, by shape, as a table; the stack "
        "that --output writes names it, otherwise it is for the stacks that come with distir",
    )
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Fits, writes, reports, and returns the exit status."""
    output = Output(arguments, "output", "products")
    path: str | None = getattr(arguments, "output", None)
    with output.working():
        rows, left_out, calibration, doubted = _calibration(arguments)
        if hasattr(arguments, "products"):
            with output.saving():
                _write_products(rows, calibration, arguments)
        if path is not None:
            with output.saving():
                _write(path, calibration, doubted, arguments)
    plain = {"file": arguments.file, **calibration.to_dict(), "rows_excluded": _counts(left_out)}
    plain["doubts"] = doubted
    output.write(plain, lambda: _shown(arguments, calibration, left_out, doubted))
    return 0


def _counts(left_out: Sequence[Exclusion]) -> dict[str, int]:
    """How many rows were left out, by reason."""
    return dict(Counter(each.reason for each in left_out).most_common())


def _calibration(
    arguments: argparse.Namespace,
) -> tuple[list[Priced], list[Exclusion], Calibration, list[str]]:
    """The rows that have a time and a plan, those that have not, what the first say of the
    constants, and what is doubted of their times. Raises `DistirError` if none has."""
    from autotune.calibration import calibrate_priced, doubts, one_device, price
    from autotune.validation import Exclusion

    cases, left_out = measurements(arguments)
    if hasattr(arguments, "hardware"):
        cases = _on_hardware(cases, names_in(arguments.hardware))
    constants = _constants(arguments)
    timed = [case for case in cases if case.measured.seconds is not None]
    rows, refused = price(timed, note)
    left_out += [Exclusion(each.row, UNTIMED) for each in cases if each.measured.seconds is None]
    left_out += refused
    if not rows:
        reasons = "; ".join(f"{count} x {why}" for why, count in _counts(left_out).items())
        raise DistirError(
            f"{arguments.file}: no row has a measured time that can be predicted, so there is "
            f"nothing to fit: {reasons or 'it has no rows'}"
        )
    if hasattr(arguments, "products"):
        one_device(rows)  # fitting takes long
    doubted = doubts(rows)
    for said in doubted:
        note(said)  # fitting takes long
    try:
        return rows, left_out, calibrate_priced(rows, constants, note), doubted
    except DistirError as error:
        if not doubted:
            raise
        # Such times are the likely reason, and notes may be off.
        raise DistirError(" ".join([f"{error}.", *doubted])) from error


def _write_products(
    rows: list[Priced], calibration: Calibration, arguments: argparse.Namespace
) -> None:
    """Writes the table of products, made with the constants that it is to be used with."""
    from autotune.calibration import products_of_runs
    from distir.cost import products_text

    written = hasattr(arguments, "output")
    values = calibration.of_software if written else {}
    table = products_of_runs(rows, values, note)
    path = arguments.products
    write_text(path, products_text(table, f"from the runs of {Path(arguments.file).name}"))
    note(f"wrote {path}: {len(table.points):,} products on {table.device}")


def _on_hardware(cases: list[Case], wanted: list[str]) -> list[Case]:
    """The cases on one of the wanted families of devices, named in full or by the first word."""

    def names(case: Case) -> set[str]:
        family = case.hardware.family
        return {family, family.split(maxsplit=1)[0]}

    known: set[str] = set[str]().union(*map(names, cases))
    for name in wanted:
        if name not in known:
            raise DistirError(
                f"no usable row has the hardware {name!r}; the usable rows have "
                f"{', '.join(sorted(known))}"
            )
    return [case for case in cases if not names(case).isdisjoint(wanted)]


def _constants(arguments: argparse.Namespace) -> list[Constant] | None:
    """The constants asked for, or None for all."""
    if not hasattr(arguments, "constants"):
        return None
    from autotune.calibration import known_constants
    from distir.errors import UnknownNameError

    known = {each.name: each for each in known_constants()}
    wanted = names_in(arguments.constants)
    for name in wanted:
        if name not in known:
            raise UnknownNameError("constant", name, known)
    return [known[name] for name in wanted]


def _write(
    path: str, calibration: Any, doubted: Sequence[str], arguments: argparse.Namespace
) -> None:
    from autotune.calibration import stack_text
    from distir.cost import load_stack

    base = load_stack(arguments.stack)
    products = getattr(arguments, "products", None)
    beside = products and os.path.relpath(products, Path(path).parent)
    runs = Path(arguments.file).name
    text = stack_text(calibration, base, Path(path).stem, runs, beside, doubted)
    write_text(path, text + "\n")
    note(f"wrote {path}; use it with --stack {path}")


def _shown(
    arguments: argparse.Namespace,
    calibration: Any,
    left_out: Sequence[Exclusion],
    doubted: Sequence[str],
) -> Any:
    from autotune.reports.calibration import calibration_report

    return calibration_report(arguments.file, calibration, left_out, doubted)
