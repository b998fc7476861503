"""An iteration of the pipeline ranks of one plan, from what their stages take and hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distir.cost.amounts import larger
from distir.ops.host import HOST
from distir.schedules import BACKWARD, FORWARD, INPUT_PART, PAIR, CompiledSchedule, Situation
from distir.shares import memory_shares
from distir.simulation.pipeline.one import PipelineTime
from distir.simulation.pricing.chains import PassCost
from distir.simulation.pricing.memory import MemoryEffect
from distir.simulation.pricing.stage_cost import Settling, StageCost, action_seconds
from distir.simulation.pricing.state import StateBytes
from distir.simulation.pricing.tied import TiedGradients


@dataclass(frozen=True, slots=True)
class RankSeconds:
    """One pipeline rank in an iteration, with the stages it holds. `begin` and `end` are when its
    iteration begins and when it is done; the others may have begun before, and may go on."""

    stages: tuple[int, ...]
    compute: float
    exposed: Mapping[str, float]
    transfer: float
    bubble: float
    optimizer: float
    begin: float
    end: float
    memory: Mapping[str, float]
    host_bytes: float = 0.0
    """Bytes in the memory of the host, per device."""


def rank_seconds(
    compiled: CompiledSchedule,
    time: PipelineTime,
    stages: Sequence[StageCost],
    tied: Sequence[TiedGradients],
    training: bool,
    pairs: Sequence[PassCost] = (),
) -> list[RankSeconds]:
    """An iteration of every pipeline rank, from what its stages take and hold, and what the
    overlapped `pairs` of the schedule take."""
    seconds = action_seconds(stages, pairs)
    tails: list[float] = [0.0] * len(time.end)
    if training:
        tails = [_settling_tail(compiled, time, stages, rank) for rank in range(len(tails))]
    end = [done + tail for done, tail in zip(time.end, tails, strict=True)]
    waited, took = _add_up_tied(tied, end)
    found: list[RankSeconds] = []
    for rank, own in enumerate(compiled.stages_of_ranks):
        costs = [stages[stage] for stage in own]
        exposed: dict[str, float] = {}
        busy = 0.0
        run: list[tuple[PassCost, int]] = []
        for cost, counts in zip(costs, compiled.counts_alone[rank], strict=True):
            run += [(each, counts[kind]) for kind, each in cost.passes.items()]
        run += zip(pairs, compiled.pair_counts[rank].tolist(), strict=True)
        for each, count in run:
            busy += each.seconds * count
            for stream, seconds_waited in each.exposed:
                exposed[stream] = exposed.get(stream, 0.0) + seconds_waited * count
        compute = busy - sum(exposed.values())
        first = costs[compiled.first_stages[rank]]
        refresh = sum(cost.refresh for cost in costs) + first.first_gather
        copied = sum(cost.refresh_host for cost in costs) + first.first_gather_host
        exposed["dp"] = exposed.get("dp", 0.0) + refresh - copied
        if copied:
            exposed[HOST] = exposed.get(HOST, 0.0) + copied
        if training:
            last = _settled_along(compiled, stages, rank)
            exposed[last] = exposed.get(last, 0.0) + tails[rank]
        optimizer = sum(cost.optimizer for cost in costs)
        begin, moving = _begin(compiled, time, seconds, rank) if training else (0.0, 0.0)
        found.append(
            RankSeconds(
                stages=own,
                compute=compute,
                exposed=exposed,
                transfer=time.waited_for_transfer[rank] - moving + took[rank],
                bubble=time.waited_for_stage[rank] - (begin - moving) + waited[rank],
                optimizer=optimizer,
                begin=begin,
                end=end[rank] + optimizer + refresh,
                memory=_peak(stages, compiled.situations[rank], own, compiled.copies),
                host_bytes=_on_host(stages, compiled.situations[rank], own),
            )
        )
    return found


def _add_up_tied(
    tied: Sequence[TiedGradients], end: list[float]
) -> tuple[list[float], list[float]]:
    """Moves the `end` of ranks behind the all-reduces of gradients that they share; returns
    per rank how long it waited for others, and how long it took."""
    waited, took = [0.0] * len(end), [0.0] * len(end)
    for each in tied:
        start = larger(*(end[rank] for rank in each.ranks))
        for rank in each.ranks:
            waited[rank] += start - end[rank]
            took[rank] += each.seconds
            end[rank] = start + each.seconds
    return waited, took


def _begin(
    compiled: CompiledSchedule, time: PipelineTime, seconds: Sequence[float], rank: int
) -> tuple[float, float]:
    """When a rank starts its first action, and for how much of this time the message that it
    waited for was on its way."""
    first = compiled.first[rank]
    begin, sender = time.start[first], compiled.needs[first]
    if sender < 0:
        return begin, 0.0
    return begin, begin - (time.start[sender] + seconds[compiled.cost[sender]])


def _settled_along(compiled: CompiledSchedule, stages: Sequence[StageCost], rank: int) -> str:
    """The mesh axis of the last collective on a rank's gradients."""
    settlings = [each for _, each in _settlings(compiled, stages, rank)]
    return next((each.along for each in reversed(settlings) if each.along), "dp")


