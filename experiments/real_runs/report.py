"""The table, the statistics and the picture of what was measured and predicted."""

# pyright: basic
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np

from experiments.real_runs.plans import STEPS

COLUMNS = (
    "run", "model", "processes", "predicted_seconds", "least_seconds", "median_seconds",
    "processor_seconds", "load",
)  # fmt: skip
LEAST = "least_seconds"
SIZE, MARGIN = 420, 50
COLOURS = {1: "#1b6ca8", 2: "#c8553d", 4: "#8a8a8a"}

Row = Mapping[str, str]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation: the correlation of ranks, equal values having their mean rank. Not a number
    if either has equal values alone."""
    first, second = _ranks(a), _ranks(b)
    if not np.ptp(first) or not np.ptp(second):
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    found = np.asarray(values)
    return np.array([(found < each).sum() + ((found == each).sum() - 1) / 2 for each in found])


def statistics_of(rows: Sequence[Row], column: str) -> tuple[float, float, float]:
    """Rank correlation, mean error and mean signed error of predictions, against a column."""
    predicted = [float(row["predicted_seconds"]) for row in rows]
    measured = [float(row[column]) for row in rows]
    errors = [p / m - 1 for p, m in zip(predicted, measured, strict=True)]
    return spearman(predicted, measured), mean(map(abs, errors)), mean(errors)


def report_of(rows: Sequence[Row], cores: int, note: str = "") -> tuple[str, str]:
    """The report in Markdown, and the scatter plot as SVG. `note` is what else is to be said of the
    machine."""
    within = [row for row in rows if int(row["processes"]) <= cores]
    beyond = [row for row in rows if int(row["processes"]) > cores]
    loads = [float(row["load"]) for row in rows]
    about = (
        f"{len(rows)} plans, measured on {cores} cores, one thread per process, and predicted "
        "from `autotune profile`, which saw none of them. The least of "
        f"{STEPS} steps counts. The load average was {min(loads):.1f} to {max(loads):.1f} while "
        f"this was measured. {note}"
    )
    lines = [
        "# Real runs",
        "",
        about,
        "",
        "| plans | number | Spearman | mean error | mean signed error |",
        "| --- | --- | --- | --- | --- |",
    ]
    alone = [row for row in within if row["processes"] == "1"]
    groups = [
        ("no more processes than cores", within, LEAST),
        ("of these, on one process", alone, LEAST),
        ("on one process, by the processor's time", alone, "processor_seconds"),
        ("on two processes", [row for row in within if row["processes"] == "2"], LEAST),
        ("more processes than cores", beyond, LEAST),
    ]
    for name, own, column in groups:
        if len(own) > 2:
            rank, error, signed = statistics_of(own, column)
            lines.append(f"| {name} | {len(own)} | {rank:.3f} | {error:.1%} | {signed:+.1%} |")
    lines += ["", "![predicted against measured](scatter.svg)", ""]
    lines += ["| plan | predicted | least | median | error |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        predicted, least = float(row["predicted_seconds"]), float(row["least_seconds"])
        lines.append(
            f"| {row['run']} | {1e3 * predicted:.2f} ms | {1e3 * least:.2f} ms | "
            f"{1e3 * float(row['median_seconds']):.2f} ms | {predicted / least - 1:+.0%} |"
        )
    return "\n".join(lines) + "\n", scatter(rows)


def scatter(rows: Sequence[Row]) -> str:
    """Predicted over measured seconds, both axes logarithmic; a colour per number of processes."""
    points = [
        (float(r["least_seconds"]), float(r["predicted_seconds"]), int(r["processes"]))
        for r in rows
    ]
    every = [value for point in points for value in point[:2]]
    low, high = math.log10(min(every)) - 0.1, math.log10(max(every)) + 0.1

    def place(seconds: float) -> float:
        return (math.log10(seconds) - low) / (high - low) * (SIZE - 2 * MARGIN)

    def x(seconds: float) -> float:
        return MARGIN + place(seconds)

    def y(seconds: float) -> float:
        return SIZE - MARGIN - place(seconds)

    ends = (10**low, 10**high)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
        (
            f'<line x1="{x(ends[0]):.1f}" y1="{y(ends[0]):.1f}" x2="{x(ends[1]):.1f}" '
            f'y2="{y(ends[1]):.1f}" stroke="#bbb"/>'
        ),
    ]
    for power in range(math.ceil(low), math.floor(high) + 1):
        label = f"{1e3 * 10**power:g} ms"
        parts.append(f'<text x="{x(10**power):.1f}" y="{SIZE - MARGIN / 2:.0f}">{label}</text>')
        parts.append(f'<text x="4" y="{y(10**power):.1f}">{label}</text>')
    parts += [
        f'<circle cx="{x(measured):.1f}" cy="{y(predicted):.1f}" r="3" '
        f'fill="{COLOURS.get(processes, "black")}"/>'
        for measured, predicted, processes in points
    ]
    parts += [
        f'<text x="{SIZE / 2:.0f}" y="{SIZE - 8}">measured</text>',
        f'<text x="{MARGIN}" y="20">predicted; '
        + ", ".join(
            f'<tspan fill="{COLOURS[n]}">{n} process{"es" if n > 1 else ""}</tspan>'
            for n in sorted({point[2] for point in points})
            if n in COLOURS
        )
        + "</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
