"""What training keeps: where it is sharded, what is computed or gathered again."""

from __future__ import annotations

from distir.errors import UnknownNameError
from distir.factoring import ExpertFactors, divisors, expert_factors
from distir.rules.facts import WorkloadFacts
from distir.rules.rule import Advice
from distir.strategy import AUTO, KEEPS_ACTIVATIONS, KEEPS_PARAMETERS

# --- ZeRO -----------------------------------------------------------------------------------------


def zero_is_for_training(workload: WorkloadFacts, zero: int) -> str | None:
    """Inference has neither gradients nor an optimizer."""
    if workload.mode == "training" or not zero:
        return None
    return f"zero = {zero} shards what training keeps, and inference keeps nothing"


def zero_degree_has_zero(zero: int, zero_degree: int) -> str | None:
    """`zero_degree` says over how many replicas ZeRO shards, so there must be ZeRO."""
    if zero or not zero_degree:
        return None
    return f"zero_degree = {zero_degree} states how far zero shards, but zero is 0"


def zero_degree_divides_dp(zero_degree: int, dp: int) -> str | None:
    """Replicas that shard states together are groups of equal size."""
    if not zero_degree or dp % zero_degree == 0:
        return None
    return f"zero_degree = {zero_degree} does not divide dp = {dp}"


def zero_degree_holds_experts(
    zero_degree: int, dp: int, cp: int, tp: int, ep: int, etp: int, expert_order: str
) -> str | None:
    """Replicas that shard states together hold every expert equally often."""
    sharing = (expert_factors(ep, dp, cp, tp, etp, expert_order) or ExpertFactors()).dp
    if zero_degree % sharing == 0:
        return None
    return f"zero_degree = {zero_degree} is not divisible by the {sharing} replicas of ep = {ep}"


def zero_degrees_to_try(dp: int) -> Advice:
    """All replicas (0), or a number that divides them."""
    return {"zero_degree": (0, *divisors(dp))}


# --- offloading -----------------------------------------------------------------------------------


def offload_is_for_training(workload: WorkloadFacts, offload: str) -> str | None:
    """Inference has no optimizer, and no backward pass that anything is kept for."""
    if workload.mode == "training" or {"optimizer", "activations"}.isdisjoint(offload.split(",")):
        return None
    return f"offload = {offload} applies to what training keeps, and inference keeps nothing"


# --- recomputation --------------------------------------------------------------------------------


def recomputation_is_known(recompute: str) -> str | None:
    """A recomputation has this name; if not, the reason lists those that there are."""
    from distir.transforms.recompute import RECOMPUTE

    known = (*RECOMPUTE.names(), AUTO)
    return None if recompute in known else str(UnknownNameError(RECOMPUTE.kind, recompute, known))


def recomputation_is_for_training(workload: WorkloadFacts, recompute: str) -> str | None:
    """Recomputation is done in the backward pass."""
    if workload.mode == "training" or recompute == "none":
        return None
    return f"recompute = {recompute}, but inference has no backward pass"


def every_recomputes(recompute: str, recompute_every: int) -> str | None:
    """`recompute_every` says in which blocks something is recomputed, so something must be."""
    if recompute_every == 1 or recompute not in ("none", AUTO):
        return None
    return f"recompute_every = {recompute_every}, but recompute is {_which(recompute)}"


def blocks_recompute(workload: WorkloadFacts, recompute_every: int) -> str | None:
    """Of as many blocks as the model has, some is the n-th that recomputes."""
    if recompute_every <= max(1, workload.num_blocks):
        return None
    return (
        f"recompute_every = {recompute_every}, but the model has {workload.num_blocks} blocks, so "
        "nothing would be recomputed"
    )


def _which(recompute: str) -> str:
    return "auto, which chooses layers itself" if recompute == AUTO else recompute


def layers_recompute(recompute: str, recompute_layers: int) -> str | None:
    """`recompute_layers` says how many layers recompute something, so something must be."""
    if not recompute_layers or recompute not in ("none", AUTO):
        return None
    return f"recompute_layers = {recompute_layers}, but recompute is {_which(recompute)}"


def layers_are_chosen_once(recompute_every: int, recompute_layers: int) -> str | None:
    """Layers that recompute are every n-th of the model, or the first of every stage."""
    if recompute_every == 1 or not recompute_layers:
        return None
    return (
        f"recompute_layers = {recompute_layers} and recompute_every = {recompute_every} both state "
        "which layers recompute"
    )


# --- what was gathered ----------------------------------------------------------------------------


def keeping_is_for_training(workload: WorkloadFacts, keep_gathered: str) -> str | None:
    """What a forward pass gathered is kept for the backward pass."""
    if workload.mode == "training" or keep_gathered == "none":
        return None
    return f"keep_gathered = {keep_gathered} is for a backward pass, and inference has none"


def kept_parameters_are_gathered(zero: int, keep_gathered: str) -> str | None:
    """Parameters are gathered by ZeRO 3 alone."""
    if keep_gathered not in KEEPS_PARAMETERS or zero == 3:
        return None
    return (
        f"keep_gathered = {keep_gathered} keeps the parameters that zero = 3 gathers, but zero "
        f"is {zero}"
    )


def kept_activations_are_gathered(sequence_parallel: bool, keep_gathered: str) -> str | None:
    """Activations are gathered by sequence parallelism alone."""
    if keep_gathered not in KEEPS_ACTIVATIONS or sequence_parallel:
        return None
    return (
        f"keep_gathered = {keep_gathered} keeps the activations that sequence_parallel gathers, "
        "which is off"
    )
