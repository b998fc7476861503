"""A simulated plan in short, as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from distir.shares import share_heading
from distir.units import Unit, short_bytes, short_seconds

COLORS = ("#3b78e7", "#ef8a3c", "#e2b53a", "#c5539a", "#8f99a8", "#4aab67", "#8867d6", "#2ba59b")
MOST_ROWS = 16
"""Stages that get a row each; of longer pipelines the first."""


def plan_html(
    title: str,
    lines: Sequence[str],
    seconds: Sequence[Mapping[str, float]],
    memory: Sequence[Mapping[str, float]],
) -> str:
    """A title, sentences, and per stage bars of its seconds and of its bytes by share."""
    root = Element("div", style="max-width: 60rem; line-height: 1.45")
    SubElement(root, "div", style="font-size: 1.15em; font-weight: 600").text = title
    for line in lines:
        SubElement(root, "div").text = line
    _bars(root, "Seconds per stage", seconds, short_seconds)
    _bars(root, "Memory per stage, at its peak", memory, short_bytes)
    return tostring(root, encoding="unicode", method="html")


def _bars(root: Element, title: str, rows: Sequence[Mapping[str, float]], unit: Unit) -> None:
    names = [
        n for n in dict.fromkeys(n for row in rows for n in row) if any(r.get(n) for r in rows)
    ]
    colors = {name: COLORS[at % len(COLORS)] for at, name in enumerate(names)}
    longest = max((sum(row.values()) for row in rows), default=0.0) or 1.0
    SubElement(root, "div", style="margin: .7em 0 .2em; font-weight: 600").text = title
    legend = SubElement(root, "div", style="font-size: .85em")
    for name in names:
        entry = SubElement(legend, "span", style="white-space: nowrap; margin-right: .9em")
        box = "display: inline-block; width: .8em; height: .8em; margin-right: .3em; background: "
        SubElement(entry, "span", style=box + colors[name]).tail = share_heading(name)
    for stage, row in enumerate(rows[:MOST_ROWS]):
        line = SubElement(
            root, "div", style="display: flex; align-items: center; gap: .6em; font-size: .85em"
        )
        SubElement(line, "span", style="flex: 0 0 5em").text = f"stage {stage}"
        bar = SubElement(line, "span", style="flex: 1; display: flex; height: 1.1em")
        for name in names:
            width = 100 * row.get(name, 0.0) / longest
            said = f"{share_heading(name)}: {unit(row.get(name, 0.0))}"
            style = f"flex: 0 0 {width:.2f}%; background: {colors[name]}"
            SubElement(bar, "span", style=style, title=said)
        SubElement(line, "span", style="flex: 0 0 6em").text = unit(sum(row.values()))


__all__ = ["plan_html"]
