"""What devices of `tp`, `cp` and `ep` may split: axes of the model, the sequence, experts."""

from __future__ import annotations

import math

from distir.factoring import (
    EXPERT_ORDERS,
    ExpertFactors,
    divisors,
    expert_factors,
    tensor_factors,
)
from distir.rules.facts import WorkloadFacts
from distir.rules.rule import Advice
from distir.rules.wording import product
from distir.strategy import CP_EXCHANGES, Strategy, own_mesh, stated_degrees

# --- axes of the model ----------------------------------------------------------------------------


def tp_divides_axes(workload: WorkloadFacts, axes: str, tp: int) -> str | None:
    """`tp` divides every internal axis, or each together with the axis inside it
    (`tensor_factors`)."""
    sizes, inner = workload.internal_axes, workload.inner_axes
    if "tp" in stated_degrees(axes) or tensor_factors(sizes, inner, tp):
        return None
    label, size = next((a for a in sizes if not tensor_factors([a], inner, tp)), sizes[0])
    within = f", each of {inner[label]} queries" if inner.get(label, 1) > 1 else ""
    return f"{label} ({size}{within}) is not divisible by tp = {tp}"


def tp_to_try(workload: WorkloadFacts) -> Advice:
    """Degrees that divide every internal axis together with the axis inside it."""
    inner = workload.inner_axes
    most = math.gcd(*(size * inner.get(label, 1) for label, size in workload.internal_axes))
    return {"tp": divisors(most)}


# --- the sequence ---------------------------------------------------------------------------------


def sequence_parallel_has_tp(tp: int, sequence_parallel: bool) -> str | None:
    """Sequence parallelism needs devices of `tp` on which the sequence rests."""
    if not sequence_parallel or tp > 1:
        return None
    return "sequence_parallel needs tp > 1: it splits the sequence over the devices of tp"


def sequence_divides(
    workload: WorkloadFacts, axes: str, tp: int, cp: int, sequence_parallel: bool
) -> str | None:
    """`cp` and sequence parallelism divide every sequence of the model. Where a strategy states the
    list of `cp`, `stated_lists_fit` answers."""
    shares = {"cp": cp} if cp > 1 else {}
    shares |= {"tp": tp} if sequence_parallel else {}
    if not shares or "cp" in stated_degrees(axes):
        return None
    lengths, pieces = workload.sequence_lengths, math.prod(shares.values())
    asked = product(shares) + (" with sequence_parallel" if sequence_parallel else "")
    if not lengths:
        return f"{asked} splits the sequence, but the model has no sequence"
    length = next((each for each in lengths if each % pieces), None)
    if length is None:
        return None
    along = "the sequence" if length == max(lengths) else "the dimension along the sequence"
    return f"{along} ({length}) is not divisible by {asked}"


def shares_to_try(workload: WorkloadFacts, sequence_parallel: bool) -> Advice:
    """Degrees that divide every sequence. Sequence parallelism needs `tp` above 1."""
    suited = divisors(math.gcd(*workload.sequence_lengths) or 1)
    if not sequence_parallel:
        return {"cp": suited}
    return {"cp": suited, "tp": suited[1:], "sequence_parallel": (False,)}


# --- experts --------------------------------------------------------------------------------------


def ep_divides(
    workload: WorkloadFacts, dp: int, cp: int, tp: int, ep: int, etp: int, expert_order: str
) -> str | None:
    """`ep` divides the experts, and as many devices can share them (`expert_factors`)."""
    if ep == 1:
        return None
    sizes = workload.expert_axes
    if not sizes:
        return f"ep = {ep} shares experts, but the model has no axis of experts"
    for label, size in sizes:
        if size % ep:
            return f"ep = {ep} must divide the {label} ({size})"
    if expert_factors(ep, dp, cp, tp, etp, expert_order) is None:
        split = f" of which etp = {etp} split each expert" if etp else ""
        near = ", the nearest first" if expert_order == "nearest" else ""
        return f"ep = {ep} does not fit dp {dp} x cp {cp} x tp {tp} devices{near}{split}"
    return None


def ep_to_try(workload: WorkloadFacts) -> Advice:
    """Degrees that divide the experts; 1 if there are none."""
    return {
        "ep": divisors(math.gcd(*(size for _, size in workload.expert_axes)) or 1),
        "expert_order": EXPERT_ORDERS,
    }


def etp_has_experts(ep: int, tp: int, etp: int) -> str | None:
    """`etp` of the devices of `tp` split experts that `ep` devices share."""
    if not etp:
        return None
    if ep == 1:
        return f"etp = {etp} splits experts that ep devices share, but ep is 1"
    return f"etp = {etp} does not divide tp = {tp}" if tp % etp else None


def etps_to_try(tp: int) -> Advice:
    """As many as possible (0), or a number that divides `tp`."""
    return {"etp": (0, *divisors(tp))}


def etp_splits_axes(
    workload: WorkloadFacts,
    axes: str,
    dp: int,
    cp: int,
    tp: int,
    ep: int,
    etp: int,
    expert_order: str,
) -> str | None:
    """Devices of `tp` that share experts are whole factors of those that split other axes."""
    shared = expert_factors(ep, dp, cp, tp, etp, expert_order) or ExpertFactors()
    sizes, inner = workload.internal_axes, workload.inner_axes
    if "tp" in stated_degrees(axes) or not tensor_factors(sizes, inner, tp):
        return None
    if tensor_factors(sizes, inner, tp, shared.tp):
        return None
    label, size = next(a for a in sizes if not tensor_factors([a], inner, tp, shared.tp))
    return (
        f"etp = {etp} leaves {shared.tp} of the tp = {tp} devices to share experts, but these "
        f"cannot be taken from those that split {label} ({size})"
    )


