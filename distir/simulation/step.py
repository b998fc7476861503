"""A step of a plan in time: the actions of every rank, the messages between ranks, what a device of
each rank holds, and what it sends along which mesh axis.

Simulations say what a step comes to; pictures and traces show how it goes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from distir.cost import CostModel
from distir.plan import Plan
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, INPUT_PART, WEIGHT_PART, Action
from distir.schedules.core.action import format_pair
from distir.simulation.pipeline.one import PipelineTime
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.memory import MemoryEffect
from distir.simulation.pricing.stage_cost import StageCost
from distir.simulation.pricing.state import StateBytes
from distir.simulation.spans import StreamSpan, action_spans, pair_spans, step_end_spans

HOST_LINK = "host link"
"""What copies between a device and its host cross."""

RANKS = "pp"
"""The choice to which messages between pipeline ranks belong."""


@dataclass(frozen=True, slots=True)
class TimedAction:
    """An action, or an overlapped pair, in time, with its cost number. `beside` is the backward
    pass of a pair; `last`: the gradients of its stage are complete in it."""

    rank: int
    action: Action
    beside: Action | None
    cost: int
    start: float
    end: float
    last: bool

    @property
    def key(self) -> tuple[int, bool]:
        """What decides which ops the action has."""
        return self.cost, self.last

    @property
    def label(self) -> str:
        """The action or the pair, as schedules write it."""
        return str(self.action) if self.beside is None else format_pair(self.action, self.beside)


@dataclass(frozen=True, slots=True)
class SentMessage:
    """What `action` of one rank has made for another rank, under way from `start` to `end`."""

    action: Action
    sender: int
    receiver: int
    reader: Action
    """The action of the receiver that waits for it."""
    link: int
    start: float
    end: float
    size_bytes: float
    """Bytes that leave one device of the sender, before parts of them are left out that the
    receiver's devices can gather among each other."""
    level: str
    """The outermost level of the cluster that it crosses."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a device of a rank holds in its activations and buffers while one of its actions runs:
    the most from `start` to `end`, of which `buffers` are buffers, and `after` from then on."""

    rank: int
    start: float
    end: float
    peak: float
    buffers: float
    after: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a device of a rank sends in a step by one kind of collective, or of message."""

    rank: int
    along: str
    """The choice of the strategy whose devices take part: dp, tp, …"""
    op: str
    level: str
    """The outermost level of the cluster that the devices span."""
    count: int
    size_bytes: float
    """Over all of them, the size of the whole tensor per device."""
    seconds: float
    """Over all of them, on their stream."""
    waited: float
    """Of these, seconds for which waiting counts as communication, and not as what runs beside."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan."""

    actions: tuple[TimedAction, ...] = field(repr=False)
    """In the order of their starts."""
    messages: tuple[SentMessage, ...] = field(repr=False)
    holdings: tuple[Holding, ...] = field(repr=False)
    """Rank by rank, in the order of time."""
    state: tuple[StateBytes, ...] = field(repr=False)
    """Per rank, what is held for the whole of training."""
    traffic: tuple[Traffic, ...] = field(repr=False)
    seconds: float
    """From the first action to the end of the last rank, without the overhead of a step."""


def timed_actions(plan: Plan, time: PipelineTime, seconds: Sequence[float]) -> list[TimedAction]:
    """All actions and overlapped pairs, in order of time."""
    compiled = plan.schedule
    rows = zip(compiled.actions, compiled.rank, compiled.cost, time.start, strict=True)
    last = {at for ends in compiled.last_gradients for at in ends}
    found: list[TimedAction] = []
    for index, (action, rank, cost, start) in enumerate(rows):
        beside, completes = None, index in last
        if cost >= compiled.stages * COST_KINDS:
            if cost % COST_KINDS != FORWARD:
                continue  # it takes no time: the entry of the forward pass is the whole pair
            beside, completes = compiled.actions[index + 1], index + 1 in last
        found.append(
            TimedAction(rank, action, beside, cost, start, start + seconds[cost], completes)
        )
    return sorted(found, key=lambda each: (each.start, each.rank))


