"""Output axes that do not divide are padded: what that costs, and that it changes no number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost.work import OpClass
from distir.execute.verify import Verifier
from distir.importers.load import load_source
from distir.models.transformer import TransformerConfig
from distir.models.zoo import find_model
from distir.plan import Planner

VOCABULARY, HIDDEN, TOKENS = 50_257, 768, 8 * 64


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(model=load_model("gpt2"), batch_size=8, sequence_length=64)


def product_flops(workload: Workload, strategy: Strategy) -> float:
    """Of products on all devices."""
    programs = Planner(workload).block_programs(strategy)
    nodes = [node for each in programs for node in (*each.forward, *each.backward)]
    works = [node.op.work(node.operand_types, node.result_types) for node in nodes]
    kinds = (OpClass.PRODUCT, OpClass.ATTENTION)
    return strategy.devices * sum(float(work.flops) for work in works if work.kind in kinds)


@pytest.mark.parametrize(("degree", "padded"), [(2, 50_258), (4, 50_260), (12, 50_268)])
def test_flops_are_the_sequential_ones_and_the_declared_waste(
    workload: Workload, degree: int, padded: int
) -> None:
    """The head is `tokens x hidden x vocabulary`, two FLOPs per term; the backward pass is twice
    that."""
    waste = 3 * 2 * TOKENS * HIDDEN * (padded - VOCABULARY)
    sequential = product_flops(workload, Strategy())
    assert product_flops(workload, Strategy(tp=degree)) == pytest.approx(sequential + waste)
    simulator = Simulator(workload, load_cluster("dgx-a100", degree))
    result = simulator.simulate(Strategy(tp=degree))
    assert result.padding == {"vocabulary": (VOCABULARY, padded)}
    fraction = result.metrics["padding_fraction"]
    assert fraction == pytest.approx(waste / 3 / workload.forward_flops_per_sample / 8)


@pytest.mark.parametrize(("degree", "padded"), [(1, 50_304), (2, 50_432), (8, 51_200)])
def test_pieces_are_padded_to_a_stated_multiple_as_megatron_does(degree: int, padded: int) -> None:
    """`--make-vocab-size-divisible-by 128`: to a multiple of 128 · tp, without tp too; 51,200 is
    the vocabulary of Narayanan et al. 2021."""

    def with_vocabulary(size: int, multiple: int) -> Workload:
        config = find_model("megatron-1.7B")
        assert isinstance(config, TransformerConfig)
        model = load_source(lambda: replace(config, vocabulary=size))
        return Workload(model=model, batch_size=8, vocabulary_multiple=multiple)

    strategy = Strategy(tp=degree)
    stated, longer = with_vocabulary(VOCABULARY, 128), with_vocabulary(padded, 1)
    assert Planner(stated).plan(strategy, ()).padding == {"vocabulary": (VOCABULARY, padded)}
    assert Planner(longer).plan(strategy, ()).padding == {}
    assert product_flops(stated, strategy) == product_flops(longer, strategy)


def test_nothing_is_padded_that_divides(workload: Workload) -> None:
    simulator = Simulator(workload, load_cluster("dgx-a100", 29))
    result = simulator.simulate(Strategy(dp=8))
    assert (result.padding, result.metrics["padding_fraction"]) == ({}, 0.0)
    plan = simulator.planner.plan(Strategy(tp=4, axes="tp=heads,ffn"), ())
    assert plan.padding == {}


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(tp=4),
        Strategy(tp=3, pp=2, microbatches=2),
        Strategy(dp=2, tp=2, sequence_parallel=True),
        Strategy(tp=2, axes="tp=sequence,vocabulary"),
        Strategy(dp=2, tp=2, axes="tp=vocabulary;dp=vocabulary,batch"),
    ],
    ids=lambda strategy: strategy.label,
)
@pytest.mark.parametrize("multiple", [1, 64])
def test_padding_changes_no_number(mode: str, strategy: Strategy, multiple: int) -> None:
    workload = Workload(
        model=load_model("gpt2"),
        batch_size=8,
        mode=mode,  # type: ignore[arg-type]
        vocabulary_multiple=multiple,
    )
    found = Verifier(workload).verify(strategy)
    assert found.passed, found.first_difference
    assert found.simulated_peak_bytes == found.executed_peak_bytes


def test_rows_that_sum_over_classes_otherwise_are_not_padded() -> None:
    """A mean of squares goes over all columns: padding would count in it."""
    model = load_model("gpt2")
    logits = Workload(model=model, batch_size=8, loss="cross-entropy").program
    squares = Workload(model=model, batch_size=8, loss="mse").program
    assert logits.paddable == {logits.by_label["vocabulary"]}
    assert not squares.paddable
