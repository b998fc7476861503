"""The rule book: everything that makes a strategy impossible for a workload, in one table.

Spaces prune by it, simulators refuse by it. To add a rule, write its check in the file of its
subject, and its line here: the condition, the check, what to try. Memory is another matter: what
does not fit is simulated, and is infeasible.
"""

from __future__ import annotations

from distir.rules import memory, pipeline, splitting, synchronising
from distir.rules.facts import WorkloadFacts
from distir.rules.rule import Rule
from distir.strategy import CP_EXCHANGES, KEEP_GATHERED

RULES: tuple[Rule, ...] = (
    # What replicas get.
    Rule("dp divides the batch", pipeline.dp_divides_batch, pipeline.dp_to_try),
    Rule(
        "microbatches divide a replica's share",
        pipeline.microbatches_divide_share,
        pipeline.microbatches_to_try,
    ),
    # What their devices split.
    Rule("tp divides every internal axis", splitting.tp_divides_axes, splitting.tp_to_try),
    Rule(
        "sequence parallelism has devices of tp",
        splitting.sequence_parallel_has_tp,
        {"sequence_parallel": (False,)},
    ),
    Rule("the sequence divides", splitting.sequence_divides, splitting.shares_to_try),
    Rule("etp splits experts that are shared", splitting.etp_has_experts, splitting.etps_to_try),
    Rule("ep divides experts and devices", splitting.ep_divides, splitting.ep_to_try),
    Rule("etp leaves whole factors of tp", splitting.etp_splits_axes, splitting.etps_to_try),
    Rule(
        "stated lists leave experts their devices",
        splitting.stated_lists_leave_experts,
        splitting.less_ep,
    ),
    Rule(
        "an exchange of keys has devices of cp",
        splitting.exchange_has_cp,
        {"cp_exchange": CP_EXCHANGES},
    ),
    Rule(
        "an exchange of keys has its own list",
        splitting.exchange_has_its_list,
        {"cp_exchange": CP_EXCHANGES},
    ),
    Rule(
        "the model has what the exchange of keys needs",
        splitting.model_can_exchange,
        {"cp_exchange": CP_EXCHANGES},
    ),
    Rule(
        "what the exchange of keys splits divides",
        splitting.exchange_divides,
        splitting.smaller_exchange,
    ),
    Rule(
        "a mesh of one's own has all devices of tp",
        splitting.own_mesh_has_devices,
        splitting.devices_of_own_mesh,
    ),
    Rule(
        "stated lists have devices",
        splitting.stated_lists_have_devices,
        otherwise="leave that list out",
    ),
    Rule(
        "a stated list of tp says where the sequence rests",
        splitting.stated_list_has_the_sequence,
        {"sequence_parallel": (False,)},
    ),
    Rule(
        "the model has the axes of stated lists, and they divide",
        splitting.stated_lists_fit,
        splitting.fewer_pieces,
        otherwise="name other axes, or leave the list out",
    ),
    # What the pipeline is made of.
    Rule("every stage has a block", pipeline.stages_have_blocks, pipeline.stages_to_try),
    Rule("the schedule is known", pipeline.schedule_is_known),
    Rule(
        "the schedule exists for these numbers",
        pipeline.schedule_exists,
        pipeline.numbers_to_try,
    ),
    # What training keeps.
    Rule("the recomputation is known", memory.recomputation_is_known),
    Rule(
        "recomputation is for training",
        memory.recomputation_is_for_training,
        {"recompute": ("none",)},
    ),
    Rule(
        "every n-th block recomputes something",
        memory.every_recomputes,
        {"recompute_every": (1,)},
    ),
    Rule(
        "some block is the n-th that recomputes",
        memory.blocks_recompute,
        {"recompute_every": (1,)},
    ),
    Rule(
        "layers of a stage recompute something",
        memory.layers_recompute,
        {"recompute_layers": (0,), "recompute": ("full", "selective")},
    ),
    Rule(
        "layers that recompute are chosen once",
        memory.layers_are_chosen_once,
        {"recompute_layers": (0,), "recompute_every": (1,)},
    ),
    Rule("ZeRO is for training", memory.zero_is_for_training, {"zero": (0,)}),
    Rule(
        "a part of dp has something to shard",
        memory.zero_degree_has_zero,
        {"zero": (1, 2, 3), "zero_degree": (0,)},
    ),
    Rule("a part of dp divides it", memory.zero_degree_divides_dp, memory.zero_degrees_to_try),
    Rule(
        "a part of dp holds whole groups of experts",
        memory.zero_degree_holds_experts,
        memory.zero_degrees_to_try,
    ),
    Rule("offloading is for training", memory.offload_is_for_training, otherwise="leave it out"),
    Rule(
        "synchronising is for training",
        synchronising.synchronising_is_for_training,
        {"sync_every": (1,)},
    ),
    Rule("replicas synchronise", synchronising.replicas_synchronise, {"sync_every": (1,)}),
    Rule(
        "replicas have states of their own",
        synchronising.replicas_have_states_of_their_own,
        {"zero": (0,), "sync_every": (1,)},
    ),
    Rule(
        "replicas have experts of their own",
        synchronising.replicas_have_experts_of_their_own,
        {"ep": (1,), "sync_every": (1,)},
    ),
    Rule(
        "replicas that synchronise rarely split samples",
        synchronising.replicas_split_samples,
        {"sync_every": (1,)},
    ),
    Rule(
        "outer steps follow others",
        synchronising.outer_steps_follow_others,
        {"outer_optimizer": ("mean",), "sync_every": (8, 64, 512)},
    ),
    Rule("keeping is for training", memory.keeping_is_for_training, {"keep_gathered": ("none",)}),
    Rule(
        "parameters that are kept are gathered",
        memory.kept_parameters_are_gathered,
        {"zero": (3,), "keep_gathered": KEEP_GATHERED},
    ),
    Rule(
        "activations that are kept are gathered",
        memory.kept_activations_are_gathered,
        {"sequence_parallel": (True,), "keep_gathered": KEEP_GATHERED},
    ),
)
"""In the order in which they are asked; a reason is that of the first that is broken."""


def rules_of(workload: WorkloadFacts) -> tuple[Rule, ...]:
    """The rules as they are for a workload."""
    return tuple(rule.of(workload) for rule in RULES)


__all__ = ["RULES", "rules_of"]
