"""Which strategies can be applied to a workload, and why others cannot.

A rule is a function of the workload and of the choices that its other parameters name: what it says
of one strategy it says of all with the same choices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from distir.errors import UnknownNameError
from distir.factoring import ExpertFactors, expert_factors, expert_refusal, refusal
from distir.schedules import find_schedule
from distir.strategies import Strategies
from distir.strategy import Strategy, parse_lists
from distir.transforms.recompute import RECOMPUTE
from distir.workload import Workload


def explain(workload: Workload, strategy: Strategy) -> str | None:
    """Why the strategy cannot be applied to this workload, or None. Memory is another matter."""
    reasons = (_reason(rule, workload, strategy) for rule in RULES)
    return next((reason for reason in reasons if reason is not None), None)


def explain_many(workload: Workload, strategies: Strategies) -> dict[int, str]:
    """`explain` of strategies that cannot be applied, by their positions."""
    reasons: dict[int, str] = {}
    left = np.ones(len(strategies), np.bool_)
    for rule in RULES:
        first, which = strategies.distinct(_reads(rule))
        said = [_reason(rule, workload, strategies[int(place)]) for place in first]
        refused = np.array([reason is not None for reason in said], np.bool_)
        if not refused.any():
            continue
        for index in np.flatnonzero(refused[which] & left).tolist():
            reasons[index] = said[which[index]] or ""
            left[index] = False
    return reasons


def _reason(rule: Callable[..., str | None], workload: Workload, strategy: Strategy) -> str | None:
    return rule(workload, *[getattr(strategy, name) for name in _reads(rule)])


@lru_cache(maxsize=64)
def _reads(rule: Callable[..., str | None]) -> tuple[str, ...]:
    """The choices that a rule is about."""
    return tuple(inspect.signature(rule).parameters)[1:]


def _batch(workload: Workload, dp: int, microbatches: int) -> str | None:
    batch, pieces = workload.batch_size, dp * microbatches
    if batch % pieces == 0:
        return None
    return (
        f"batch size {batch} does not divide by dp x microbatches = {dp} x {microbatches} = "
        f"{pieces}"
    )


def _tensor(workload: Workload, tp: int, axes: str) -> str | None:
    if "tp" in parse_lists(axes):
        return None
    return refusal(workload.internal_axes, workload.inner_axes, tp)


def _sequence(
    workload: Workload, tp: int, cp: int, sequence_parallel: bool, axes: str
) -> str | None:
    if sequence_parallel and tp == 1:
        return "sequence_parallel needs tp > 1: it rests the sequence on the devices of tp"
    if "cp" in parse_lists(axes):
        return None  # checked with the other lists that the strategy states
    pieces = cp * (tp if sequence_parallel else 1)
    if pieces == 1:
        return None
    which = "cp x tp" if sequence_parallel and cp > 1 else "cp" if cp > 1 else "tp"
    if not workload.sequence_lengths:
        return f"{which} = {pieces} splits the sequence, but the model has no sequence axis"
    for length in workload.sequence_lengths:
        if length % pieces:
            return f"sequence length {length} does not divide by {which} = {pieces}"
    return None


def _experts(workload: Workload, ep: int, dp: int, cp: int, tp: int, axes: str) -> str | None:
    reason = expert_refusal(ep, (dp, cp, tp), workload.expert_axes)
    if reason is not None:
        return reason
    shared, stated = expert_factors(ep, dp, cp, tp) or ExpertFactors(), parse_lists(axes)
    for user in ("cp", "tp"):
        if getattr(shared, user) > 1 and user in stated:
            return f"ep = {ep} is shared along {user}, whose list axes state; add experts*"
    return None


def _kept(workload: Workload, keep_gathered: str, zero: int, sequence_parallel: bool) -> str | None:
    kept = f"keep_gathered = {keep_gathered}"
    if keep_gathered != "none" and not workload.training:
        return f"{kept} is for a backward pass; inference has none; use keep_gathered none"
    if keep_gathered in ("parameters", "all") and zero != 3:
        return f"{kept} keeps the parameters that zero = 3 gathers; zero is {zero}"
    if keep_gathered in ("activations", "all") and not sequence_parallel:
        return f"{kept} keeps the activations that sequence_parallel gathers, which is off"
    return None


def _exchange(
    workload: Workload,
    cp_exchange: str,
    dp: int,
    ep: int,
    cp: int,
    tp: int,
    sequence_parallel: bool,
    axes: str,
) -> str | None:
    # Apart from `_lists`: without lists of its own, a strategy cuts its batch as any other.
    return None if axes else _lists(workload, "", cp_exchange, dp, ep, cp, tp, sequence_parallel, 1)


def _stated(
    workload: Workload,
    axes: str,
    cp_exchange: str,
    dp: int,
    ep: int,
    cp: int,
    tp: int,
    sequence_parallel: bool,
    microbatches: int,
) -> str | None:
    if not axes:
        return None
    return _lists(workload, axes, cp_exchange, dp, ep, cp, tp, sequence_parallel, microbatches)


def _lists(
    workload: Workload,
    axes: str,
    cp_exchange: str,
    dp: int,
    ep: int,
    cp: int,
    tp: int,
    sequence_parallel: bool,
    microbatches: int,
) -> str | None:
    return workload.explain_lists(
        Strategy(
            axes=axes,
            cp_exchange=cp_exchange,
            dp=dp,
            ep=ep,
            cp=cp,
            tp=tp,
            sequence_parallel=sequence_parallel,
            microbatches=microbatches,
        )
    )


def _stages(
    workload: Workload, pp: int, chunks: int, microbatches: int, schedule: str
) -> str | None:
    if workload.training:
        try:
            family = find_schedule(schedule)
        except UnknownNameError as error:
            return str(error)
        reason = family.requires(pp, chunks, microbatches)
        if reason is not None:
            return reason
    stages = pp * chunks
    if stages <= workload.num_blocks:
        return None
    return (
        f"pp x chunks = {pp} x {chunks} = {stages} stages, but the model has "
        f"{workload.num_blocks} blocks; expected at most one stage per block"
    )


def _recomputation(_workload: Workload, recompute: str, recompute_every: int) -> str | None:
    if recompute not in RECOMPUTE.names():
        return str(UnknownNameError("recompute", recompute, RECOMPUTE.names()))
    if recompute_every > 1 and recompute == "none":
        return f"recompute_every = {recompute_every}, but recompute is none"
    return None


def _sharing(
    workload: Workload, zero: int, zero_degree: int, dp: int, ep: int, cp: int, tp: int
) -> str | None:
    if zero_degree:
        if not zero:
            return "zero_degree says how far zero shards; it needs zero = 1, 2 or 3"
        if dp % zero_degree:
            return f"zero_degree = {zero_degree} does not divide dp = {dp}"
        if zero_degree % (expert_factors(ep, dp, cp, tp) or ExpertFactors()).dp:
            return f"zero_degree = {zero_degree} does not divide by ep = {ep}"
    if zero and not workload.training:
        return f"zero = {zero} shards what training keeps; inference has zero = 0"
    return None


def _backward(workload: Workload, recompute: str) -> str | None:
    if recompute != "none" and not workload.training:
        return "there is no backward pass to recompute for in inference; use recompute none"
    return None


RULES: tuple[Callable[..., str | None], ...] = (
    _batch,
    _tensor,
    _sequence,
    _experts,
    _kept,
    _exchange,
    _stated,
    _stages,
    _recomputation,
    _sharing,
    _backward,
)
"""In the order in which they are asked."""
