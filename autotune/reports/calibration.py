"""The report of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.calibration.calibrate import Calibration, ConstantFit
from autotune.rendering import plain_table
from autotune.reports.validation import reasons_table
from autotune.validation import Exclusion
from distir.units import format_seconds, percent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def calibration_report(
    file: str,
    calibration: Calibration,
    left_out: Sequence[Exclusion],
    doubted: Sequence[str] = (),
) -> RenderableType:
    """The constants, what tells them, the errors by source, why rows were left out, and
    `doubted`: of which measured times it is unlikely that they are seconds of a step."""
    from rich.console import Group
    from rich.text import Text

    rows, others = len(calibration.cases), len(left_out)
    left = f"; {others:,} {'was' if others == 1 else 'were'} left out" if left_out else ""
    return Group(
        Text(
            f"{file}: fitted to {rows:,} rows of {len(calibration.sources)} sources{left}",
            style="bold",
        ),
        *(Text(said, style="yellow") for said in doubted),
        Text(
            f"mean error over sources {percent(calibration.mean_mape)}; on sources that the fit "
            f"has not seen {percent(calibration.mean_unseen_mape)}"
        ),
        _constants(calibration),
        _sources(calibration),
        *([reasons_table(left_out)] if left_out else []),
    )


def _constants(calibration: Calibration) -> Table:
    table = plain_table("Constants")
    table.add_column("", no_wrap=True)
    for head in ("prior", "value", "nine tenths", "sources\nleft out", "narrowed\nby"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("determined by")
    for each in calibration.constants:
        told = ", ".join(f"{name} {share:.0%}" for name, share in list(each.told_by.items())[:3])
        pinned = f" (pinned by {each.pinned_by})" if each.pinned_by else ""
        table.add_row(
            each.name,
            _shown(each, each.prior),
            _shown(each, each.value) if each.fitted else "kept",
            _span(each, each.interval),
            _span(each, each.without_sources),
            percent(each.identified),
            told + pinned if each.fitted else "not determined by the rows",
        )
    return table


def _sources(calibration: Calibration) -> Table:
    table = plain_table("Sources: seen by the fit, and left out of it")
    table.add_column("", no_wrap=True)
    for head in (
        "rows",
        "error",
        "bias",
        "regret",
        "error\nunseen",
        "bias\nunseen",
        "regret\nunseen",
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for name, each in calibration.sources.items():
        cells = (each.mape, each.bias, each.regret)
        unseen = (each.unseen_mape, each.unseen_bias, each.unseen_regret)
        shown = ("-" if value is None else percent(value) for value in (*cells, *unseen))
        table.add_row(name, str(each.rows), *shown)
    return table


def _shown(each: ConstantFit, value: float) -> str:
    return format_seconds(value, digits=3) if each.name.endswith("_seconds") else f"{value:.3g}"


def _span(each: ConstantFit, ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"{_shown(each, ends[0])} … {_shown(each, ends[1])}"
