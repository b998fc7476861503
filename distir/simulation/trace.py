"""A step as Chrome trace events, which ui.perfetto.dev opens.

One process per pipeline rank, with a thread for its actions, one per stream of one of its devices,
and one per link on which it sends or receives; arrows lead from the action that makes a message to
the one that waits for it, and a counter shows what a device holds. Large steps are cut down: all
actions, as far as they are not too many, and the ops of the first of them and of those in which
gradients are settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from distir.cost import CostModel
from distir.ops.host import HOST
from distir.plan import Plan
from distir.schedules import Action
from distir.simulation.pipeline.one import PipelineTime
from distir.simulation.pricing.instructions import COMPUTE, GRADIENTS, Pricing
from distir.simulation.spans import StreamSpan, step_end_spans
from distir.simulation.step import SentMessage, Step, TimedAction, level_of, spans_by_key

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


def chrome_trace(plan: Plan, cost: CostModel, time: PipelineTime, step: Step) -> dict[str, Any]:
    """The trace of a plan whose actions run at `time`, which is how `step` goes."""
    actions = step.actions
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
    shown_actions = {(each.rank, made): each for each in shown for made in _made(each)}
    sent = [
        each
        for each in step.messages
        if (each.sender, each.action) in shown_actions
        and (each.receiver, each.reader) in shown_actions
    ]
    links = _links(sent, len(threads))
    op_event = partial(_op_event, names=_block_names(plan), pricing=Pricing.of(cost, plan))
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "strategy": plan.strategy.label,
            "actions": f"{len(shown)} of {len(actions)}",
            "actions with their ops": f"{len(details)} of {len(actions)}",
            "memory of a device": f"{cost.cluster.device.memory_bytes:.0f} bytes",
        },
        "traceEvents": [
            *_names(plan, streams),
            *(_action_event(each) for each in shown),
            *(op_event(each, threads[each.span.stream]) for each in spans),
            *_link_names(links),
            *chain.from_iterable(
                _message_events(number, each, links, shown_actions)
                for number, each in enumerate(sent)
            ),
            *_memory_events(step),
        ],
    }


def side_by_side(traces: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Several traces in one, by the names of their plans: the ranks of each are processes of their
    own, one plan below the other."""
    events: list[dict[str, Any]] = []
    first_process = first_flow = 0
    for name, trace in traces.items():
        processes = flows = 0
        for event in trace["traceEvents"]:
            made = {**event, "pid": first_process + event["pid"]}
            processes = max(processes, event["pid"] + 1)
            if "id" in event:
                made["id"] = first_flow + event["id"]
                flows = max(flows, event["id"] + 1)
            if event["name"] == "process_name":
                made["args"] = {"name": f"{name}: {event['args']['name']}"}
            elif event["name"] == "process_sort_index":
                made["args"] = {"sort_index": made["pid"]}
            events.append(made)
        first_process += processes
        first_flow += flows
    others = {name: trace["otherData"] for name, trace in traces.items()}
    return {"displayTimeUnit": "ms", "otherData": others, "traceEvents": events}


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
        name = f"rank {rank}: {label} {', '.join(map(str, stages))} (blocks {blocks})"
        yield _metadata("process_name", rank, 0, {"name": name})
        yield _metadata("process_sort_index", rank, 0, {"sort_index": rank})
        for thread, stream in enumerate(order):
            if stream == ACTIONS or (rank, stream) in streams:
                yield _metadata("thread_name", rank, thread, {"name": stream})
                yield _metadata("thread_sort_index", rank, thread, {"sort_index": thread})


