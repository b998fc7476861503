"""What torchtitan cannot be told, and what is nearest."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.launch.common import FSDP_OFFLOADS
from autotune.launch.limits import Changes, Limit, only
from autotune.launch.torch_schedule import stage_order
from distir.factoring import divisors, expert_factors
from distir.rules import WorkloadFacts
from distir.schedules import find_schedule
from distir.strategy import PLACEMENT, Strategy

POLICIES = {"none": "none", "full": "full", "alternate": "selective"}
"""What is recomputed, and the word for it that ends a command line."""


def _training(workload: WorkloadFacts) -> str | None:
    return None if workload.mode == "training" else "only training can be launched"


def _zero(zero: int) -> str | None:
    if zero in (0, 3):
        return None
    return f"FSDP2 shards parameters: zero = {zero} cannot be stated"


def _zero_has_devices(zero: int, zero_degree: int, dp: int, cp: int) -> str | None:
    sharing = (zero_degree or dp) * cp
    if zero and sharing == 1:
        return "zero would shard over one device, which is the same as zero = 0"
    if not zero and cp > 1:
        return f"FSDP2 shards parameters over cp = {cp}: zero = 0 cannot be stated"
    return None


def _whole_degree(zero_degree: int, dp: int) -> str | None:
    if zero_degree and zero_degree == dp:
        return f"zero_degree = dp = {dp} shards over all replicas; state that as 0"
    return None


def _heads(workload: WorkloadFacts, tp: int) -> str | None:
    found = next(((n, s) for n, s in workload.internal_axes if s % tp), None)
    if found is None:
        return None
    return (
        f"{found[0]} ({found[1]}) must be divisible by tp = {tp}, and so must the heads of keys "
        "and values"
    )


def _context(workload: WorkloadFacts, cp: int) -> str | None:
    length = next((n for n in workload.sequence_lengths if n % (2 * cp)), None)
    if cp == 1 or length is None:
        return None
    return f"the sequence ({length}) is not divisible by 2 · cp = {2 * cp}"


def _experts(
    workload: WorkloadFacts,
    ep: int,
    dp: int,
    cp: int,
    tp: int,
    zero: int,
    zero_degree: int,
    etp: int,
    expert_order: str,
) -> str | None:
    if not workload.expert_axes:
        return None
    ours = expert_factors(ep, dp, cp, tp, etp, expert_order)
    if ours is None:
        return None  # a rule says so
    if ours.tp != tp:
        return f"torchtitan does not split experts by tp: ep = {ep} must be shared over tp = {tp}"
    if ours != expert_factors(ep, dp, cp, tp, 1, "nearest"):
        return (
            f"ep = {ep} is shared along dp here, but torchtitan fills cp = {cp} before dp "
            "(expert_order nearest)"
        )
    shard = 1 if zero == 0 else zero_degree or dp
    if shard % ours.dp:
        return f"ep = {ep} is shared over {ours.dp} replicas, of which only {shard} are sharded"
    return None


def _other_experts(strategy: Strategy) -> Iterator[Changes]:
    sharded: Changes = {"zero": 3, "zero_degree": 0}
    yield sharded
    if strategy.ep > 1:
        near: Changes = {"etp": int(strategy.tp > 1), "expert_order": "nearest"}
        yield near
        yield {**near, **sharded}
    for ep in sorted(
        divisors(strategy.dp * strategy.cp * strategy.tp), key=lambda n: abs(n - strategy.ep)
    ):
        yield {"ep": ep, "etp": 0}
        yield {"ep": ep, "etp": 0, **sharded}
    yield {"tp": 1, "dp": strategy.dp * strategy.tp, "sequence_parallel": False, **sharded}


def _stages(schedule: str, pp: int, chunks: int, microbatches: int) -> str | None:
    if pp == 1:
        if schedule == "1f1b" and chunks == 1:
            return None
        return f"without a pipeline, {schedule} with {chunks} chunks cannot be stated"
    family = find_schedule(schedule)
    if family.copies > 1:
        return f"{schedule} has each stage on two ranks: torch's DualPipeV is another schedule"
    if family.requires(pp, chunks, microbatches) is not None:
        return None  # a rule says so
    made = family(pp, chunks, microbatches)
    order = stage_order(made)
    if order is None:
        return f"the stages of {schedule} lie on ranks neither as a loop nor as a V"
    if schedule == "1f1b" and order == "loop" and chunks == 1 and microbatches < pp:
        return f"1F1B needs at least as many microbatches as stages ({pp}), not {microbatches}"
    return None


def _less_tensor_parallel(strategy: Strategy) -> Iterator[Changes]:
    for tp in reversed(divisors(strategy.tp)[:-1]):
        dp = strategy.dp * strategy.tp // tp
        sp = strategy.sequence_parallel and tp > 1
        yield {"tp": tp, "dp": dp, "sequence_parallel": sp}


LIMITS: tuple[Limit, ...] = (
    Limit("only training", _training),
    only("placement", (PLACEMENT,), "the mesh has one order", {"placement": PLACEMENT}),
    only("cp_exchange", ("gather",), "keys and values are gathered", {"cp_exchange": "gather"}),
    Limit(
        "FSDP shards parameters",
        _zero,
        ({"zero": 3, "keep_gathered": "parameters"}, {"zero": 3}, {"zero": 0, "zero_degree": 0}),
    ),
    Limit(
        "ZeRO has devices",
        _zero_has_devices,
        (
            {"zero": 3, "zero_degree": 0, "keep_gathered": "parameters"},
            {"zero": 0, "zero_degree": 0, "keep_gathered": "none"},
        ),
    ),
    Limit("a part of dp is a part", _whole_degree, ({"zero_degree": 0},)),
    FSDP_OFFLOADS,
    only(
        "sync_every",
        (1,),
        "local_sgd and diloco of torchtitan/experiments/ft need one launch per replica, joined by "
        "a Lighthouse of torchft",
        {"sync_every": 1, "outer_optimizer": "mean"},
    ),
    only(
        "keep_gathered",
        ("none", "parameters"),
        "gathered activations are not kept",
        {"keep_gathered": "none"},
        {"keep_gathered": "parameters"},
    ),
    only(
        "recompute",
        tuple(POLICIES),
        "selective means every second product and cheap ops, which is alternate here",
        {"recompute": "alternate"},
        {"recompute": "full"},
        {"recompute": "none"},
    ),
    Limit("tp divides heads of keys", _heads, _less_tensor_parallel),
    Limit(
        "sequences are cut into 2 cp pieces",
        _context,
        lambda strategy: ({"cp": 1, "dp": strategy.dp * strategy.cp},),
    ),
    Limit(
        "experts lie as torchtitan lays them",
        _experts,
        _other_experts,
    ),
    Limit(
        "stages lie as torchtitan builds them",
        _stages,
        (
            {"schedule": "1f1b", "chunks": 1},
            {"schedule": "gpipe", "chunks": 1},
            {"schedule": "interleaved", "chunks": 2},
        ),
    ),
)
