"""Collectives of GPT-2 with 12 layers, per microbatch, as Megatron-LM has them.

Two all-reduces per layer forward and two backward (Shoeybi et al. 2019); with the sequence split
too, as many reduce-scatters and all-gathers (Korthikanti et al. 2022). Where the vocabulary
divides, one more for the embedding, three small ones for the loss (a maximum, a sum, the logit of
the label), and one for the head on the way back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from distir import LoadedModel, Strategy, Workload, load_model
from distir.cost.work import OpClass
from distir.importers.load import load_source
from distir.ir.core import Node
from distir.models.transformer import TransformerConfig
from distir.models.zoo import find_model
from distir.ops.collective import Collective
from distir.plan import Planner
from tests.conftest import shared_path

LAYERS = 12
PARAMETERS = 148
"""Tensors of GPT-2; the table of the embedding is also the head's, which makes one use more."""


def gpt2(source: str) -> LoadedModel:
    if source == "export":
        return load_model(str(shared_path("models/gpt2.onnx")))
    if source == "padded":
        config = find_model("gpt2")
        assert isinstance(config, TransformerConfig)
        padded = replace(config, vocabulary=50_304)
        return load_source(lambda: padded)
    return load_model("gpt2", attention="eager" if source == "eager" else "fused")


def collectives(
    model: LoadedModel, strategy: Strategy, dropout: bool = True
) -> tuple[Counter[str], ...]:
    """How many of each, forward, backward, and once per step for gradients of parameters."""
    planner = Planner(Workload(model=model, batch_size=8, sequence_length=64, dropout=dropout))
    programs = planner.block_programs(strategy)

    def count(nodes: Iterable[Node]) -> Counter[str]:
        return Counter(
            f"{node.op.name} {' '.join(node.op.mesh_axes)}"
            for node in nodes
            if isinstance(node.op, Collective)
        )

    return (
        count(node for program in programs for node in program.forward),
        count(node for program in programs for node in program.backward),
        count(node for program in programs for node in program.settle),
    )


@pytest.mark.parametrize("source", ["fused", "eager", "export"])
@pytest.mark.parametrize("degree", [2, 4, 12])
def test_tensor_parallelism_has_two_all_reduces_per_layer_each_way(
    source: str, degree: int
) -> None:
    """The vocabulary of 50,257 divides by none of the degrees and is padded. It is split like one
    that divides: one more for the embedding, three for the loss, one for the head's gradient."""
    found = collectives(gpt2(source), Strategy(tp=degree))
    assert found == ({"AllReduce tp": 2 * LAYERS + 1 + 3}, {"AllReduce tp": 2 * LAYERS + 1}, {})


def test_full_recomputation_runs_the_layers_again() -> None:
    """Two more all-reduces per layer in the backward pass, as `torch.utils.checkpoint` runs whole
    layers; embedding and head are kept."""
    found = collectives(gpt2("fused"), Strategy(tp=4, recompute="full"))
    forward, backward = 2 * LAYERS + 1 + 3, 4 * LAYERS + 1
    assert found == ({"AllReduce tp": forward}, {"AllReduce tp": backward}, {})


def test_recomputation_of_what_is_needed_stops_before_the_last_product() -> None:
    """One all-reduce per layer less than full recomputation, that behind the feed-forward part;
    unless a dropout comes after it, whose mask is needed."""
    needed, full = (Strategy(tp=4, recompute=name) for name in ("needed", "full"))
    found = collectives(gpt2("fused"), needed, dropout=False)
    forward, backward = 2 * LAYERS + 1 + 3, 3 * LAYERS + 1
    assert found == ({"AllReduce tp": forward}, {"AllReduce tp": backward}, {})
    assert collectives(gpt2("fused"), needed) == collectives(gpt2("fused"), full)


