"""Predicted against measured seconds, both logarithmic, one colour per source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from autotune.reports.drawing import check_format, draw, new_figure
from autotune.validation.predict import PredictedRow

__all__ = ["check_format", "draw_scatter"]

BAND = 0.1
"""Half width of the band that is drawn around equality."""


def draw_scatter(outcomes: Sequence[PredictedRow], path: str) -> None:
    """Draws all outcomes with a time to a file; its ending says how."""
    draw(_figure(outcomes), path, "Predicted and measured")


def _figure(outcomes: Sequence[PredictedRow]) -> Any:
    figure = new_figure((9, 7))
    from matplotlib import colormaps

    axes = figure.subplots()
    timed = [each for each in outcomes if each.case.measured.seconds is not None]
    groups = sorted({each.case.row.group for each in timed})
    colours = cast("Sequence[Any]", cast("Any", colormaps["tab20"]).colors)
    for index, group in enumerate(groups):
        own = [each for each in timed if each.case.row.group == group]
        axes.scatter(
            [each.case.measured.seconds for each in own],
            [each.seconds for each in own],
            s=12,
            alpha=0.7,
            color=colours[index % len(colours)],
            marker="o^s"[index // len(colours) % 3],
            label=f"{group} ({len(own)})",
        )
    if timed:
        measured = [each.case.measured.seconds or 0.0 for each in timed]
        ends = [min(measured), max(measured)]
        axes.plot(ends, ends, color="black", linewidth=0.8)
        low, high = ([end * (1 + sign * BAND) for end in ends] for sign in (-1, 1))
        axes.fill_between(ends, low, high, color="black", alpha=0.1, linewidth=0)
        axes.legend(fontsize=7, loc="upper left")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="measured seconds per iteration",
        ylabel="predicted seconds per iteration",
        title="Predicted against measured; the band is ±10 %",
    )
    return figure
