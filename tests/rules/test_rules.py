"""The rule book: every rule can fail, says why, and gives advice that can be followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.factoring import EXPERT_ORDERS
from distir.rules import RULES, Rule, degrees_fill, degrees_fit, explain, rules_of
from distir.rules.rule import WORKLOAD, parameter_names
from distir.rules.wording import listed, product, would_do
from distir.strategies import FIELDS
from distir.strategy import (
    CP_EXCHANGES,
    KEEP_GATHERED,
    OFFLOADS,
    OUTER_OPTIMIZERS,
    Strategy,
)
from tests.facts import Facts

DEVICES = 16
BOOK = (degrees_fill(DEVICES), degrees_fit(DEVICES), *RULES)

FORWARD_ONLY = Facts(mode="inference")
EXPERTS = Facts(expert_axes=(("experts", 8),))
GATHERS = Facts(cp_exchanges=("gather",))

BROKEN: dict[str, tuple[Facts, Strategy, str]] = {
    "the degrees fill the devices": (
        Facts(),
        Strategy(dp=2),
        "dp x tp x pp = 2 x 1 x 1 = 2, but there are 16 devices; dp = 16 or pp = 8 would do",
    ),
    "the degrees fit the devices": (
        Facts(),
        Strategy(dp=4, tp=4, cp=2),
        (
            "dp x tp x cp x pp = 4 x 4 x 2 x 1 = 32, but there are 16 devices; "
            "dp = 2 or tp = 2 or cp = 1 would do"
        ),
    ),
    "dp divides the batch": (
        Facts(6),
        Strategy(dp=4),
        "the batch (6) is not divisible by dp = 4; dp = 1, 2, 3, 6 would do",
    ),
    "microbatches divide a replica's share": (
        Facts(12),
        Strategy(dp=2, microbatches=4),
        (
            "each replica's share of the batch (12 / 2 = 6) is not divisible by microbatches = 4; "
            "microbatches = 1, 2, 3, 6 would do"
        ),
    ),
    "tp divides every internal axis": (
        Facts(internal_axes=(("heads", 8), ("ffn", 64)), inner=(("heads", 4),)),
        Strategy(tp=64),
        (
            "heads (8, each of 4 queries) is not divisible by tp = 64; "
            "tp = 1, 2, 4, 8, 16, 32 would do"
        ),
    ),
    "sequence parallelism has devices of tp": (
        Facts(),
        Strategy(sequence_parallel=True),
        (
            "sequence_parallel needs tp > 1: it splits the sequence over the devices of tp; "
            "sequence_parallel = false would do"
        ),
    ),
    "the sequence divides": (
        Facts(sequence_lengths=(36, 24)),
        Strategy(cp=2, tp=4, sequence_parallel=True),
        (
            "the sequence (36) is not divisible by cp x tp = 2 x 4 = 8 with sequence_parallel; "
            "cp = 1, 3 or tp = 2, 3, 6 or sequence_parallel = false would do"
        ),
    ),
    "etp splits experts that are shared": (
        EXPERTS,
        Strategy(dp=4, tp=2, ep=4, etp=4),
        "etp = 4 does not divide tp = 2; etp = 0, 1, 2 would do",
    ),
    "etp leaves whole factors of tp": (
        Facts(
            internal_axes=(("groups", 2),), inner=(("groups", 3),), expert_axes=(("experts", 12),)
        ),
        Strategy(tp=6, ep=3, etp=2),
        (
            "etp = 2 leaves 3 of the tp = 6 devices to share experts, but these cannot be taken "
            "from those that split groups (2); etp = 0, 1, 3, 6 would do"
        ),
    ),
    "ep divides experts and devices": (
        EXPERTS,
        Strategy(dp=4, ep=8),
        "ep = 8 does not fit dp 4 x cp 1 x tp 1 devices; ep = 1, 2, 4 would do",
    ),
    "stated lists leave experts their devices": (
        EXPERTS,
        Strategy(dp=2, tp=4, ep=8, axes="tp=heads,ffn"),
        (
            "ep = 8 is shared along tp, for which axes state a list; put experts* into that list "
            "to split experts without ep; ep = 1, 2 would do"
        ),
    ),
    "an exchange of keys has devices of cp": (
        Facts(),
        Strategy(cp_exchange="ring"),
        (
            "cp_exchange = ring needs cp > 1: it states how cp brings keys and values together; "
            "cp_exchange = gather would do"
        ),
    ),
    "an exchange of keys has its own list": (
        Facts(),
        Strategy(cp=2, cp_exchange="ring", axes="cp=sequence"),
        (
            "cp_exchange = ring decides the list of cp, but axes state one already; "
            "cp_exchange = gather would do"
        ),
    ),
    "the model has what the exchange of keys needs": (
        GATHERS,
        Strategy(cp=2, cp_exchange="ring"),
        (
            "cp_exchange = ring needs fused attention (--attention fused), but the model has none; "
            "cp_exchange = gather would do"
        ),
    ),
    "what the exchange of keys splits divides": (
        Facts(uneven="heads"),
        Strategy(cp=8, cp_exchange="all-to-all"),
        "heads do not divide; cp_exchange = gather, ring would do",
    ),
    "a mesh of one's own has all devices of tp": (
        Facts(),
        Strategy(tp=8, axes="data:2=batch;model:2=heads"),
        (
            "axes state a mesh of data x model = 2 x 2 = 4, but it must have the devices of tp = "
            "8; "
            "tp = 4 would do"
        ),
    ),
    "stated lists have devices": (
        Facts(),
        Strategy(dp=2, axes="tp=heads"),
        "axes state a list for tp, which needs tp > 1; leave that list out",
    ),
    "a stated list of tp says where the sequence rests": (
        Facts(),
        Strategy(tp=2, sequence_parallel=True, axes="tp=heads"),
        (
            "sequence_parallel adds to the list of tp, which axes state here; add sequence to that "
            "list instead; "
            "sequence_parallel = false would do"
        ),
    ),
    "the model has the axes of stated lists, and they divide": (
        Facts(uneven="ffn"),
        Strategy(tp=2, axes="tp=ffn"),
        "ffn do not divide; name other axes, or leave the list out",
    ),
    "every stage has a block": (
        Facts(num_blocks=12),
        Strategy(pp=4, chunks=4, schedule="interleaved"),
        (
            "pp x chunks = 4 x 4 asks for 16 stages, but the model has 12 blocks; "
            "pp = 1, 2, 3 or chunks = 1, 2, 3 would do"
        ),
    ),
    "the schedule is known": (
        Facts(),
        Strategy(schedule="gpip"),
        "unknown schedule 'gpip'; did you mean: dualpipe, gpipe",
    ),
    "the schedule exists for these numbers": (
        Facts(),
        Strategy(pp=2, schedule="chimera", microbatches=1),
        "chimera sends half of the microbatches each way; 1 is odd; microbatches = 2 would do",
    ),
    "the recomputation is known": (
        Facts(),
        Strategy(recompute="ful"),
        "unknown recomputation 'ful'; did you mean: full",
    ),
    "recomputation is for training": (
        FORWARD_ONLY,
        Strategy(recompute="full"),
        "recompute = full, but inference has no backward pass; recompute = none would do",
    ),
    "every n-th block recomputes something": (
        Facts(),
        Strategy(recompute_every=2),
        "recompute_every = 2, but recompute is none; recompute_every = 1 would do",
    ),
    "some block is the n-th that recomputes": (
        Facts(num_blocks=12),
        Strategy(recompute="full", recompute_every=13),
        (
            "recompute_every = 13, but the model has 12 blocks, so nothing would be "
            "recomputed; recompute_every = 1 would do"
        ),
    ),
    "layers of a stage recompute something": (
        Facts(),
        Strategy(recompute_layers=2),
        (
            "recompute_layers = 2, but recompute is none; recompute_layers = 0 or recompute = "
            "full, selective would do"
        ),
    ),
    "layers that recompute are chosen once": (
        Facts(),
        Strategy(recompute="full", recompute_every=2, recompute_layers=3),
        (
            "recompute_layers = 3 and recompute_every = 2 both state which layers recompute; "
            "recompute_layers = 0 or recompute_every = 1 would do"
        ),
    ),
    "ZeRO is for training": (
        FORWARD_ONLY,
        Strategy(dp=2, zero=1),
        "zero = 1 shards what training keeps, and inference keeps nothing; zero = 0 would do",
    ),
    "a part of dp has something to shard": (
        Facts(),
        Strategy(dp=4, zero_degree=2),
        (
            "zero_degree = 2 states how far zero shards, but zero is 0; "
            "zero = 1, 2, 3 or zero_degree = 0 would do"
        ),
    ),
    "a part of dp divides it": (
        Facts(),
        Strategy(dp=4, zero=1, zero_degree=3),
        "zero_degree = 3 does not divide dp = 4; zero_degree = 0, 1, 2, 4 would do",
    ),
    "a part of dp holds whole groups of experts": (
        EXPERTS,
        Strategy(dp=8, ep=4, zero=1, zero_degree=2),
        (
            "zero_degree = 2 is not divisible by the 4 replicas of ep = 4; "
            "zero_degree = 0, 4, 8 would do"
        ),
    ),
    "offloading is for training": (
        FORWARD_ONLY,
        Strategy(offload="optimizer"),
        (
            "offload = optimizer applies to what training keeps, and inference keeps nothing; "
            "leave it out"
        ),
    ),
    "synchronising is for training": (
        FORWARD_ONLY,
        Strategy(dp=2, sync_every=8),
        (
            "sync_every = 8 applies to parameters that change, and inference changes none; "
            "sync_every = 1 would do"
        ),
    ),
    "replicas synchronise": (
        Facts(),
        Strategy(sync_every=8),
        "sync_every = 8, but dp = 1: there are no other replicas; sync_every = 1 would do",
    ),
    "replicas have states of their own": (
        Facts(),
        Strategy(dp=2, zero=1, sync_every=8),
        (
            "sync_every = 8 with zero = 1: between synchronisations, replicas have parameters and "
            "moments of their own, which ZeRO would shard among them; zero = 0 or "
            "sync_every = 1 would do"
        ),
    ),
    "replicas have experts of their own": (
        EXPERTS,
        Strategy(dp=8, ep=4, sync_every=8),
        (
            "sync_every = 8 with ep = 4: 4 replicas share experts, which would have to be "
            "synchronised in every step; ep = 1 or sync_every = 1 would do"
        ),
    ),
    "replicas that synchronise rarely split samples": (
        Facts(),
        Strategy(dp=2, sync_every=8, axes="dp=ffn,batch"),
        (
            "sync_every = 8, but axes state a list of dp: replicas that synchronise rarely split "
            "only samples, and need no list for that; sync_every = 1 would do"
        ),
    ),
    "outer steps follow others": (
        Facts(),
        Strategy(dp=2, outer_optimizer="nesterov"),
        (
            "outer_optimizer = nesterov with sync_every = 1: replicas that synchronise in every "
            "step do not differ, so an outer optimizer has nothing to do; outer_optimizer = mean "
            "or "
            "sync_every = 8, 64, 512 would do"
        ),
    ),
    "keeping is for training": (
        FORWARD_ONLY,
        Strategy(keep_gathered="parameters"),
        (
            "keep_gathered = parameters is for a backward pass, and inference has none; "
            "keep_gathered = none would do"
        ),
    ),
    "parameters that are kept are gathered": (
        Facts(),
        Strategy(dp=2, zero=1, keep_gathered="parameters"),
        (
            "keep_gathered = parameters keeps the parameters that zero = 3 gathers, but zero is "
            "1; zero = 3 or keep_gathered = none, activations would do"
        ),
    ),
    "activations that are kept are gathered": (
        Facts(),
        Strategy(tp=2, keep_gathered="activations"),
        (
            "keep_gathered = activations keeps the activations that sequence_parallel gathers, "
            "which is off; sequence_parallel = true or keep_gathered = none, parameters would do"
        ),
    ),
}
"""By rule a workload, a strategy that meets all the rules before it but not this one, and why."""


def names(rules: Sequence[Rule]) -> list[str]:
    return [rule.name for rule in rules]


@pytest.mark.parametrize("rule", BOOK, ids=names(BOOK))
def test_every_rule_can_fail(rule: Rule) -> None:
    workload, strategy, reason = BROKEN[rule.name]
    assert rule.of(workload).reason(strategy.to_dict()) == reason
    if rule in RULES:
        earlier = rules_of(workload)[: RULES.index(rule)]
        assert explain(earlier, strategy) is None
        assert explain(rules_of(workload), strategy) == reason


def test_every_rule_has_its_own_name() -> None:
    assert len(set(names(BOOK))) == len(BOOK)
    assert set(names(BOOK)) == set(BROKEN)


@pytest.mark.parametrize("rule", BOOK, ids=names(BOOK))
def test_every_rule_reads_choices_that_exist(rule: Rule) -> None:
    assert rule.reads
    assert set(rule.reads) <= set(FIELDS)
    advised = rule.advice
    read = parameter_names(advised) if callable(advised) else tuple(advised)
    assert set(read) <= {WORKLOAD, *rule.reads}


@pytest.mark.parametrize("rule", BOOK, ids=names(BOOK))
def test_every_reason_says_what_to_try(rule: Rule) -> None:
    workload, strategy, reason = BROKEN[rule.name]
    assert any(words in reason for words in (" would do", "did you mean", rule.otherwise or "?"))
    said = rule.of(workload).fault(strategy.to_dict())
    assert said is not None
    assert reason.startswith(said)


facts = st.builds(
    Facts,
    batch_size=st.sampled_from([1, 7, 12, 36]),
    num_blocks=st.integers(1, 14),
    internal_axes=st.sampled_from([(), (("heads", 12),), (("groups", 4), ("ffn", 6))]),
    mode=st.sampled_from(["training", "inference"]),
    sequence_lengths=st.sampled_from([(), (12,), (17,), (64, 24)]),
    expert_axes=st.sampled_from([(), (("experts", 4),), (("experts", 8), ("experts2", 6))]),
    cp_exchanges=st.sampled_from([("gather",), CP_EXCHANGES]),
    inner=st.sampled_from([(), (("groups", 2),)]),
    uneven=st.sampled_from(["", "heads"]),
)
degree = st.integers(1, 8)
strategies = st.builds(
    Strategy,
    dp=degree,
    tp=degree,
    pp=degree,
    cp=degree,
    ep=degree,
    microbatches=degree,
    schedule=st.sampled_from(["1f1b", "interleaved", "zb-v", "chimera", "other"]),
    chunks=st.integers(1, 3),
    zero=st.integers(0, 3),
    recompute=st.sampled_from(["none", "full", "other"]),
    recompute_every=st.integers(1, 2),
    recompute_layers=st.integers(0, 2),
    keep_gathered=st.sampled_from(KEEP_GATHERED),
    offload=st.sampled_from(["", *OFFLOADS]),
    sync_every=st.sampled_from([1, 1, 8]),
    outer_optimizer=st.sampled_from(OUTER_OPTIMIZERS),
    sequence_parallel=st.booleans(),
    zero_degree=st.integers(0, 4),
    cp_exchange=st.sampled_from(CP_EXCHANGES),
    axes=st.sampled_from(["", "tp=heads", "tp=heads;cp=sequence", "dp=batch,heads"]),
    etp=st.integers(0, 4),
    expert_order=st.sampled_from(EXPERT_ORDERS),
)


@given(facts, strategies)
def test_any_rule_answers_for_any_strategy_and_its_advice_can_be_followed(
    workload: Facts, strategy: Strategy
) -> None:
    """One choice changed to an advised value is a strategy that meets the rule."""
    chosen = strategy.to_dict()
    for rule in BOOK:
        bound = rule.of(workload)
        if bound.fault(chosen) is None:
            assert bound.reason(chosen) is None
            continue
        for name, values in bound.suited(chosen).items():
            assert name in rule.reads
            assert values
            for value in values:
                assert (
                    bound.fault(
                        Strategy(**cast("dict[str, Any]", {**chosen, name: value})).to_dict()
                    )
                    is None
                )


def test_inference_has_one_schedule_whatever_is_asked_for() -> None:
    assert explain(rules_of(FORWARD_ONLY), Strategy(schedule="other", pp=2)) is None


def test_a_reason_tells_the_sequence_from_what_runs_along_it() -> None:
    plan = Strategy(cp=4, tp=4, sequence_parallel=True)
    reason = explain(rules_of(Facts(sequence_lengths=(64, 24))), plan)
    assert reason is not None
    assert reason.startswith(
        "the dimension along the sequence (24) is not divisible by cp x tp = 4 x 4"
    )


def test_many_values_are_shortened() -> None:
    assert listed(range(1, 41)).endswith("13, 14, …, 40")
    assert would_do({"pp": range(1, 41)}) == "pp at most 40 would do"
    assert would_do({"sequence_parallel": [False], "tp": [2]}) == (
        "sequence_parallel = false or tp = 2 would do"
    )
    assert product({"dp": 2}) == "dp = 2"


def test_one_device_is_one_device() -> None:
    reason = degrees_fit(1).of(Facts()).reason(Strategy(dp=2).to_dict())
    assert reason == "dp x tp x pp = 2 x 1 x 1 = 2, but there is 1 device; dp = 1 would do"