def test_full_recomputation_is_a_third_more_work_in_layers_alone() -> None:
    """Forward once, again, and twice backward: `96 B s l h² (1 + s/6h)` against `72 …` (Narayanan
    et al. 2021, appendix)."""
    planner = Planner(Workload(model=gpt2("fused"), batch_size=8, sequence_length=64))

    def flops(recompute: str, part: slice) -> float:
        programs = planner.block_programs(Strategy(recompute=recompute))[part]
        nodes = [node for each in programs for node in (*each.forward, *each.backward)]
        kinds = (OpClass.PRODUCT, OpClass.ATTENTION)
        works = [node.op.work(node.operand_types, node.result_types) for node in nodes]
        return sum(float(work.flops) for work in works if work.kind in kinds)

    layers, ends = slice(1, -1), slice(None, None, LAYERS + 1)
    assert flops("full", layers) == pytest.approx(4 / 3 * flops("none", layers), rel=0.02)
    assert flops("full", ends) == flops("none", ends) > 0


def test_a_vocabulary_that_divides_is_split_with_the_same_collectives() -> None:
    found = collectives(gpt2("padded"), Strategy(tp=4))
    assert found == ({"AllReduce tp": 2 * LAYERS + 1 + 3}, {"AllReduce tp": 2 * LAYERS + 1}, {})


@pytest.mark.parametrize("source", ["fused", "export"])
def test_sequence_parallelism_scatters_and_gathers_instead_of_reducing(source: str) -> None:
    """One more reduce-scatter for the embedding and all-gather for the head; the loss has three
    small reduce-scatters, and gathers the maximum. Gathered copies are gathered again in the
    backward pass: one all-gather more per layer and product, and for the head and the loss."""
    forward, backward, _ = collectives(gpt2(source), Strategy(tp=4, sequence_parallel=True))
    assert forward == {"ReduceScatter tp": 2 * LAYERS + 1 + 3, "AllGather tp": 2 * LAYERS + 1 + 1}
    assert backward == {"ReduceScatter tp": 2 * LAYERS + 1, "AllGather tp": 4 * LAYERS + 3}


@pytest.mark.parametrize("source", ["fused", "eager", "export"])
def test_data_parallelism_adds_up_every_gradient_once(source: str) -> None:
    forward, backward, settle = collectives(gpt2(source), Strategy(dp=4))
    dropped = 4 * LAYERS if source == "export" else 0
    assert (forward, backward) == ({}, {})
    assert settle == {"AllReduce dp": PARAMETERS + 1 - dropped}


@pytest.mark.parametrize("source", ["fused", "export"])
def test_context_parallelism_gathers_keys_and_values(source: str) -> None:
    """Keys and values are gathered; their gradients come back."""
    forward, backward, settle = collectives(gpt2(source), Strategy(cp=4))
    dropped = 4 * LAYERS if source == "export" else 0
    assert forward == {"AllGather cp": 2 * LAYERS}
    assert backward == {"ReduceScatter cp": 2 * LAYERS}
    assert settle == {"AllReduce cp": PARAMETERS + 1 - dropped}


def test_data_and_tensor_parallelism_are_independent_of_each_other() -> None:
    forward, backward, settle = collectives(gpt2("fused"), Strategy(dp=2, tp=4))
    alone = collectives(gpt2("fused"), Strategy(tp=4))
    assert (forward, backward) == alone[:2]
    assert settle == {"AllReduce dp": PARAMETERS + 1}


def test_gradients_are_added_over_dp_and_cp_at_once() -> None:
    """Along dp and cp the same is to be done: one collective per parameter, not two."""
    _, _, settle = collectives(gpt2("fused"), Strategy(dp=2, cp=2))
    assert settle == {"AllReduce dp cp": PARAMETERS + 1}


def test_all_to_alls_split_heads_instead_of_the_sequence() -> None:
    """Jacobs et al. 2023: two all-to-alls per layer each way where one product makes queries, keys
    and values, four where three do. The bias of that product is split with the heads."""
    strategy = Strategy(cp=4, cp_exchange="all-to-all")
    forward, backward, settle = collectives(gpt2("fused"), strategy)
    assert forward == backward == {"AllToAll cp": 2 * LAYERS}
    assert settle == {"AllReduce cp": PARAMETERS + 1 - LAYERS}
    apart = collectives(load_model("llama2-7b"), strategy)
    assert apart[0] == apart[1] == {"AllToAll cp": 4 * 32}