def _metadata(what: str, process: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": arguments}


def _streams(plan: Plan) -> tuple[str, ...]:
    return (ACTIONS, COMPUTE, *dict.fromkeys(plan.mesh.users), GRADIENTS, HOST, "pp")


_KINDS = {"F": "forward", "B": "backward", "W": "weight gradients", "BW": "backward"}


def _made(each: TimedAction) -> tuple[Action, ...]:
    """The action, or both of an overlapped pair."""
    return (each.action,) if each.beside is None else (each.action, each.beside)


def _said(action: Action) -> str:
    return f"{_KINDS[action.kind]} {action.microbatch} (stage {action.stage})"


def _action_event(each: TimedAction) -> dict[str, Any]:
    kind = "backward" if each.action.is_backward else "forward"
    arguments: dict[str, Any] = {"stage": each.action.stage, "microbatch": each.action.microbatch}
    if each.beside is not None:
        kind = "overlapped"
        beside = {"stage": each.beside.stage, "microbatch": each.beside.microbatch}
        arguments = {"forward": arguments, "backward": beside}
    name = " beside ".join(map(_said, _made(each)))
    arguments["action"] = each.label
    return _event(name, kind, each.rank, 0, (each.start, each.end), arguments)


def _block_names(plan: Plan) -> Sequence[str]:
    """What the blocks of a model are called: those that equal others are its layers."""
    like = plan.workload.program.blocks.representative
    counts, layers, names = Counter(like), 0, list[str]()
    for block, representative in enumerate(like):
        is_layer = counts[representative] > 1
        layers += is_layer
        names.append(f"layer {layers}" if is_layer else f"block {block}")
    return names


def _op_event(
    each: _PlacedSpan, thread: int, names: Sequence[str], pricing: Pricing
) -> dict[str, Any]:
    """An op as an event: a collective with its bytes, its rate, and what it spans."""
    span, seconds = each.span, each.span.end - each.span.start
    arguments: dict[str, Any] = {"op": span.label}
    if each.action is not None:
        arguments["action"] = each.action
    if span.block is not None:
        arguments["block"] = span.block
    name = span.label if span.block is None else f"{names[span.block]}: {span.label}"
    if span.mesh_axes:
        name = f"{name} along {', '.join(span.mesh_axes)}"
        arguments["mesh axes"] = ", ".join(span.mesh_axes)
        arguments["level"] = level_of(pricing, span.mesh_axes)
    if span.mesh_axes or span.size_bytes:
        arguments |= _rate(span.size_bytes, seconds)
    kind = "compute" if span.stream == COMPUTE else "communication"
    return _event(name, kind, each.rank, thread, (span.start, span.end), arguments)


def _rate(size_bytes: float, seconds: float) -> dict[str, float]:
    """Bytes, and bytes per second where they take time."""
    return {"bytes": size_bytes} | ({"bytes/s": size_bytes / seconds} if seconds > 0 else {})


# --- messages ------------------------------------------------------------------------------------

_Links = Mapping[tuple[int, bool], tuple[int, int, str]]
"""By link and whether it is the sender's side: the process, the thread, and what that is called."""


def _links(sent: Sequence[SentMessage], first_thread: int) -> _Links:
    """A thread for each side of each link."""
    found: dict[tuple[int, bool], tuple[int, int, str]] = {}
    for each in sent:
        what = "gradients" if each.action.is_backward else "activations"
        sides = (
            (True, each.sender, f"send {what} to rank {each.receiver}"),
            (False, each.receiver, f"receive {what} from rank {each.sender}"),
        )
        for sends, rank, name in sides:
            found.setdefault((each.link, sends), (rank, first_thread + len(found), name))
    return found


def _link_names(links: _Links) -> Iterator[dict[str, Any]]:
    for rank, thread, name in links.values():
        yield _metadata("thread_name", rank, thread, {"name": name})
        yield _metadata("thread_sort_index", rank, thread, {"sort_index": thread})


def _message_events(
    number: int,
    each: SentMessage,
    links: _Links,
    actions: Mapping[tuple[int, Action], TimedAction],
) -> Iterator[dict[str, Any]]:
    """A message on both of its sides, and the arrow from the action that makes it, through both, to
    the action that reads it. Ends of arrows lie inside of what they belong to."""
    makes, reads = actions[each.sender, each.action], actions[each.receiver, each.reader]
    seconds = each.end - each.start
    arguments = {
        "action": str(each.action),
        "from": each.sender,
        "to": each.receiver,
        "level": each.level,
        **_rate(each.size_bytes, seconds),
    }
    arrow = partial(_arrow, number)
    yield arrow("s", each.sender, 0, makes.end - _inside(makes.end - makes.start))
    for sends, verb, other in (
        (True, "send", f"to rank {each.receiver}"),
        (False, "receive", f"from rank {each.sender}"),
    ):
        rank, thread, _ = links[each.link, sends]
        what = f"{verb} {_said(each.action)} {other}"
        yield _event(what, "message", rank, thread, (each.start, each.end), arguments)
        if seconds > 0:
            at = _inside(seconds) if sends else seconds - _inside(seconds)
            yield arrow("t", rank, thread, each.start + at)
    yield arrow("f", each.receiver, 0, reads.start + _inside(reads.end - reads.start))


def _inside(seconds: float) -> float:
    """How far from the border of a slice its arrows begin and end."""
    return min(1e-9, seconds / 2)


def _arrow(number: int, phase: str, process: int, thread: int, at: float) -> dict[str, Any]:
    """A point of an arrow: its start (`s`), a step (`t`), or its end (`f`)."""
    event = {
        "ph": phase,
        "name": "message",
        "cat": "arrow",
        "id": number,
        "pid": process,
        "tid": thread,
        "ts": at * MICROSECONDS,
    }
    return {**event, "bp": "e"} if phase == "f" else event


# --- memory --------------------------------------------------------------------------------------


def _memory_events(step: Step) -> Iterator[dict[str, Any]]:
    """What a device of each rank holds, by what holds it, whenever that changes."""
    for rank, state in enumerate(step.state):
        held = {
            "parameters": state.parameters,
            "gradients": state.gradients,
            "optimizer": state.optimizer,
            "state inputs": state.inputs,
        }
        yield _counter(rank, 0.0, {**held, "activations": 0.0, "buffers": 0.0})
        mine = [each for each in step.holdings if each.rank == rank]
        for each in mine[:MOST_ACTIONS]:
            inside = {"activations": each.peak - each.buffers, "buffers": each.buffers}
            yield _counter(rank, each.start, {**held, **inside})
            yield _counter(rank, each.end, {**held, "activations": each.after, "buffers": 0.0})


def _counter(rank: int, at: float, held: Mapping[str, float]) -> dict[str, Any]:
    return {
        "ph": "C",
        "name": "memory (bytes)",
        "pid": rank,
        "tid": 0,
        "ts": at * MICROSECONDS,
        "args": dict(held),
    }


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


__all__ = ["MOST_ACTIONS", "MOST_OPS", "chrome_trace", "side_by_side"]
