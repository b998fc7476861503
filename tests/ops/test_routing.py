"""Tokens reach the experts that they chose, as long as there are slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir import Strategy, Workload, load_model
from distir.errors import ImportModelError, ShapeError
from distir.execute.sequential import evaluate
from distir.execute.verify import verify
from distir.ir import Builder, DType, TensorType
from distir.models.experts import Experts, mixture
from distir.models.transformer import TransformerConfig
from distir.ops.routing import (
    ALIGNMENT,
    LEAST_CAPACITY,
    ROUNDING,
    Combine,
    CombineWeights,
    Dispatch,
    DispatchWeights,
    TopKMask,
    num_slots,
)


@pytest.mark.parametrize(
    ("sequence", "experts", "top_k", "imbalance", "slots"),
    [
        (4096, 8, 2, 1.0, 1024),  # 4096 · 2 / 8
        (4096, 8, 2, 1.25, 1280),
        (4096, 160, 6, 1.0, 160),  # 153.6, in eights
        (4096, 256, 8, 1.0, 128),
        (65536, 128, 8, 1.15, 4736),  # 4710.4, in 128s: a hundred and twenty-eight pieces divide it
        (23, 256, 8, 1.0, 4),  # at least four
        (2, 256, 8, 1.0, 2),  # no more than tokens
        (24, 4, 2, 8.0, 24),
    ],
)
def test_slots_hold_what_the_fullest_expert_gets_rounded_up(
    sequence: int, experts: int, top_k: int, imbalance: float, slots: int
) -> None:
    assert num_slots(sequence, experts, top_k, imbalance) == slots


@given(
    st.integers(3, 17),
    st.integers(1, 512),
    st.integers(1, 16),
    st.floats(1.0, 4.0),
)
def test_slots_are_few_more_than_needed_and_divide_as_the_sequence_does(
    log_sequence: int, experts: int, top_k: int, imbalance: float
) -> None:
    """Devices that split the sequence split the slots as well, as long as each has 64 of them."""
    sequence = 2**log_sequence
    share = sequence * top_k / experts * imbalance
    slots = num_slots(sequence, experts, top_k, imbalance)
    assert slots >= min(share, sequence)
    assert slots < max(share, LEAST_CAPACITY) + max(ALIGNMENT, share / ROUNDING)
    for pieces in (2, 4, 8, 16, 32, 64):
        if pieces * 64 <= share < sequence:
            assert slots % pieces == 0


def test_the_first_token_of_a_group_takes_the_slot_and_others_are_dropped() -> None:
    """Eight tokens, four slots per expert, so groups of two. Expert 0 is asked for by tokens 0, 1
    and 5: tokens 0 and 5 get the slots 0 and 2."""
    mask = np.zeros((1, 8, 3), bool)
    mask[0, [0, 1, 5], 0] = True
    tokens = np.arange(1.0, 9).reshape(1, 8, 1)
    (slots,) = Dispatch(1, slots=4, experts=3).evaluate(tokens, mask)
    assert slots[0, :, :, 0].tolist() == [[1, 0, 6, 0], [0] * 4, [0] * 4]
    (back,) = Combine(1).evaluate(0.5 * slots, mask)
    assert back[0, :, 0].tolist() == [0.5, 0, 0, 0, 0, 3, 0, 0]


def test_weights_take_the_slots_of_their_tokens() -> None:
    mask = np.zeros((1, 8, 3), bool)
    mask[0, [0, 1, 5], 0] = True
    weights = np.arange(24.0).reshape(1, 8, 3)
    (slots,) = DispatchWeights(1, slots=4, experts=3).evaluate(weights, mask)
    assert slots[0, :, :, 0].tolist() == [[0, 0, 15, 0], [0] * 4, [0] * 4]
    (back,) = CombineWeights().evaluate(slots + 1, mask)
    assert back[0, [0, 1, 5], 0].tolist() == [1, 0, 16]
    assert back.sum() == 17


def test_of_equal_scores_the_first_is_chosen() -> None:
    (mask,) = TopKMask(2).evaluate(np.array([[1.0, 3, 3, 3], [0, 0, 0, 1]]))
    assert mask.tolist() == [[False, True, True, False], [True, False, False, True]]
    assert TopKMask(4).evaluate(np.array([[1.0, 3, 3, 3]]))[0].all()
    with pytest.raises(ShapeError, match="TopKMask: 5 elements of the last dim of"):
        TopKMask(5).infer(TensorType((2, 4), DType.FLOAT32))


def test_experts_are_chosen_from_the_groups_whose_best_add_up_to_most() -> None:
    """Two of three groups: the second has the largest score, but its two best add up to least."""
    scores = np.array([[5.0, 4, 9, -2, 3, 6]])
    (mask,) = TopKMask(2, groups=3, chosen=2, best=2).evaluate(scores)
    assert mask.nonzero()[1].tolist() == [0, 5]
    (mask,) = TopKMask(2, groups=3, chosen=2, best=1).evaluate(scores)
    assert mask.nonzero()[1].tolist() == [2, 5]
    (mask,) = TopKMask(2).evaluate(scores)
    assert mask.nonzero()[1].tolist() == [2, 5]


def test_groups_of_experts_are_equal_and_hold_enough() -> None:
    with pytest.raises(ImportModelError, match="4 chosen of 3 groups of 6 experts"):
        Experts(count=6, top_k=2, ffn=4, groups=3, chosen_groups=4)
    with pytest.raises(ImportModelError, match="1 chosen of 4 groups of 6 experts"):
        Experts(count=6, top_k=2, ffn=4, groups=4)
    with pytest.raises(ImportModelError, match="3 experts per token from 1 chosen groups of 2"):
        Experts(count=6, top_k=3, ffn=4, groups=3)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("top_k", [2, 5])
def test_a_mixture_with_slots_for_all_is_the_weighted_sum_of_its_experts(
    top_k: int, scoring: Any
) -> None:
    """Against the definition, token by token: gated experts, weights of the chosen adding up to 1,
    times the scale, and a shared expert for all."""
    experts = Experts(
        count=5, top_k=top_k, ffn=7, scoring=scoring, scale=1.5, corrected=True, shared_ffn=3,
        imbalance=2.5,
    )  # fmt: skip
    builder = Builder()
    x = builder.input("x", (2, 6, 4))
    function = builder.build([mixture(builder, x, "ffn", experts, "silu")])
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(2, 6, 4))
    weights = {p.name: rng.normal(size=p.type.shape) for p in function.parameters}
    (found,) = evaluate(function, [tokens], list(weights.values()))
    np.testing.assert_allclose(found, _by_definition(tokens, weights, experts), rtol=1e-12)


def _by_definition(tokens: Any, weights: dict[str, Any], experts: Experts) -> Any:
    def gated(x: Any, name: str, *index: int) -> Any:
        gate, up, down = (
            weights[f"{name}.{part}.weight"][index] for part in ("gate", "up", "down")
        )
        inner = x @ gate
        return (inner / (1 + np.exp(-inner)) * (x @ up)) @ down

    result = np.zeros_like(tokens)
    for place in np.ndindex(*tokens.shape[:2]):
        x = tokens[place]
        logits = x @ weights["ffn.router.weight"]
        scores = np.exp(logits) / np.exp(logits).sum()
        if experts.scoring == "sigmoid":
            scores = 1 / (1 + np.exp(-logits))
        chosen = np.argsort(-(scores + weights["ffn.router.correction"]))[: experts.top_k]
        for e in chosen:
            weight = experts.scale * scores[e] / scores[chosen].sum()
            result[place] += weight * gated(x, "ffn.experts", e)
        result[place] += gated(x, "ffn.shared")
    return result


def test_the_fullest_expert_sets_the_slots() -> None:
    model = load_model("mixtral-8x7b", imbalance=1.5)
    assert Workload(model=model, sequence_length=4096).sequence_lengths == (4096, 1536)
    with pytest.raises(ImportModelError, match="applies to experts, but gpt2 has none"):
        load_model("gpt2", imbalance=2.0)
    with pytest.raises(ImportModelError, match=r"imbalance is 0\.5; expected at least 1"):
        load_model("mixtral-8x7b", imbalance=0.5)


def test_tokens_that_go_to_all_experts_are_split_as_others_are() -> None:
    config = TransformerConfig(
        name="all", layers=2, hidden=16, heads=4, vocabulary=24, sequence_length=32,
        experts=Experts(count=4, top_k=4, ffn=8),
    )  # fmt: skip
    workload = Workload(model=load_model(config.build), batch_size=8, sequence_length=16)
    assert num_slots(16, experts=4, top_k=4) == 16
    for strategy in (Strategy(dp=4, ep=2), Strategy(dp=2, tp=2, pp=2, ep=2, microbatches=2)):
        assert verify(workload, strategy).passed
