"""The report of predictions against measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

from autotune.rendering import plain_table
from autotune.reports.quantities import narrow_heading
from autotune.validation.cases import Exclusion
from autotune.validation.predict import PredictedRow
from autotune.validation.report import Report
from autotune.validation.statistics import Statistics, mean_or_none
from distir.units import counted, percent, short_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

TEXTS_TOLD = 3
"""Texts that are told of those for which rows were left out."""

PARTS_TOLD = 2
"""Parts of a prediction that are told of the worst rows."""

TEXT_WIDTH = 60
"""Characters that are told of each."""

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
    yield Text(
        f"{file}: {counted(overall.rows_used, 'row')} of dense models predicted", style="bold"
    )
    yield from (Text(said, style="yellow") for said in report.doubts)
    if report.source_mean is not None:
        yield Text(f"mean error over sources, each alike: {percent(report.source_mean)}")
    yield from map(Text, _coverages("dense models", report.sources))
    yield from map(Text, _coverages("mixtures of experts", report.moe))
    yield from map(Text, report.unclaimed_memory)
    if overall.rows_used:
        yield _table("By source", {**report.sources, "all": overall})
    if any(each.rows_used for each in report.moe.values()):
        yield _table("Mixtures of experts, by source", report.moe)
    if overall.rows_used:
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
            f"measured times of {what} that lie within their band: {percent(shares[0])} (68 % are "
            f"claimed); within the wider band: {percent(shares[1])} (95 % are claimed), mean over "
            "sources"
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
    by_reason: dict[str, list[Exclusion]] = {}
    for each in exclusions:
        by_reason.setdefault(each.reason, []).append(each)
    table = plain_table("Left out")
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("because", min_width=20)
    table.add_column("for example", overflow="fold")
    for reason, some in sorted(by_reason.items(), key=lambda each: -len(each[1])):
        table.add_row(str(len(some)), reason, _examples(some))
    return table


def _examples(exclusions: Sequence[Exclusion]) -> str:
    """A row that was left out, and the texts for which most were."""
    texts = Counter(each.detail for each in exclusions if each.detail)
    if not texts:
        return exclusions[0].row.id
    told = [
        f"{shorten(text, TEXT_WIDTH, placeholder=' …')} ({count} rows)"
        if count > 1
        else shorten(text, TEXT_WIDTH, placeholder=" …")
        for text, count in texts.most_common(TEXTS_TOLD)
    ]
    more = len(texts) - len(told)
    others = f"; {counted(more, 'other text')}" if more else ""
    first = next(each for each in exclusions if each.detail == texts.most_common(1)[0][0])
    return f"{first.row.id}: {'; '.join(told)}{others}"


def _largest_parts(seconds: Mapping[str, float]) -> str:
    """What a prediction is made of most: `compute 3.1 s, tp comm 420 ms`."""
    largest = sorted(seconds, key=lambda kind: -seconds[kind])[:PARTS_TOLD]
    named = ((" ".join(narrow_heading(kind).split()), seconds[kind]) for kind in largest)
    return ", ".join(f"{name} {short_seconds(part)}" for name, part in named if part > 0)


def _worst(outcomes: list[PredictedRow]) -> Table:
    """The rows with the largest errors, and what their predictions are made of most."""
    table = plain_table("The worst rows")
    table.add_column("row", overflow="fold", min_width=8)
    table.add_column("strategy", overflow="fold", min_width=16)
    for head in ("measured", "predicted", "error"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("of that", overflow="fold")
    for each in outcomes:
        measured = each.case.measured.seconds
        table.add_row(
            each.case.row.id,
            each.case.strategy.label,
            "-" if measured is None else short_seconds(measured),
            short_seconds(each.seconds),
            percent(each.error or 0.0),
            _largest_parts(each.breakdown),
        )
    return table
