"""Where the time of plans goes, as plain data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distir.shares import share_heading
from distir.simulation.communication import collectives_of, exposed_seconds

if TYPE_CHECKING:
    from distir.simulation import SimulationResult
    from distir.simulation.step import Step, TimedAction

MOST_STAGES = 16
"""Stages of one plan that get a bar each; of longer pipelines, evenly spaced ones."""
MOST_ACTIONS = 4000
"""Actions that are drawn; of longer steps, the first."""
MOST_MESSAGES = 1500


def stage_bars(plans: Mapping[str, SimulationResult]) -> dict[str, Any]:
    """Seconds of every stage of several plans by share, as rows of bars. A row's parts add up to
    the iteration."""
    rows = [
        {"label": stage_label(plans, name, stage), "parts": dict(result.stages[stage].seconds)}
        for name, result in plans.items()
        for stage in spaced(len(result.stages), MOST_STAGES)
    ]
    return {"unit": "seconds", "rows": rows, "parts": shares_of(rows)}


def plan_bars(plans: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Seconds of several plans by share, one row of bars each."""
    rows = [{"label": name, "parts": dict(parts)} for name, parts in plans.items()]
    return {"unit": "seconds", "rows": rows, "parts": shares_of(rows)}


def shares_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The parts that some row has more than nothing of, with what people call them."""
    names = dict.fromkeys(name for row in rows for name in row["parts"])
    used = [name for name in names if any(row["parts"].get(name) for row in rows)]
    return [{"name": name, "label": share_heading(name)} for name in used]


def spaced(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(at * (count - 1) / (most - 1)) for at in range(most)]


def stage_label(plans: Mapping[str, SimulationResult], name: str, stage: int) -> str:
    """What the row of a stage is called: the plan by its whole name only once."""
    if len(plans[name].stages) == 1:
        return name
    if len(plans) == 1:
        return f"stage {stage}"
    return f"{name}, stage 0" if stage == 0 else f"{name.split(maxsplit=1)[0]}, stage {stage}"


# --- the pipeline ---------------------------------------------------------------------------------


def pipeline(step: Step) -> dict[str, Any]:
    """One step as a Gantt picture: who does what when, and which messages are under way, until the
    last of the actions drawn has ended (`drawn_seconds`) or the step has (`seconds`)."""
    actions = step.actions[:MOST_ACTIONS]
    whole = len(actions) == len(step.actions)
    horizon = step.seconds if whole else max(each.end for each in actions)
    sent = [each for each in step.messages if each.start <= horizon][:MOST_MESSAGES]
    return {
        "ranks": 1 + max((each.rank for each in step.actions), default=-1),
        "seconds": step.seconds,
        "drawn_seconds": horizon,
        "actions": [
            [each.rank, each.start, each.end, action_kind(each), each.label] for each in actions
        ],
        "messages": [
            [each.sender, each.receiver, each.start, each.end, str(each.action), each.size_bytes]
            for each in sent
        ],
        "all_actions": len(step.actions),
        "all_messages": len(step.messages),
    }


def action_kind(each: TimedAction) -> str:
    """Forward, backward, weight gradients, or overlapped."""
    if each.beside is not None:
        return "overlapped"
    return {"F": "forward", "W": "weight"}.get(each.action.kind, "backward")


# --- communication --------------------------------------------------------------------------------


def links(step: Step, result: SimulationResult) -> dict[str, Any]:
    """Communication of a device, mean over ranks: per kind of collective counts, bytes and seconds,
    and per choice how many of the seconds are exposed and how many are hidden behind others.

    Waiting counts as exposed, also where it is for others that come late; so more can be exposed
    than is sent.
    """
    kinds, exposed = collectives_of(step, result), exposed_seconds(result)
    busy: defaultdict[str, float] = defaultdict(float)
    for each in kinds:
        busy[each.along] += each.seconds
    bars = [
        {
            "label": along,
            "parts": {
                "exposed": exposed.get(along, 0.0),
                "hidden": max(0.0, busy.get(along, 0.0) - exposed.get(along, 0.0)),
            },
        }
        for along in dict.fromkeys([*exposed, *busy])
    ]
    return {
        "unit": "seconds",
        "rows": bars,
        "parts": [{"name": name, "label": name} for name in ("exposed", "hidden")],
        "kinds": [
            {
                "along": each.along,
                "level": each.level,
                "op": each.op,
                "count": each.count,
                "bytes": each.size_bytes,
                "seconds": each.seconds,
            }
            for each in kinds
        ],
    }