def spans_of_key(plan: Plan, key: tuple[int, bool], cost: CostModel) -> list[StreamSpan]:
    """The ops of actions with this `TimedAction.key`, from time 0 on."""
    number, last = key
    stage, kind = divmod(number, COST_KINDS)
    if stage < plan.schedule.stages:
        return action_spans(plan, stage, kind, cost, last=last)
    pair = plan.schedule.pairs[stage - plan.schedule.stages]
    return pair_spans(plan, pair, cost, last=last)


def messages(
    plan: Plan,
    cost: CostModel,
    time: PipelineTime,
    seconds: Sequence[float],
    transfers: Sequence[float],
    stages: Sequence[StageCost],
) -> list[SentMessage]:
    """All messages between ranks, in the order of their senders. `seconds` and `transfers` are
    those that `run_pipeline` got, which this follows."""
    compiled, pricing = plan.schedule, Pricing.of(cost, plan)
    link_free = [0.0] * compiled.num_links
    under_way: dict[int, tuple[float, float]] = {}
    for at, (number, link) in enumerate(zip(compiled.cost, compiled.link, strict=True)):
        if link >= 0:
            leaves = max(time.start[at] + seconds[number], link_free[link])
            link_free[link] = leaves + transfers[number]
            under_way[at] = leaves, link_free[link]
    found: list[SentMessage] = []
    for reader, sender in enumerate(compiled.needs):
        if sender < 0:
            continue
        action, here, there = compiled.actions[sender], compiled.rank[sender], compiled.rank[reader]
        of_stage = stages[action.stage]
        backward = action.is_backward
        found.append(
            SentMessage(
                action,
                here,
                there,
                compiled.actions[reader],
                compiled.link[sender],
                *under_way[sender],
                of_stage.sent_backward_bytes if backward else of_stage.sent_forward_bytes,
                cost.cluster.levels[pricing.level(here, there)].name,
            )
        )
    return sorted(found, key=lambda each: (each.start, each.sender, each.receiver))


# --- memory --------------------------------------------------------------------------------------


def holdings(
    plan: Plan, stages: Sequence[StageCost], actions: Sequence[TimedAction]
) -> list[Holding]:
    """What ranks hold beside their state, action by action. The actions of an overlapped pair
    count as if they ran one after the other, as they do where peaks are found."""
    trains, splits = plan.workload.training, plan.schedule.splits_backward
    found: list[Holding] = []
    for rank in range(len(plan.schedule.stages_of_ranks)):
        held = held_buffers = 0.0
        for each in actions:
            if each.rank != rank:
                continue
            peak, at_peak = 0.0, 0.0
            for action in (each.action, *([each.beside] if each.beside else [])):
                effect, left = _effects(stages[action.stage], action, trains, splits)
                if held + effect.peak > peak:
                    peak, at_peak = held + effect.peak, held_buffers + effect.buffer_peak
                held, held_buffers = held + left.delta, held_buffers + left.buffer_delta
            found.append(Holding(rank, each.start, each.end, peak, at_peak, held))
    return found


def _effects(
    stage: StageCost, action: Action, trains: bool, splits: bool
) -> tuple[MemoryEffect, MemoryEffect]:
    """What an action holds on its way, and what is left of it: a microbatch between F and B, or
    between B and W, more or less."""
    kinds = {"F": FORWARD, "B": INPUT_PART if splits else BACKWARD, "W": WEIGHT_PART}
    kind = kinds.get(action.kind, BACKWARD)
    after_forward = stage.memory[FORWARD]
    if kind == FORWARD:
        return after_forward, after_forward if trains else MemoryEffect()
    if kind == INPUT_PART:
        return stage.memory[kind], stage.memory[kind]
    freed = after_forward
    if kind == WEIGHT_PART:
        freed = after_forward.then(stage.memory[INPUT_PART])
    left = MemoryEffect(-freed.delta, 0.0, -freed.buffer_delta, 0.0)
    return stage.memory[kind], left