def _settlings(
    compiled: CompiledSchedule, stages: Sequence[StageCost], rank: int
) -> list[tuple[int, Settling]]:
    """A rank's stages (places among its own) in the order in which their gradients are complete,
    and what is settled then."""
    own = compiled.stages_of_ranks[rank]
    return [
        (place, _settling_after(stages[own[place]], kind))
        for place, kind in compiled.completing[rank]
    ]


def _settling_after(stage: StageCost, kind: int) -> Settling:
    """How a stage's gradients are settled that are complete with an action of this cost kind. Those
    of an overlapped pair are complete when the pair ends, and settled from then on."""
    if kind != PAIR:
        return stage.settling[kind]
    whole = stage.settling[BACKWARD]
    return replace(whole, done=whole.seconds)


def _settling_tail(
    compiled: CompiledSchedule, time: PipelineTime, stages: Sequence[StageCost], rank: int
) -> float:
    """How long the gradient stream goes on after the last action of a rank. Its stages are
    settled in the order in which their gradients are complete; in between, the stream shares out
    the gradients of other actions."""
    done, own = 0.0, compiled.stages_of_ranks[rank]
    settlings = _settlings(compiled, stages, rank)
    for (place, each), between in zip(settlings, compiled.between_completions[rank], strict=True):
        for at, kind, count in between:
            done += count * stages[own[at]].settling[kind].scattering
        start = time.start[compiled.last_gradients[rank][place]]
        if each.seconds > 0:
            done = max(done + each.seconds, start + each.done)
    return larger(0.0, done - time.end[rank])


def _in_flight(cost: StageCost) -> tuple[MemoryEffect, MemoryEffect]:
    """What a microbatch holds between F and B, and between B and W."""
    forward = cost.memory[FORWARD]
    split = INPUT_PART in cost.memory
    return forward, forward.then(cost.memory[INPUT_PART]) if split else MemoryEffect()


def _peak(
    stages: Sequence[StageCost], situations: Sequence[Situation], own: Sequence[int], copies: int
) -> Mapping[str, float]:
    """Memory of a rank by what holds it, at the peak. `copies` ranks hold each of its
    stages."""
    held_bytes = buffers = 0.0
    after = [_in_flight(stages[stage]) for stage in own]
    for held in situations:
        effect = stages[held.stage].memory[held.cost_kind]
        peak, buffered = effect.peak, effect.buffer_peak
        for effects, counts in zip(after, held.counts, strict=True):
            for each, count in zip(effects, counts, strict=True):
                peak += count * each.delta
                buffered += count * each.buffer_delta
        if peak > held_bytes:
            held_bytes, buffers = peak, buffered
    state = StateBytes()
    for stage in own:
        state = state.plus(stages[stage].state.shared(copies))
    return memory_shares(
        parameters=state.parameters,
        gradients=state.gradients,
        optimizer=state.optimizer,
        state_inputs=state.inputs,
        activations=held_bytes - buffers,
        buffers=buffers,
    )


def _on_host(
    stages: Sequence[StageCost], situations: Sequence[Situation], own: Sequence[int]
) -> float:
    """Bytes of a rank in the memory of its host: what rests there, and what its microbatches have
    there at most between their forward and their backward passes."""
    hosted = [stages[stage].state.hosted for stage in own]
    most = 0.0
    for held in situations:
        there = sum(n * size for (n, _), size in zip(held.counts, hosted, strict=True))
        if held.cost_kind == FORWARD:
            there += stages[held.stage].state.hosted
        most = max(most, there)
    return sum(stages[stage].state.host for stage in own) + most


__all__ = ["RankSeconds", "rank_seconds"]
