"""The comparisons as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.distir_paper.measured import Measured
from experiments.distir_paper.orders import OrderTimes
from experiments.distir_paper.reference import Compared
from experiments.distir_paper.studies import FAMILIES, Study, best_of_families, by_workload


def draw(
    folder: Path,
    compared: Sequence[Compared],
    measured: Sequence[Measured],
    studies: Sequence[Study],
    pipelines: Sequence[OrderTimes],
) -> list[Path]:
    """Writes one SVG per comparison into `folder`."""
    import matplotlib as mpl

    mpl.use("svg")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [
        _scatter(
            folder / "reference.svg",
            "original, seconds",
            "ours with the simple stack, seconds",
            {
                family: [(r.original_seconds, r.seconds) for r in compared if r.family == family]
                for family in dict.fromkeys(r.family for r in compared)
            },
        ),
        _scatter(
            folder / "measured.svg",
            "measured, seconds",
            "predicted, seconds",
            {
                "ours": [(r.seconds, r.predicted_seconds) for r in measured],
                "original": [(r.seconds, r.original_seconds) for r in measured],
            },
        ),
    ]
    drawn += [_families(folder, study) for study in studies]
    return [*drawn, _orders(folder / "orders.svg", pipelines)] if pipelines else drawn


def _scatter(
    path: Path, across: str, up: str, series: dict[str, list[tuple[float, float]]]
) -> Path:
    figure, axes = _figure(1)
    (one,) = axes
    every = [value for points in series.values() for point in points for value in point]
    one.plot([min(every), max(every)], [min(every), max(every)], color="0.7", linewidth=1)
    for label, points in series.items():
        one.scatter(*zip(*points, strict=True), s=14, label=label, alpha=0.8)
    one.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    one.legend()
    return _save(figure, path)


def _families(folder: Path, study: Study) -> Path:
    """Per model the best throughput of each family of strategies over the batch size."""
    models = list(dict.fromkeys(trial.model for trial in study.trials))
    figure, axes = _figure(len(models))
    for one, model in zip(axes, models, strict=True):
        found = {
            batch: best_of_families(trials)
            for (name, batch), trials in by_workload(study).items()
            if name == model
        }
        for number, family in enumerate(FAMILIES):
            points = [
                (batch, best[family].samples_per_second)
                for batch, best in found.items()
                if family in best
            ]
            if points:
                one.plot(*zip(*points, strict=True), marker="o", label=family, color=f"C{number}")
        one.set(xscale="log", yscale="log", title=model, xlabel="batch size")
    axes[0].set_ylabel("samples per second")
    handles = {
        label: line
        for one in axes
        for line, label in zip(*one.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        [handles[f] for f in FAMILIES if f in handles],
        [f for f in FAMILIES if f in handles],
        loc="outside right center",
    )
    return _save(figure, folder / f"{study.title.replace(' ', '-').lower()}.svg")


def _orders(path: Path, pipelines: Sequence[OrderTimes]) -> Path:
    """Time and memory of FIFO order over those of 1F1B, as heat maps."""
    stages = list(dict.fromkeys(each.stages for each in pipelines))
    microbatches = list(dict.fromkeys(each.microbatches for each in pipelines))
    figure, axes = _figure(2)
    parts = (("time", "slowdown"), ("memory", "more_memory"))
    for one, (title, name) in zip(axes, parts, strict=True):
        found = {(each.stages, each.microbatches): getattr(each, name) for each in pipelines}
        values = [[found[s, m] for m in microbatches] for s in stages]
        furthest = max(abs(value - 1) for row in values for value in row)
        one.imshow(
            values, cmap="RdBu_r", vmin=1 - furthest, vmax=1 + furthest, aspect="auto",
            origin="lower",
        )  # fmt: skip
        for row, own in enumerate(values):
            for column, value in enumerate(own):
                colour = "white" if abs(value - 1) > furthest / 2 else "black"
                one.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
        one.set_xticks(range(len(microbatches)), microbatches)
        one.set_yticks(range(len(stages)), stages)
        one.set(title=f"{title}, FIFO over 1F1B", xlabel="microbatches", ylabel="stages")
    return _save(figure, path)


def _figure(columns: int) -> tuple[Any, Sequence[Any]]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, columns, figsize=(1.5 + 4 * columns, 4), squeeze=False, layout="constrained"
    )
    return figure, list(axes[0])


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.savefig(path)
    plt.close(figure)
    return path
