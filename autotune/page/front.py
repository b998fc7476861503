"""Plans that no other one beats in all objectives, as plain data and as a section."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autotune.objectives.aims import Aim
from autotune.page.contents import Block, Chart, Section, Table, Text
from autotune.reports.quantities import choice_heading, choice_value, heading, shown
from autotune.reports.ranking import shown_choices
from autotune.reports.study import pareto_line
from autotune.study.pareto import Pareto
from autotune.study.trial import Trial

if TYPE_CHECKING:
    from autotune.result import TuneResult

ROWS = 50
"""Plans of a front in the table."""


def front_sections(result: TuneResult) -> list[Section]:
    """The front of a search for several objectives: each further one against the first."""
    front = result.pareto
    if front is None:
        return []
    first, *others = front.aims
    blocks: list[Block] = [Text(pareto_line(front))]
    for other in others:
        drawn = against(first, other, result.ranked, front.plans)
        title = f"{heading(first.metric)} against {heading(other.metric)}"
        blocks.append(Chart("front", title, drawn, "Diamonds are plans of the front.", 380))
    blocks.append(front_table(front))
    return [Section("front", "Several objectives", blocks)]


def against(
    first: Aim, other: Aim, trials: Sequence[Trial], front: Sequence[Trial]
) -> dict[str, Any]:
    """Two metrics of all trials and of the front: the second one, the first one, and in words."""
    best = {each.strategy for each in front}
    return {
        "axes": [_axis(other), _axis(first)],
        "trials": [
            point
            for each in trials
            if each.strategy not in best
            for point in _point(first, other, each)
        ],
        "front": sorted(point for each in front for point in _point(first, other, each)),
    }


def _axis(aim: Aim) -> dict[str, str]:
    unit = next((each for each in ("seconds", "bytes") if aim.metric.endswith(each)), "")
    wanted = "larger is better" if aim.maximize else "smaller is better"
    return {"name": f"{heading(aim.metric)} ({wanted})", "unit": unit}


def _point(first: Aim, other: Aim, trial: Trial) -> list[list[Any]]:
    values = [trial.metric(aim.metric) for aim in (other, first)]
    if None in values:
        return []
    said = [
        f"{heading(aim.metric)} {shown(aim.metric, trial.metric(aim.metric))}"
        for aim in (first, other)
    ]
    return [[*values, "; ".join([trial.strategy.label, *said])]]


def front_table(front: Pareto) -> Table:
    """The plans of a front, the best in the first objective first."""
    plans = front.plans[:ROWS]
    choices = shown_choices([trial.strategy for trial in plans])
    metrics = [aim.metric for aim in front.aims]
    rows = [
        [
            *(choice_value(getattr(trial.strategy, name)) for name in choices),
            *(shown(name, trial.metric(name)) for name in metrics),
        ]
        for trial in plans
    ]
    left = len(front.plans) - len(plans)
    caption = f"{left} more plans are in the JSON." if left else ""
    return Table([*map(choice_heading, choices), *map(heading, metrics)], rows, caption, texts=0)
