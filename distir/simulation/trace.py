"""A step as Chrome trace events, which ui.perfetto.dev opens.

One process per pipeline rank, with a thread for its actions and one per stream of one of its
devices. Large steps are cut down: all actions, as far as they are not too many, and the ops of the
first of them and of those in which gradients are settled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distir.cost import CostModel
from distir.plan import Plan
from distir.simulation.pipeline.one import PipelineTime
from distir.simulation.pricing.instructions import COMPUTE, GRADIENTS
from distir.simulation.spans import StreamSpan, step_end_spans
from distir.simulation.step import TimedAction, spans_by_key, timed_actions

MOST_ACTIONS = 50_000
MOST_OPS = 50_000
"""A trace holds no more events of a kind; viewers slow down at a few hundred thousand."""

MICROSECONDS = 1e6

ACTIONS = "actions"


@dataclass(slots=True)
class _GradientStream:
    """When the gradient stream of a rank is free, as `_Device` of the reference engine has it."""

    free: float = 0.0
    """Without what it waits in actions that are not the last of their stage."""
    scatters_free: float = 0.0
    """After scatters of actions that are not the last of their stage."""


@dataclass(frozen=True, slots=True)
class _PlacedSpan:
    """A span in the time of the step, on a device of `rank`; `action` is the text of the action or
    pair to which it belongs, None for what comes after all actions."""

    rank: int
    span: StreamSpan
    action: str | None = None


def chrome_trace(
    plan: Plan, cost: CostModel, time: PipelineTime, seconds: Sequence[float]
) -> dict[str, Any]:
    """The trace of a plan whose actions run at `time` and take `seconds` per kind."""
    actions = timed_actions(plan, time, seconds)
    passes = spans_by_key(plan, cost, actions)
    scattering = {
        key: sum(each.end - each.start for each in ops if each.stream == GRADIENTS)
        for key, ops in passes.items()
    }
    details = _detailed(actions, passes)
    streams = [_GradientStream() for _ in time.end]
    spans: list[_PlacedSpan] = []
    for each in actions:
        if each.last or each in details:
            moved = list(_moved(passes[each.key], each, streams[each.rank]))
            spans += moved if each in details else []
        else:
            streams[each.rank].free += scattering[each.key]
    finishing = step_end_spans(plan, cost, time.end, [each.free for each in streams])
    spans += (_PlacedSpan(rank, span) for rank, span in finishing)
    shown = actions[:MOST_ACTIONS]
    threads = {stream: thread for thread, stream in enumerate(_streams(plan))}
    streams = {(each.rank, each.span.stream) for each in spans}
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "strategy": plan.strategy.label,
            "actions": f"{len(shown)} of {len(actions)}",
            "actions with their ops": f"{len(details)} of {len(actions)}",
        },
        "traceEvents": [
            *_names(plan, streams),
            *(_action_event(each) for each in shown),
            *(_op_event(each, threads[each.span.stream]) for each in spans),
        ],
    }


def _detailed(
    actions: Sequence[TimedAction], passes: Mapping[tuple[int, bool], Sequence[StreamSpan]]
) -> set[TimedAction]:
    """The actions whose ops are shown: first those in which gradients are settled, then as many as
    there is room for."""
    found: set[TimedAction] = set()
    room = MOST_OPS
    for each in sorted(actions, key=lambda each: not each.last):
        room -= len(passes[each.key])
        if room < 0:
            break
        found.add(each)
    return found


def _moved(
    ops: Sequence[StreamSpan], at: TimedAction, gradients: _GradientStream
) -> Iterator[_PlacedSpan]:
    """The ops of a pass at the time of an action. Gradients are settled behind those of other
    actions of the rank."""
    for span in ops:
        start, seconds = at.start + span.start, span.end - span.start
        if span.stream == GRADIENTS and at.last:
            start = max(start, gradients.free)
            gradients.free = start + seconds
        elif span.stream == GRADIENTS:
            start = max(start, gradients.scatters_free)
            gradients.scatters_free = start + seconds
            gradients.free += seconds
        yield _PlacedSpan(at.rank, replace(span, start=start, end=start + seconds), at.label)


# --- events --------------------------------------------------------------------------------------


def _names(plan: Plan, streams: set[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    """What processes and threads are called, and their order."""
    order = _streams(plan)
    for rank, stages in enumerate(plan.schedule.stages_of_ranks):
        blocks = ", ".join(
            f"{plan.stages[stage].blocks[0]}-{plan.stages[stage].blocks[-1]}" for stage in stages
        )
        label = "stage" if len(stages) == 1 else "stages"
        name = f"{label} {', '.join(map(str, stages))} (blocks {blocks})"
        yield _metadata("process_name", rank, 0, {"name": name})
        yield _metadata("process_sort_index", rank, 0, {"sort_index": rank})
        for thread, stream in enumerate(order):
            if stream == ACTIONS or (rank, stream) in streams:
                yield _metadata("thread_name", rank, thread, {"name": stream})
                yield _metadata("thread_sort_index", rank, thread, {"sort_index": thread})


def _metadata(what: str, process: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": arguments}


def _streams(plan: Plan) -> tuple[str, ...]:
    return (ACTIONS, COMPUTE, *dict.fromkeys(plan.mesh.users), GRADIENTS, "pp")


def _action_event(each: TimedAction) -> dict[str, Any]:
    kind = "backward" if each.action.is_backward else "forward"
    arguments = {"stage": each.action.stage, "microbatch": each.action.microbatch}
    if each.beside is not None:
        kind = "overlapped"
        beside = {"stage": each.beside.stage, "microbatch": each.beside.microbatch}
        arguments = {"forward": arguments, "backward": beside}
    return _event(each.label, kind, each.rank, 0, (each.start, each.end), arguments)


def _op_event(each: _PlacedSpan, thread: int) -> dict[str, Any]:
    arguments = {} if each.action is None else {"action": each.action}
    kind = "compute" if each.span.stream == COMPUTE else "communication"
    when = (each.span.start, each.span.end)
    return _event(each.span.label, kind, each.rank, thread, when, arguments)


def _event(
    name: str,
    category: str,
    process: int,
    thread: int,
    when: tuple[float, float],
    arguments: dict[str, Any],
) -> dict[str, Any]:
    start, end = when
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": start * MICROSECONDS,
        "dur": (end - start) * MICROSECONDS,
        "args": arguments,
    }


__all__ = ["MOST_ACTIONS", "MOST_OPS", "chrome_trace"]
