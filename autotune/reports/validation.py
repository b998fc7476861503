"""The report of predictions against measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.rendering import plain_table
from autotune.reports.quantities import narrow_heading
from autotune.validation.cases import Exclusion
from autotune.validation.predict import PredictedRow
from autotune.validation.report import Report
from autotune.validation.statistics import Statistics, mean_or_none
from distir.units import percent, short_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_HEADS = {
    "mape": "mean\nerror",
    "median_ape": "median\nerror",
    "bias": "bias",
    "spearman": "Spear-\nman",
    "regret": "regret",
    "memory_mape": "memory\nerror",
    "oom_recall": "OOM\nrecall",
    "oom_precision": "OOM\nprecision",
}


def validation_report(file: str, report: Report, worst: int) -> RenderableType:
    """Tables of errors, what was left out, what was assumed, and the worst rows."""
    from rich.console import Group

    return Group(*_parts(file, report, worst))


def _parts(file: str, report: Report, worst: int) -> Iterator[RenderableType]:
    from rich.text import Text

    overall = report.overall
    excluded = sum(overall.rows_excluded.values())
    yield Text(f"{file}: {overall.rows_used:,} rows of dense models predicted", style="bold")
    yield from (Text(said, style="yellow") for said in report.doubts)
    if report.source_mean is not None:
        yield Text(f"mean error over sources, each alike: {percent(report.source_mean)}")
    yield from map(Text, _coverages("dense models", report.sources))
    yield from map(Text, _coverages("mixtures of experts", report.moe))
    yield from map(Text, report.unclaimed_memory)
    yield _table("By source", {**report.sources, "all": overall})
    if any(each.rows_used for each in report.moe.values()):
        yield _table("Mixtures of experts, by source", report.moe)
    yield _table("By hardware", report.hardware)
    if excluded or any(each.rows_excluded for each in report.moe.values()):
        yield reasons_table(report.exclusions)
    if worst and report.worst:
        yield _worst(report.worst[:worst])
    yield Text("What was assumed, row by row, is in the JSON (--json FILE).")


def _coverages(what: str, sources: Mapping[str, Statistics]) -> Iterator[str]:
    """A sentence about the share of measured times that lie in their bands."""
    shares = [
        mean_or_none(share for share in of_sources if share is not None)
        for of_sources in (
            [each.band_coverage for each in sources.values()],
            [each.band95_coverage for each in sources.values()],
        )
    ]
    if shares[0] is not None and shares[1] is not None:
        yield (
            f"measured times of {what} within their band: {percent(shares[0])} (of 68 % claimed); "
            f"within the wider one: {percent(shares[1])} (of 95 %), mean over sources"
        )


def _table(title: str, rows: Mapping[str, Statistics]) -> Table:
    table = plain_table(title)
    table.add_column("", no_wrap=True)
    for head in ("used", "left\nout", *_HEADS.values()):
        table.add_column(head, justify="right", no_wrap=True)
    for name, each in rows.items():
        if each.rows_used:
            cells = [_cell(field, getattr(each, field)) for field in _HEADS]
            out = sum(each.rows_excluded.values())
            table.add_row(name, str(each.rows_used), str(out), *cells)
    return table


def _cell(field: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if field == "spearman" else percent(value)


def reasons_table(exclusions: Sequence[Exclusion]) -> Table:
    """Why rows were left out, a line for each reason, the most frequent first."""
    reasons = Counter(each.reason for each in exclusions)
    table = plain_table("Left out")
    table.add_column("rows", justify="right")
    table.add_column("because")
    table.add_column("for example", no_wrap=True, overflow="ellipsis")
    for reason, count in reasons.most_common():
        example = next(each for each in exclusions if each.reason == reason)
        detail = f"{example.row.id}: {example.detail}" if example.detail else example.row.id
        table.add_row(str(count), reason, detail)
    return table


def _worst(outcomes: list[PredictedRow]) -> Table:
    """The rows with the largest errors, and what their predictions are made of."""
    kinds = [
        kind
        for kind in dict.fromkeys(kind for each in outcomes for kind in each.breakdown)
        if any(each.breakdown.get(kind, 0.0) > 0.0 for each in outcomes)
    ]
    table = plain_table("The worst rows")
    table.add_column("row", no_wrap=True)
    table.add_column("strategy", overflow="fold", min_width=16)
    heads = [narrow_heading(kind) for kind in kinds]
    for head in ("measured", "predicted", "error", *heads):
        table.add_column(head, justify="right", no_wrap=True)
    for each in outcomes:
        measured = each.case.measured.seconds
        table.add_row(
            each.case.row.id,
            each.case.strategy.label,
            "-" if measured is None else short_seconds(measured),
            short_seconds(each.seconds),
            percent(each.error or 0.0),
            *(short_seconds(each.breakdown.get(kind, 0.0)) for kind in kinds),
        )
    return table
