"""Predicted against measured seconds, both logarithmic, one colour per source."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from autotune.validation.predict import Outcome
from distir.errors import DistirError
from distir.files import whole_file

FORMATS = (".png", ".svg", ".pdf", ".html")
BAND = 0.1
"""Half width of the band that is drawn around equality."""


def check_format(path: str) -> None:
    """Raises if the file's ending is none that can be drawn."""
    if Path(path).suffix.lower() not in FORMATS:
        raise DistirError(f"{path}: cannot draw that; expected a file in {', '.join(FORMATS)}")


def draw_scatter(outcomes: Sequence[Outcome], path: str) -> None:
    """Draws all outcomes with a time to a file; its ending says how."""
    check_format(path)
    suffix = Path(path).suffix.lower()
    drawn = io.BytesIO()
    _figure(outcomes).savefig(drawn, format="svg" if suffix == ".html" else suffix[1:], dpi=150)
    content = drawn.getvalue()
    if suffix == ".html":
        head = "<!DOCTYPE html><meta charset='utf-8'><title>Predicted and measured</title>"
        content = head.encode() + content[content.index(b"<svg") :]
    with whole_file(path) as file:
        file.write(content)


def _figure(outcomes: Sequence[Outcome]) -> Any:
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DistirError("--plot needs matplotlib: pip install matplotlib") from error
    figure: Any = Figure(figsize=(9, 7), layout="constrained")
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
