"""What Megatron-Core can do, whoever launches it: Megatron-LM or Megatron-Bridge."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.launch.common import notes_on_both
from autotune.launch.facts import MODEL, Facts
from autotune.launch.limits import Changes, Limit, only
from autotune.launch.target import Note
from distir.factoring import ExpertFactors, divisors, expert_factors
from distir.rules import WorkloadFacts
from distir.schedules.core.rhythm import groups_of
from distir.strategy import PLACEMENT, Strategy

PLACEMENTS = {False: PLACEMENT, True: "tp-cp-ep-pp-dp"}
"""Orders of ranks, by whether `use_tp_pp_dp_mapping` is set."""

EXCHANGES = {"gather": "all_gather", "ring": "p2p", "all-to-all": "a2a"}

RECOMPUTED = ("none", "selective", "full")


def group_size(pp: int, microbatches: int) -> int:
    """Microbatches that Megatron-Core sends through a chunk at a time to have our groups."""
    return len(groups_of(pp, microbatches)[0])


def _same_groups(pp: int, microbatches: int) -> bool:
    """Whether groups of one size, the last one of what is left, are our groups."""
    sizes = [len(group) for group in groups_of(pp, microbatches)]
    return all(size == sizes[0] for size in sizes[:-1])


def _interleaved(schedule: str, pp: int, chunks: int, microbatches: int) -> str | None:
    if schedule != "interleaved":
        return None
    if pp == 1 or chunks == 1:
        return "interleaved stages need pp > 1 and several chunks"
    if microbatches < pp:
        return f"interleaved stages need at least pp = {pp} microbatches, not {microbatches}"
    if not _same_groups(pp, microbatches):
        sizes = "+".join(str(len(group)) for group in groups_of(pp, microbatches))
        return (
            f"{microbatches} microbatches go in groups of {sizes}, but Megatron-Core has groups of "
            "one size and a rest"
        )
    return None


def _fewer_microbatches(strategy: Strategy) -> Iterator[Changes]:
    share = strategy.microbatches
    multiples = [m for m in divisors(share) if m % strategy.pp == 0]
    yield from ({"microbatches": m} for m in reversed(multiples))
    yield {"schedule": "1f1b", "chunks": 1}


def _chunks(schedule: str, chunks: int) -> str | None:
    if chunks == 1 or schedule == "interleaved":
        return None
    return (
        f"{schedule} with {chunks} chunks cannot be stated: with several stages per rank, "
        "Megatron-Core interleaves them"
    )


def _layers_in_full(recompute: str, recompute_layers: int) -> str | None:
    if not recompute_layers or recompute == "full":
        return None
    return (
        f"recompute_layers = {recompute_layers} with recompute = {recompute} cannot be stated: "
        "Megatron-Core counts layers only for full recomputation"
    )


def _context(workload: WorkloadFacts, cp: int) -> str | None:
    length = next((n for n in workload.sequence_lengths if n % (2 * cp)), None)
    if cp == 1 or length is None:
        return None
    return f"the sequence ({length}) is not divisible by 2 · cp = {2 * cp}"


def _experts_near(ep: int, dp: int, cp: int, tp: int, etp: int, expert_order: str) -> str | None:
    ours = expert_factors(ep, dp, cp, tp, etp, expert_order)
    if ours is None:
        return None  # a rule says so
    if ours == expert_factors(ep, dp, cp, tp, tp // ours.tp, "nearest"):
        return None
    return (
        f"ep = {ep} is shared along dp {ours.dp} × cp {ours.cp} × tp {ours.tp} here, but "
        "Megatron-Core fills cp before dp (expert_order nearest)"
    )


def _less_expert_parallel(strategy: Strategy) -> Iterator[Changes]:
    yield {"expert_order": "nearest"}
    yield from ({"ep": each} for each in reversed(divisors(strategy.ep)[:-1]))
    yield {"cp": 1, "dp": strategy.dp * strategy.cp, "cp_exchange": "gather"}


def _experts_rest(workload: WorkloadFacts, tp: int, sequence_parallel: bool) -> str | None:
    if not workload.expert_axes or tp == 1 or sequence_parallel:
        return None
    return "a mixture of experts with tp > 1 needs sequence_parallel in Megatron-Core"


def _training(workload: WorkloadFacts) -> str | None:
    return None if workload.mode == "training" else "only training can be launched"


def _fsdp_placement(zero: int, placement: str) -> str | None:
    if zero < 2 or placement == PLACEMENT:
        return None
    return f"zero = {zero} (Megatron-FSDP) needs the order {PLACEMENT}"


def _fsdp_pipeline(zero: int, pp: int) -> str | None:
    if zero < 2 or pp == 1:
        return None
    return f"zero = {zero} (Megatron-FSDP) with pp = {pp} cannot be stated"


def _all_replicas(zero_degree: int, dp: int) -> str | None:
    if zero_degree != dp or dp == 1:
        return None
    return f"zero_degree = dp = {dp} shards over all replicas; state that as 0"


def _zero_has_devices(zero: int, dp: int, cp: int) -> str | None:
    if zero == 0 or dp * cp > 1:
        return None
    return f"zero = {zero} shards over dp · cp = 1 device, which cannot be stated"


LIMITS: tuple[Limit, ...] = (
    Limit("only training", _training),
    only(
        "schedule",
        ("1f1b", "interleaved"),
        "Megatron-Core runs 1F1B, interleaved or not",
        {"schedule": "1f1b", "chunks": 1},
        {"schedule": "interleaved"},
    ),
    Limit("chunks interleave", _chunks, ({"schedule": "interleaved"}, {"chunks": 1})),
    Limit("groups of interleaved stages are equal", _interleaved, _fewer_microbatches),
    only(
        "placement",
        tuple(PLACEMENTS.values()),
        "Megatron-Core has two orders of ranks",
        {"placement": PLACEMENT},
    ),
    only("recompute", RECOMPUTED, "Megatron-Core has none, selective and full"),
    only(
        "offload",
        ("",),
        "with its optimizer on the host, gradients stay on the device, and of activations it "
        "offloads only the inputs of named modules, or of the first layers where pp is 1",
    ),
    Limit(
        "layers of a stage are recomputed in full",
        _layers_in_full,
        ({"recompute": "full"}, {"recompute_layers": 0}),
    ),
    Limit(
        "sequences are cut into 2 cp pieces",
        _context,
        lambda strategy: ({"cp": 1, "dp": strategy.dp * strategy.cp, "cp_exchange": "gather"},),
    ),
    Limit("experts are near", _experts_near, _less_expert_parallel),
    Limit("experts rest", _experts_rest, ({"sequence_parallel": True},)),
    Limit("FSDP has the usual order", _fsdp_placement, ({"placement": PLACEMENT}, {"zero": 1})),
    Limit("FSDP has no pipeline", _fsdp_pipeline, ({"zero": 1},)),
    Limit("a part of dp is a part", _all_replicas, ({"zero_degree": 0},)),
    Limit("ZeRO has devices", _zero_has_devices, ({"zero": 0, "zero_degree": 0},)),
)


def modules_recomputed(facts: Facts) -> tuple[str, ...]:
    """What selective recomputation means here, in Megatron-Core's words: what is cheap to compute
    again where attention is one kernel."""
    modules = ["layernorm"]
    if MODEL + "experts.count" in facts:
        modules.append("moe_act")
    if MODEL + "latent.key_rank" in facts:
        modules.append("mla_up_proj")
    return tuple(modules)


def expert_tensor_parallel(facts: Facts) -> int:
    """Devices that split each expert."""
    names = ("ep", "dp", "cp", "tp", "etp", "expert_order")
    shared = expert_factors(*(facts[name] for name in names)) or ExpertFactors()
    return facts["tp"] // shared.tp


def approximations(facts: Facts) -> Iterator[Note]:
    """What Megatron-Core does otherwise than it was simulated."""
    if facts["recompute"] == "selective":
        modules = ", ".join(modules_recomputed(facts))
        yield Note(
            "recompute",
            f"selective means {modules} in Megatron-Core: norms and activations, as simulated; its "
            "own default, core_attn, saves nothing where attention is one kernel",
        )
    if facts["precision"] == "fp8":
        yield Note(
            "precision",
            "fp8 is hybrid with current scaling (tensorwise): products in 8 bits, everything else "
            "in bf16",
        )
    if facts["precision"] == "fp32":
        yield Note(
            "precision",
            "Transformer Engine multiplies fp32 in TF32 where a device has it "
            "(common/gemm/cublaslt_gemm.cu); see “as megatron runs it”. Layers of Megatron's own "
            "(--transformer-impl local) do not",
        )
    yield from notes_on_both(facts)
    if facts["zero"] >= 2:
        yield Note(
            "zero",
            f"zero {facts['zero']} is Megatron-FSDP; its checkpoints have their own format "
            "(fsdp_dtensor)",
        )
    if facts["optimizer"] != "adam":
        yield Note("optimizer", f"{facts['optimizer']} keeps its states in fp32")
