"""What devices hold, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune.page.time import shares_of, spaced, stage_label
from distir.metrics import reserved_memory_bytes

if TYPE_CHECKING:
    from distir.simulation import SimulationResult
    from distir.simulation.step import Step

MOST_RANKS = 8
"""Ranks that get a line each; of longer pipelines, evenly spaced ones."""
MOST_ACTIONS = 1500
"""Actions of a rank that are drawn; of longer steps, the first."""
RESERVE = "reserve_bytes"


def over_the_step(step: Step, result: SimulationResult) -> dict[str, Any]:
    """Bytes of tensors on a device of each rank over one step, against what there is. Between two
    points the value of the first one holds. `actions` are those that are drawn of the rank that has
    most, of `all_actions`; they end at `drawn_seconds`, the step at `seconds`."""
    lines: list[dict[str, Any]] = []
    all_actions = 0
    for rank in spaced(len(step.state), MOST_RANKS):
        held = [each for each in step.holdings if each.rank == rank]
        all_actions = max(all_actions, len(held))
        state = step.state[rank].total
        points: list[tuple[float, float]] = [(0.0, state)]
        for each in held[:MOST_ACTIONS]:
            points += [(each.start, state + each.peak), (each.end, state + each.after)]
        if held and len(held) <= MOST_ACTIONS:
            points.append((step.seconds, state + held[-1].after))
        lines.append({"label": f"rank {rank}", "points": points})
    whole = all_actions <= MOST_ACTIONS
    return {
        "unit": "bytes",
        "lines": lines,
        "limits": limits(result),
        "seconds": step.seconds,
        "drawn_seconds": step.seconds if whole else max(line["points"][-1][0] for line in lines),
        "actions": min(all_actions, MOST_ACTIONS),
        "all_actions": all_actions,
    }


def limits(result: SimulationResult) -> list[dict[str, Any]]:
    """What tensors have to stay below."""
    reserve = result.metrics.get(reserved_memory_bytes.name, 0.0)
    limit = result.memory_limit_bytes
    found = [{"label": "memory of a device", "value": limit}]
    if reserve:
        found.append({"label": "without the reserve", "value": limit - reserve})
    return found


def holders(plans: Mapping[str, SimulationResult]) -> dict[str, Any]:
    """Bytes at the peak by what holds them, a row of bars per stage, and what is reserved."""
    rows: list[dict[str, Any]] = []
    for name, result in plans.items():
        reserve = result.metrics.get(reserved_memory_bytes.name, 0.0)
        for stage in spaced(len(result.stages), 2 * MOST_RANKS):
            label = stage_label(plans, name, stage)
            parts = {**result.stages[stage].memory, RESERVE: reserve}
            rows.append({"label": label, "parts": parts})
    limit = max((each.memory_limit_bytes for each in plans.values()), default=0.0)
    return {
        "unit": "bytes",
        "rows": rows,
        "parts": shares_of(rows),
        "limits": [{"label": "memory of a device", "value": limit}],
    }