def test_beyond_the_heads_of_keys_and_values_tp_is_two_factors() -> None:
    """8 heads of keys and values, each for 8 of queries: tp = 16 is 8 x 2. The two all-reduces per
    layer, that of the embedding and three for the loss are over both factors at once."""
    forward, backward, settle = collectives(load_model("llama3-70b"), Strategy(tp=16))
    assert forward == {"AllReduce tp.1 tp.2": 2 * 80 + 1 + 3}
    # Keys and values are computed twice, and their gradients added between the two.
    assert backward == {"AllReduce tp.1 tp.2": 2 * 80 + 1, "AllReduce tp.2": 2 * 80}
    assert settle == {}
    one = collectives(load_model("llama3-70b"), Strategy(tp=8))[0]
    assert one == {"AllReduce tp": 2 * 80 + 1 + 3}


def test_sequence_parallelism_goes_beyond_the_heads_of_keys_and_values() -> None:
    """Between blocks as with few devices, over both factors at once. Keys and values are computed
    for a part of the sequence by each of the two that share a head, and gathered between them."""
    many, few = (
        collectives(load_model("llama3-70b"), Strategy(tp=tp, sequence_parallel=True))
        for tp in (16, 8)
    )
    for with_many, with_few in zip(many[:2], few[:2], strict=True):
        over_both = {k: n for k, n in with_many.items() if k.endswith("tp.1 tp.2")}
        assert over_both == {f"{k}.1 tp.2": n for k, n in with_few.items()}
    assert many[0]["AllGather tp.2"] == many[1]["ReduceScatter tp.2"] == 2 * 80


def test_hybrid_sharding_scatters_among_sharers_and_reduces_between_copies() -> None:
    """Zhao et al. 2023: reduce-scatter among those who share the states, all-reduce between the
    copies."""
    _, _, settle = collectives(gpt2("fused"), Strategy(dp=4, zero=1, zero_degree=2))
    assert settle == {"ReduceScatter dp": PARAMETERS + 1, "AllReduce dp.replica": PARAMETERS + 1}


@pytest.mark.parametrize("zero", [2, 3])
def test_hybrid_sharding_adds_up_between_copies_once_per_step(zero: int) -> None:
    """What every microbatch sends stays among those who share the states, in a message per block;
    the copies add up what has come together at the end."""
    strategy = Strategy(dp=4, zero=zero, zero_degree=2, microbatches=2)
    _, backward, settle = collectives(gpt2("fused"), strategy)
    assert {key for key in backward if "Gather" not in key} == {"Bucket dp"}
    assert settle == {"AllReduce dp.replica": PARAMETERS + 1}


def test_norms_of_sequence_parallelism_are_added_up_once_per_step() -> None:
    """Also where ZeRO 2 shares gradients in every microbatch: along tp they stay pending."""
    strategy = Strategy(dp=4, tp=2, zero=2, sequence_parallel=True, microbatches=2)
    _, backward, settle = collectives(gpt2("fused"), strategy)
    assert settle["AllReduce tp"] > 4 * LAYERS
    assert "AllReduce tp" not in backward


def test_states_are_sharded_over_context_parallelism_too() -> None:
    """Its devices hold equal parameters, as replicas do: Megatron's distributed optimizer and fully
    sharded data parallelism shard over both together."""
    _, _, settle = collectives(gpt2("fused"), Strategy(dp=2, cp=2, zero=1))
    assert settle == {"ReduceScatter dp cp": PARAMETERS + 1}
    _, _, settle = collectives(gpt2("fused"), Strategy(cp=2, zero=1))
    assert settle == {"ReduceScatter cp": PARAMETERS + 1}


def test_lists_of_axes_of_the_techniques_have_their_collectives() -> None:
    stated = Strategy(tp=4, axes="tp=heads,ffn,vocabulary,sequence")
    assert collectives(gpt2("fused"), stated) == collectives(
        gpt2("fused"), Strategy(tp=4, sequence_parallel=True)
    )
    stated = Strategy(cp=4, axes="cp=heads*,sequence")
    assert collectives(gpt2("fused"), stated) == collectives(
        gpt2("fused"), Strategy(cp=4, cp_exchange="all-to-all")
    )
