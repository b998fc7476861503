"""Rules about replicas that synchronise every k-th step (Lin et al. 2018, local SGD; Douillard et
al. 2023, DiLoCo)."""

from __future__ import annotations

from distir.factoring import expert_factors
from distir.rules.facts import WorkloadFacts
from distir.strategy import stated_degrees


def synchronising_is_for_training(workload: WorkloadFacts, sync_every: int) -> str | None:
    """Inference changes no parameters."""
    if sync_every == 1 or workload.mode == "training":
        return None
    return (
        f"sync_every = {sync_every} applies to parameters that change, and inference changes none"
    )


def replicas_synchronise(sync_every: int, dp: int) -> str | None:
    """Who synchronises rarely has somebody to synchronise with."""
    if sync_every == 1 or dp > 1:
        return None
    return f"sync_every = {sync_every}, but dp = {dp}: there are no other replicas"


def replicas_have_states_of_their_own(sync_every: int, zero: int) -> str | None:
    """Between synchronisations parameters and moments differ from replica to replica, so that none
    can hold a part for others."""
    if sync_every == 1 or not zero:
        return None
    return (
        f"sync_every = {sync_every} with zero = {zero}: between synchronisations, replicas have "
        "parameters and moments of their own, which ZeRO would shard among them"
    )


def replicas_have_experts_of_their_own(
    sync_every: int, dp: int, cp: int, tp: int, ep: int, etp: int, expert_order: str
) -> str | None:
    """Tokens on the way to experts of other replicas would synchronise these."""
    factors = expert_factors(ep, dp, cp, tp, etp, expert_order)
    if sync_every == 1 or factors is None or factors.dp == 1:
        return None
    return (
        f"sync_every = {sync_every} with ep = {ep}: {factors.dp} replicas share experts, which "
        "would have to be synchronised in every step"
    )


def replicas_split_samples(sync_every: int, axes: str) -> str | None:
    """What replicas split beside samples, they would have to exchange in every step, and no replica
    would have all parameters."""
    if sync_every == 1 or "dp" not in stated_degrees(axes):
        return None
    return (
        f"sync_every = {sync_every}, but axes state a list of dp: replicas that synchronise rarely "
        "split only samples, and need no list for that"
    )


def outer_steps_follow_others(outer_optimizer: str, sync_every: int) -> str | None:
    """An outer step goes along what replicas have changed on their own."""
    if outer_optimizer == "mean" or sync_every > 1:
        return None
    return (
        f"outer_optimizer = {outer_optimizer} with sync_every = 1: replicas that synchronise in "
        "every step do not differ, so an outer optimizer has nothing to do"
    )
