"""Which strategies can be applied to a workload, and why others cannot."""

from __future__ import annotations

from distir.errors import UnknownNameError
from distir.factoring import expert_refusal, refusal
from distir.schedules import find_schedule
from distir.strategy import Strategy
from distir.transforms.recompute import RECOMPUTE
from distir.workload import Workload


def explain(workload: Workload, strategy: Strategy) -> str | None:
    """Why the strategy cannot be applied to this workload, or None. Memory is another matter."""
    return (
        _batch(workload, strategy)
        or _tensor(workload, strategy)
        or _sequence(workload, strategy)
        or _experts(workload, strategy)
        or _kept(workload, strategy)
        or workload.explain_lists(strategy)
        or _stages(workload, strategy)
        or _training(workload, strategy)
    )


def _batch(workload: Workload, strategy: Strategy) -> str | None:
    batch = workload.batch_size
    pieces = strategy.dp * strategy.microbatches
    if batch % pieces == 0:
        return None
    return (
        f"batch size {batch} does not divide by dp x microbatches = {strategy.dp} x "
        f"{strategy.microbatches} = {pieces}"
    )


def _tensor(workload: Workload, strategy: Strategy) -> str | None:
    if "tp" in strategy.axis_lists:
        return None
    return refusal(workload.internal_axes, workload.inner_axes, strategy.tp)


def _sequence(workload: Workload, strategy: Strategy) -> str | None:
    if strategy.sequence_parallel and strategy.tp == 1:
        return "sequence_parallel needs tp > 1: it rests the sequence on the devices of tp"
    if "cp" in strategy.axis_lists:
        return None  # checked with the other lists that the strategy states
    pieces = strategy.cp * (strategy.tp if strategy.sequence_parallel else 1)
    if pieces == 1:
        return None
    which = (
        "cp x tp"
        if strategy.sequence_parallel and strategy.cp > 1
        else ("cp" if strategy.cp > 1 else "tp")
    )
    if not workload.sequence_lengths:
        return f"{which} = {pieces} splits the sequence, but the model has no sequence axis"
    for length in workload.sequence_lengths:
        if length % pieces:
            return f"sequence length {length} does not divide by {which} = {pieces}"
    return None


def _experts(workload: Workload, strategy: Strategy) -> str | None:
    degrees = (strategy.dp, strategy.cp, strategy.tp)
    reason = expert_refusal(strategy.ep, degrees, workload.expert_axes)
    if reason is not None:
        return reason
    for user in ("cp", "tp"):
        if getattr(strategy.expert_factors, user) > 1 and user in strategy.axis_lists:
            return f"ep = {strategy.ep} is shared along {user}, whose list axes state; add experts*"
    return None


def _kept(workload: Workload, strategy: Strategy) -> str | None:
    kept = f"keep_gathered = {strategy.keep_gathered}"
    if strategy.keep_gathered != "none" and not workload.training:
        return f"{kept} is for a backward pass; inference has none; use keep_gathered none"
    if strategy.keeps_parameters and strategy.zero != 3:
        return f"{kept} keeps the parameters that zero = 3 gathers; zero is {strategy.zero}"
    if strategy.keeps_activations and not strategy.sequence_parallel:
        return f"{kept} keeps the activations that sequence_parallel gathers, which is off"
    return None


def _stages(workload: Workload, strategy: Strategy) -> str | None:
    if workload.training:
        try:
            family = find_schedule(strategy.schedule)
        except UnknownNameError as error:
            return str(error)
        reason = family.requires(strategy.pp, strategy.chunks, strategy.microbatches)
        if reason is not None:
            return reason
    if strategy.stages <= workload.num_blocks:
        return None
    return (
        f"pp x chunks = {strategy.pp} x {strategy.chunks} = {strategy.stages} stages, but the "
        f"model has {workload.num_blocks} blocks; expected at most one stage per block"
    )


def _training(workload: Workload, strategy: Strategy) -> str | None:
    if strategy.recompute not in RECOMPUTE.names():
        return str(UnknownNameError("recompute", strategy.recompute, RECOMPUTE.names()))
    if strategy.recompute_every > 1 and strategy.recompute == "none":
        return f"recompute_every = {strategy.recompute_every}, but recompute is none"
    if strategy.zero_degree:
        if not strategy.zero:
            return "zero_degree says how far zero shards; it needs zero = 1, 2 or 3"
        if strategy.dp % strategy.zero_degree:
            return f"zero_degree = {strategy.zero_degree} does not divide dp = {strategy.dp}"
        if strategy.zero_degree % strategy.expert_factors.dp:
            return f"zero_degree = {strategy.zero_degree} does not divide by ep = {strategy.ep}"
    if workload.training:
        return None
    if strategy.zero:
        return f"zero = {strategy.zero} shards what training keeps; inference has zero = 0"
    if strategy.recompute != "none":
        return "there is no backward pass to recompute for in inference; use recompute none"
    return None
