"""Attention that is found and fused computes the same numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from distir import LoadedModel, Strategy, Workload, load_model
from distir.execute.sequential import sequential_step
from distir.execute.shrink import shrink
from distir.execute.values import random_values
from distir.execute.verify import RELATIVE_TOLERANCE, compare
from distir.ir.function import Function
from distir.transforms.fused_attention import with_eager_attention, with_fused_attention
from tests.conftest import HEALTH_CHECKS, shared_path
from tests.laws.scenarios import transformers
from tests.slow import shares


def kinds(function: Function) -> Counter[str]:
    return Counter(node.op.name for node in function.nodes)


def check(workload: Workload) -> None:
    """Loss and gradients are the same, and no attention is left spelled out."""
    model = workload.model
    fused = replace(model, function=with_fused_attention(model.function))
    before, after = kinds(model.function), kinds(fused.function)
    assert after["Softmax"] == 0
    assert after["FusedAttention"] == before["Softmax"] + before["FusedAttention"]
    given = random_values(workload, microbatches=1).values
    other = Workload(
        model=fused, batch_size=workload.batch_size, sequence_length=workload.sequence_length
    )
    ours, theirs = (each.program.function for each in (workload, other))
    # The loss has inputs of its own in each.
    same = dict(zip(ours.inputs, theirs.inputs, strict=True))
    sources = {same.get(value, value): array for value, array in given.sources.items()}
    truth = sequential_step(workload, given)
    found = sequential_step(other, replace(given, sources=sources))
    for each in compare(workload, found, truth):
        assert each.error < RELATIVE_TOLERANCE, each


@pytest.mark.parametrize("name", ["gpt2", "llama-8layer"])
def test_fusing_changes_no_number_of_exported_models(name: str) -> None:
    model = load_model(str(shared_path(f"models/{name}.onnx")))
    small = shrink(Workload(model=model, batch_size=2), [Strategy()])
    assert kinds(small.model.function)["Softmax"] > 0
    check(small)


@pytest.mark.not_quick
@shares(2, seconds=1)
@settings(max_examples=10, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(transformers())
def test_fusing_changes_no_number_of_any_transformer(share: int, function: Function) -> None:
    check(Workload(model=LoadedModel("model", function), batch_size=2))


@pytest.mark.not_quick
@shares(2, seconds=1)
@settings(max_examples=10, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(transformers())
def test_what_is_spelled_out_is_found_again(share: int, function: Function) -> None:
    fused = with_fused_attention(function)
    eager = with_eager_attention(fused)
    assert "FusedAttention" not in kinds(eager)
    assert "Softmax" not in kinds(fused)
    check(Workload(model=LoadedModel("model", eager), batch_size=2))