def stated_lists_leave_experts(
    axes: str, dp: int, cp: int, tp: int, ep: int, etp: int, expert_order: str
) -> str | None:
    """A list that is stated replaces the one by which devices of `cp` or `tp` share experts."""
    shared = expert_factors(ep, dp, cp, tp, etp, expert_order) or ExpertFactors()
    stated = stated_degrees(axes)
    for user in ("cp", "tp"):
        if getattr(shared, user) > 1 and user in stated:
            return (
                f"ep = {ep} is shared along {user}, for which axes state a list; put experts* into "
                "that list to split experts without ep"
            )
    return None


def less_ep(dp: int, cp: int, tp: int, ep: int, etp: int, expert_order: str) -> Advice:
    """Divisors of `ep`, as far as that many devices can share experts."""
    fitting = [n for n in divisors(ep) if expert_factors(n, dp, cp, tp, etp, expert_order)]
    return {"ep": fitting}


# --- keys and values of context parallelism -------------------------------------------------------

NEEDS = {
    "ring": "needs fused attention (--attention fused), but the model has none",
    "all-to-all": "splits heads, but no attention of the model has an axis of heads",
}
"""What a model must have for each way of bringing keys and values together."""


def exchange_has_cp(cp: int, cp_exchange: str) -> str | None:
    """Keys and values are brought together where `cp` has split their sequence."""
    if cp > 1 or cp_exchange == "gather":
        return None
    return (
        f"cp_exchange = {cp_exchange} needs cp > 1: it states how cp brings keys and values "
        "together"
    )


def exchange_has_its_list(axes: str, cp_exchange: str) -> str | None:
    """An exchange decides what `cp` splits, so a strategy cannot state that as well."""
    if cp_exchange == "gather" or "cp" not in stated_degrees(axes):
        return None
    return f"cp_exchange = {cp_exchange} decides the list of cp, but axes state one already"


def model_can_exchange(workload: WorkloadFacts, cp_exchange: str) -> str | None:
    """The model's keys and values can be brought together in this way."""
    if cp_exchange in workload.cp_exchanges:
        return None
    return f"cp_exchange = {cp_exchange} {NEEDS[cp_exchange]}"


def exchange_divides(
    workload: WorkloadFacts,
    axes: str,
    tp: int,
    cp: int,
    dp: int,
    ep: int,
    sequence_parallel: bool,
    cp_exchange: str,
) -> str | None:
    """What an exchange splits besides the sequence, such as heads, divides. A rule apart from
    `stated_lists_fit`: without lists of its own, a strategy cuts its batch as any other, so this
    one need not read microbatches."""
    if axes or cp_exchange == "gather":
        return None
    return workload.explain_lists(
        Strategy(
            tp=tp,
            cp=cp,
            dp=dp,
            ep=ep,
            sequence_parallel=sequence_parallel,
            cp_exchange=cp_exchange,
        )
    )


def smaller_exchange(cp: int) -> Advice:
    """Fewer devices of `cp`, or another exchange."""
    return {"cp": divisors(cp)[1:], "cp_exchange": CP_EXCHANGES}


# --- lists that a strategy states -----------------------------------------------------------------


def own_mesh_has_devices(axes: str, tp: int) -> str | None:
    """Mesh axes of a user's own have all devices of `tp`."""
    own = own_mesh(axes)
    if not own or math.prod(own.values()) == tp:
        return None
    return f"axes state a mesh of {product(own)}, but it must have the devices of tp = {tp}"


def devices_of_own_mesh(axes: str) -> Advice:
    """As many devices of `tp` as the mesh has."""
    return {"tp": (math.prod(own_mesh(axes).values()),)}


def stated_lists_have_devices(axes: str, dp: int, ep: int, cp: int, tp: int) -> str | None:
    """A list that axes state is of a degree above 1."""
    degrees = {"dp": dp, "ep": ep, "cp": cp, "tp": tp}
    user = next((user for user in stated_degrees(axes) if degrees[user] == 1), None)
    return None if user is None else f"axes state a list for {user}, which needs {user} > 1"


def stated_list_has_the_sequence(axes: str, sequence_parallel: bool) -> str | None:
    """Sequence parallelism is the sequence at the end of the usual list of `tp`; a list that is
    stated has it or not."""
    if not sequence_parallel or "tp" not in stated_degrees(axes):
        return None
    return (
        "sequence_parallel adds to the list of tp, which axes state here; add sequence to that "
        "list instead"
    )


def stated_lists_fit(
    workload: WorkloadFacts,
    axes: str,
    tp: int,
    cp: int,
    dp: int,
    ep: int,
    sequence_parallel: bool,
    cp_exchange: str,
    microbatches: int,
) -> str | None:
    """The model has the axes of the lists that a strategy states, and they divide."""
    if not axes:
        return None
    return workload.explain_lists(
        Strategy(
            axes=axes,
            tp=tp,
            cp=cp,
            dp=dp,
            ep=ep,
            sequence_parallel=sequence_parallel,
            cp_exchange=cp_exchange,
            microbatches=microbatches,
        )
    )


def fewer_pieces(axes: str, dp: int, ep: int, cp: int, tp: int, microbatches: int) -> Advice:
    """Divisors above 1 of the degrees whose lists are stated, and fewer microbatches."""
    degrees = {"dp": dp, "ep": ep, "cp": cp, "tp": tp}
    stated = {user: divisors(degrees[user])[1:] for user in stated_degrees(axes)}
    if own_mesh(axes):
        stated.pop("tp")
    return {**stated, "microbatches": divisors(microbatches)}