def states(plan: Plan, stages: Sequence[StageCost]) -> list[StateBytes]:
    """Per rank the bytes of parameters, gradients and the optimizer."""
    found: list[StateBytes] = []
    for own in plan.schedule.stages_of_ranks:
        state = StateBytes()
        for stage in own:
            state = state.plus(stages[stage].state.shared(plan.schedule.copies))
        found.append(state)
    return found


# --- traffic -------------------------------------------------------------------------------------


def traffic(
    plan: Plan,
    cost: CostModel,
    actions: Sequence[TimedAction],
    sent: Sequence[SentMessage],
    spans: Mapping[tuple[int, bool], Sequence[StreamSpan]],
) -> list[Traffic]:
    """What a device of every rank sends in a step: the collectives of all actions and of the end
    of the step, and the messages that it sends to other ranks."""
    pricing = Pricing.of(cost, plan)
    added: defaultdict[tuple[int, str, str, str], list[float]] = defaultdict(
        lambda: [0, 0.0, 0.0, 0.0]
    )

    def add(
        key: tuple[int, str, str, str], count: int, size: float, took: float, *, beside: bool
    ) -> None:
        row = added[key]
        row[0] += count
        row[1] += count * size
        row[2] += count * took
        row[3] += 0.0 if beside else count * took

    def add_span(rank: int, span: StreamSpan, count: int) -> None:
        if not span.mesh_axes and not span.size_bytes:
            return
        level = level_of(pricing, span.mesh_axes)
        key = rank, pricing.stream(span.mesh_axes), span.label, level
        add(key, count, span.size_bytes, span.end - span.start, beside=span.beside)

    for (rank, key), count in Counter((each.rank, each.key) for each in actions).items():
        for span in spans[key]:
            add_span(rank, span, count)
    idle = [0.0] * len(plan.schedule.stages_of_ranks)
    for rank, span in step_end_spans(plan, cost, idle, idle):
        add_span(rank, span, 1)
    for each in sent:
        what = (
            "gradients to the previous rank"
            if each.action.is_backward
            else "activations to the next rank"
        )
        key = each.sender, RANKS, what, each.level
        add(key, 1, each.size_bytes, each.end - each.start, beside=False)
    return [Traffic(*key, int(count), *sums) for key, (count, *sums) in added.items()]


def level_of(pricing: Pricing, mesh_axes: Sequence[str]) -> str:
    """The outermost level of the cluster that a group of devices spans; of a device alone with its
    host, the link between the two."""
    if not mesh_axes:
        return HOST_LINK
    levels = pricing.cost.cluster.levels
    group = pricing.grid.group(pricing.cost.cluster, tuple(mesh_axes))
    spanned = [level.name for level, out in zip(levels, group.fan_out, strict=True) if out > 1]
    return spanned[-1] if spanned else levels[0].name


def spans_by_key(
    plan: Plan, cost: CostModel, actions: Sequence[TimedAction]
) -> dict[tuple[int, bool], list[StreamSpan]]:
    """The ops of actions, by what decides them."""
    keys: Iterator[tuple[int, bool]] = (each.key for each in actions)
    return {key: spans_of_key(plan, key, cost) for key in dict.fromkeys(keys)}


def make_step(
    plan: Plan,
    cost: CostModel,
    time: PipelineTime,
    seconds: Sequence[float],
    transfers: Sequence[float],
    stages: Sequence[StageCost],
    end: float,
) -> Step:
    """The step of a plan whose actions run at `time` and take `seconds` per kind."""
    actions = timed_actions(plan, time, seconds)
    sent = messages(plan, cost, time, seconds, transfers, stages)
    spans = spans_by_key(plan, cost, actions)
    return Step(
        actions=tuple(actions),
        messages=tuple(sent),
        holdings=tuple(holdings(plan, stages, actions)),
        state=tuple(states(plan, stages)),
        traffic=tuple(traffic(plan, cost, actions, sent, spans)),
        seconds=end,
    )


__all__ = [
    "Holding",
    "SentMessage",
    "Step",
    "TimedAction",
    "Traffic",
    "holdings",
    "level_of",
    "make_step",
    "messages",
    "spans_by_key",
    "states",
    "timed_actions",
    "traffic",
]
