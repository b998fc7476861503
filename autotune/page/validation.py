"""The report, as a page, of predictions against measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune.page.contents import Block, Chart, Code, Fact, Page, Section, Table, Text
from autotune.reports.quantities import lost
from distir.units import percent, short_seconds

if TYPE_CHECKING:
    from autotune.page.reports import Told
    from autotune.validation.report import Report
    from autotune.validation.statistics import Statistics

WORST = 20
"""Rows with the largest errors that are listed."""


def errors(report: Report) -> dict[str, Any]:
    """Measured and predicted seconds of every row that has a time, by source."""
    groups: dict[str, list[list[Any]]] = {}
    for each in report.outcomes:
        measured = each.case.measured.seconds
        if measured is not None:
            label = f"{each.case.row.id} {each.case.strategy.label}"
            groups.setdefault(each.case.row.group, []).append([measured, each.seconds, label])
    return {"groups": [{"label": name, "points": rows} for name, rows in sorted(groups.items())]}


def validation_page(file: str, report: Report, told: Told) -> Page:
    """The report of `autotune validate`."""
    overall = report.overall
    rows = f"{len(report.outcomes):,} rows of {file} predicted"
    answer = rows if overall.mape is None else f"{rows}: mean error {percent(overall.mape)}"
    facts = [
        Fact(name, value)
        for name, value in (
            ("mean error over sources", _said(report.source_mean)),
            ("mean error over rows", _said(overall.mape)),
            ("bias", _said(overall.bias)),
            ("rank correlation", "-" if overall.spearman is None else f"{overall.spearman:.3f}"),
        )
    ]
    drawn = errors(report)
    blocks: list[Block] = [Text(said) for said in report.doubts]
    if drawn["groups"]:
        caption = "On the dashed line both are equal."
        blocks.append(Chart("scatter", "Predicted against measured", drawn, caption, 520))
    blocks.append(_table("By source", {**report.sources, "all": overall}))
    if any(each.rows_used for each in report.moe.values()):
        blocks.append(_table("Mixtures of experts, by source", report.moe))
    blocks.append(_table("By hardware", report.hardware))
    blocks += [Text(said) for said in report.unclaimed_memory]
    worst = [
        [
            each.case.row.id,
            each.case.row.group,
            each.case.strategy.label,
            short_seconds(each.case.measured.seconds or 0.0),
            short_seconds(each.seconds),
            f"{100 * (each.error or 0.0):+.1f} %",
        ]
        for each in report.worst[:WORST]
    ]
    head = ("row", "source", "strategy", "measured", "predicted", "error")
    sections = [
        Section("errors", "Errors", blocks),
        Section("worst", "The worst rows", [Table(head, worst, texts=3)]),
        Section("assumed", "What was assumed", _assumed(report, told)),
    ]
    return Page(f"Predictions for {file}", f"{answer}.", True, facts, (), sections)


def _assumed(report: Report, told: Told) -> list[Block]:
    blocks: list[Block] = []
    if told.command is not None:
        blocks += [Text("To reproduce:"), Code(told.command)]
    rows = [
        [group, said, str(count)]
        for group, counts in report.assumptions.items()
        for said, count in counts.items()
    ]
    return [*blocks, Table(("source", "what", "rows"), rows, texts=2)]


def _table(caption: str, of: Mapping[str, Statistics]) -> Table:
    head = ("", "rows", "mean error", "median", "bias", "rank correlation", "memory error")
    rows = [
        [
            name,
            str(each.rows_used),
            _said(each.mape),
            _said(each.median_ape),
            _said(each.bias),
            "-" if each.spearman is None else f"{each.spearman:.3f}",
            _said(each.memory_mape),
        ]
        for name, each in of.items()
        if each.rows_used
    ]
    return Table(head, rows, caption)


def _said(fraction: float | None) -> str:
    if fraction is None:
        return "-"
    return lost(fraction) if fraction >= 0 else percent(fraction)
