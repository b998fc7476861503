"""Putting a problem together: defaults that depend on the hardware."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

import distir
from autotune import certify, load_problem, tune
from autotune.problem import model_as_run
from distir import DistirError, Workload
from distir.cost import MeasuredProduct, MeasuredProducts, load_stack
from distir.ir import Builder, Function
from distir.models import AttentionKind
from distir.ops.attention import FusedAttention
from distir.ops.linalg import MatMul
from distir.ops.norm import Softmax
from distir.simulation.simulator import Simulator
from distir.strategy import Strategy
from tests.importers.models import FLOAT, model, node, weights


def test_devices_without_bf16_compute_in_fp16_unless_told_otherwise() -> None:
    problem = load_problem("mlp-xs", "dgx2-v100", devices=2)
    assert problem.settings["precision"] == "fp16"
    assert "has no bf16" in problem.notes[0]
    assert "precision is fp16" in problem.notes[0]
    told = load_problem("mlp-xs", "dgx2-v100", devices=2, precision="bf16")
    assert told.settings["precision"] == "bf16"
    assert len(told.notes) == 1  # what bf16 runs as, below
    assert load_problem("mlp-xs", "dgx-a100", devices=2).settings == {}


def test_utilization_is_that_of_the_type_in_which_products_run() -> None:
    """A V100 has neither fp8 nor bf16: both precisions run in fp32, equally fast."""
    strategy = Strategy(dp=8)
    results = [
        load_problem("gpt2", "dgx1-v100", devices=8, batch_size=64, precision=precision)
        .simulator.simulate(strategy)
        .metrics
        for precision in ("bf16", "fp8", "pure-bf16")
    ]
    assert len({metrics["model_tflops_per_device"] for metrics in results[:2]}) == 1
    for metrics in results:
        assert metrics["mfu"] == pytest.approx(metrics["model_tflops_per_device"] / 15.7)


@pytest.mark.parametrize(
    ("cluster", "precision", "said"),
    [
        (
            "dgx2-v100",
            "bf16",
            (
                "has no bf16: products run in fp32, at up to 15.7 TFLOP/s. It has fp32 and fp16; "
                "choose one with --"
            ),
        ),
        ("dgx2-v100", "fp8", "no fp8: products run in fp32, at up to 15.7 TFLOP/s"),
        ("dgx-a100", "fp8", "no fp8: products run in bf16, at up to 312 TFLOP/s"),
        ("dgx2-v100", "tf32", "no tf32: products run in fp32, at up to 15.7 TFLOP/s"),
        ("dgx-a100", "tf32", None),
        ("dgx2-v100", "fp16", None),
        ("dgx2-v100", "fp32", None),
        ("dgx-a100", "bf16", None),
        ("hgx-h100", "fp8", None),
    ],
)
def test_a_precision_that_the_device_lacks_is_told_with_what_runs_in_its_place(
    cluster: str, precision: str, said: str | None
) -> None:
    notes = load_problem("mlp-xs", cluster, devices=2, precision=precision).notes
    assert any("products run in" in note for note in notes) == (said is not None)
    assert said is None or any(said in note for note in notes)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"optimizer": "sgd"}, "optimizer applies to training, and the mode is inference"),
        ({"gradient_precision": "fp32"}, "gradient_precision applies to training"),
        ({"loss": "mse"}, "loss applies to training"),
        ({"dropout": False}, "dropout applies to training"),
        ({"tokens": 1e9}, "tokens applies to training"),
        ({"recomputation": "full"}, "recompute = full, but inference has no backward pass"),
        ({"offload": "optimizer"}, "inference keeps nothing"),
    ],
)
def test_what_is_about_training_is_refused_in_inference(stated: dict[str, Any], said: str) -> None:
    with pytest.raises(DistirError, match=said):
        load_problem("mlp-xs", devices=2, mode="inference", **stated)
    load_problem("mlp-xs", devices=2, **stated)


def test_parameters_may_rest_on_the_host_in_inference() -> None:
    """Alone: what training keeps beside them is not there."""
    every: dict[str, Any] = {"mode": "inference", "devices": 2}
    stated = load_problem("mlp-xs", **every, space="small", offload="parameters").space
    assert stated.values("offload") == ("parameters",)
    for listed in ("all", ["none", "parameters", "optimizer", "parameters,activations"]):
        problem = load_problem("mlp-xs", **every, space={"extends": "small", "offload": listed})
        assert problem.space.values("offload") == ("", "parameters")
    problem = load_problem("mlp-xs", **every, space={"extends": "small", "offload": "all"})
    best = certify(problem, problem.objective("memory")).best
    assert best is not None
    assert best.strategy.offload == "parameters"


def test_what_no_strategy_of_the_space_has_is_refused() -> None:
    with pytest.raises(DistirError, match=r"recompute is none; .*no strategy of the space small"):
        load_problem("mlp-xs", devices=2, space="small", recompute_layers=1)
    kept: dict[str, Any] = {"recompute_layers": 1, "recomputation": "auto"}
    with pytest.raises(DistirError, match="no strategy of the space standard has it"):
        load_problem("mlp-xs", devices=2, **kept)
    load_problem("mlp-xs", devices=2, recompute_layers=1)


@pytest.mark.parametrize("stated", [{"recomputation": "selective"}, {"offload": "optimizer"}])
def test_what_nothing_has_is_refused_for_its_own_reason(stated: dict[str, str]) -> None:
    # 13 samples do not divide by 6 devices, which is not the reason.
    with pytest.raises(DistirError, match=r"inference (has no backward|keeps nothing)"):
        load_problem(
            "llama2-13b",
            cluster="gb200-nvl72",
            devices=6,
            batch_size=13,
            mode="inference",
            **cast("Any", stated),
        )


@pytest.mark.parametrize(
    ("space", "why"),
    [
        ({"microbatches": [3]}, "m3.* is not divisible by microbatches = 3"),
        ({"tp": [3]}, "tp3.* but there are 4 devices"),
    ],
)
def test_a_space_without_strategies_is_told_by_what_it_lists(space: Any, why: str) -> None:
    with pytest.raises(DistirError, match=f"no strategy of the space uses .*{why}"):
        load_problem("gpt2", devices=4, space=space).check_not_empty()


def test_what_a_space_lists_and_no_strategy_can_have_is_noted(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("tp: [1, 2, 8, 16]\nmicrobatches: [1, 7]\nzero: [0, 1]\n")
    notes = load_problem("gpt2", devices=16, space=space).notes
    told = [note for note in notes if "lists" in note]
    assert [note.split(", which")[0] for note in told] == [
        "The space lists tp 8, 16",
        "The space lists microbatches 7",
    ]
    assert "heads (12) is not divisible by tp = 8" in told[0]
    assert "is not divisible by microbatches = 7" in told[1]


def test_a_listed_schedule_that_no_strategy_can_have_is_noted(tmp_path: Path) -> None:
    three = tmp_path / "three.txt"
    three.write_text("0F0 0B0\n1F0 1B0\n2F0 2B0\n")
    space = tmp_path / "space.yaml"
    space.write_text("schedule: [1f1b, three.txt]\n")
    (told,) = [n for n in load_problem("gpt2", devices=4, space=space).notes if "lists" in n]
    assert told.startswith("The space lists schedule")
    assert "3" in told.split("for every strategy: ")[1]
    assert not [n for n in load_problem("gpt2", devices=6, space=space).notes if "lists" in n]


def test_names_match_without_regard_to_case() -> None:
    shouted = {"mode": "Training", "precision": "BF16", "optimizer": "SGD", "loss": "MSE"}
    problem = load_problem("MLP-XS", "DGX-A100", devices=2, **shouted)  # type: ignore[arg-type]
    workload: Any = problem.workload
    assert (problem.mode, workload.precision) == ("training", "bf16")
    assert (workload.optimizer, workload.loss) == ("sgd", "mse")


def test_one_simulation_has_the_same_default_precision() -> None:
    problem = load_problem("mlp-xs", "dgx2-v100", devices=2, batch_size=8)
    strategy = Strategy(dp=2)
    alone = distir.simulate("mlp-xs", strategy, "dgx2-v100", batch_size=8)
    assert alone.metrics == problem.simulator.simulate(strategy).metrics


def test_a_changed_problem_keeps_its_space_and_precision() -> None:
    problem = load_problem("mlp-xs", "dgx2-v100", devices=2, space={"zero": [0, 1]})
    assert problem.changed is not None
    larger = problem.changed(devices=4)
    assert larger.space.values("zero") == (0, 1)
    assert larger.settings["precision"] == "fp16"


@pytest.mark.not_quick
def test_a_space_can_be_given_as_values() -> None:
    result = tune("mlp-xs", devices=4, trials=5, space={"tp": 1, "recompute": "full"})
    assert {trial.strategy.tp for trial in result.trials} == {1}
    assert {trial.strategy.recompute for trial in result.trials} == {"full"}
    assert result.to_dict()["space"] == "space"


@pytest.mark.slow(seconds=12)
def test_plans_that_are_too_close_to_call_are_counted() -> None:
    """The ratio of two runs that differ in order alone differs by the square root of 2 times the
    spread of repeats; that of layouts by their spread beside that."""
    result = tune("gpt2", devices=4, trials=40)
    simulator = result.problem.simulator
    assert isinstance(simulator, Simulator)
    stack = simulator.cost.stack
    best, *others = result.ranked
    rate = best.metric("throughput_samples_per_second")
    close = 0
    for other in others:
        layout = (
            0.0 if best.strategy.differs_in_order_alone(other.strategy) else stack.layout_spread
        )
        least = 1 + 2**0.5 * math.hypot(layout, stack.repeat_spread)
        close += rate / other.metric("throughput_samples_per_second") < least  # type: ignore[operator]
    assert 0 < close < len(others)
    assert result.as_good == result.to_dict()["as_good"] == close
    assert f"{close} other plans are too close to call" in str(result)
    assert tune("gpt2", devices=4, objective="memory", trials=4).as_good is None


def own_attention(batch_size: int, sequence_length: int = 8) -> Function:
    """A user's function with a fused op of its own: one head of four, and a product."""
    builder = Builder("mine")
    x = builder.input("x", (batch_size, 1, sequence_length, 4))
    y = builder.add(FusedAttention(0.5, causal=True), x, x, x)
    weight = builder.parameter("weight", (4, 4))
    return builder.build([builder.add(MatMul(), y, weight)])


@pytest.mark.parametrize(
    ("attention", "expected"), [(None, "fused"), ("fused", "fused"), ("eager", "eager")]
)
def test_attention_of_a_function_is_as_it_says_unless_the_user_does(
    attention: AttentionKind | None, expected: str
) -> None:
    model = model_as_run(own_attention, load_stack("megatron-2021"), attention)
    ops = {node.op.name for node in model.function.nodes}
    assert ("FusedAttention" in ops) == (expected == "fused")
    assert ("Softmax" in ops) == (expected == "eager")
    assert Workload(model=model, batch_size=2).program.function.parameters


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"attention": "eager"}, "but mlp-xs has no attention; leave it out"),
        ({"attention": "fused"}, "but mlp-xs has no attention; leave it out"),
        ({"vocabulary_multiple": 128, "loss": "mse"}, "but mlp-xs has none that can be padded"),
        ({"imbalance": 1.5}, "imbalance = 1.5 applies to experts, but mlp-xs has none"),
    ],
)
def test_what_a_model_has_nothing_for_is_refused(stated: dict[str, Any], said: str) -> None:
    with pytest.raises(DistirError, match=said):
        load_problem("mlp-xs", devices=2, **stated)


def test_fused_attention_is_refused_where_no_pattern_of_it_is_found() -> None:
    def softmax_alone(batch_size: int) -> Function:
        builder = Builder("mine")
        x = builder.input("x", (batch_size, 4))
        weight = builder.parameter("weight", (4, 4))
        chosen = builder.add(Softmax(1), builder.add(MatMul(), x, weight))
        return builder.build([builder.add(MatMul(), chosen, weight)])

    load_problem(softmax_alone, devices=2, attention="eager")
    with pytest.raises(
        DistirError, match="has no attention that is just products around a softmax"
    ):
        load_problem(softmax_alone, devices=2, attention="fused")


def test_dropout_can_be_turned_off() -> None:
    usual, off = (load_problem("gpt2-xs", devices=2, dropout=on) for on in (None, False))
    assert "no dropout" in off.title
    assert "dropout" not in usual.title
    memory = [
        p.simulator.simulate(Strategy(dp=2)).metrics["peak_memory_bytes"] for p in (usual, off)
    ]
    assert memory[0] > memory[1]


def test_sizes_that_a_file_leaves_open_can_be_stated_and_are_told_otherwise(tmp_path: Path) -> None:
    decoder = model(
        {"x": (FLOAT, ["n", 1, 8]), "past": (FLOAT, ["n", "before", 8])},
        [
            node("MatMul", "x w", "new"),
            node("Concat", "past new", "all", axis=1),
            node("MatMul", "all w", "y"),
        ],
        "y all",
        {"w": np.ones((8, 8), np.float32)},
    )
    (tmp_path / "decoder.onnx").write_bytes(decoder.SerializeToString())
    open_problem = partial(load_problem, tmp_path / "decoder.onnx", devices=2, mode="inference")
    told, *_ = open_problem(batch_size=4).notes
    assert "leaves before open; " in told
    assert "--size before=N" in told
    stated = open_problem(batch_size=4, sizes={"before": 1000})
    assert not any("open" in note for note in stated.notes)
    simulator: Any = stated.simulator
    (stage,) = simulator.simulate(Strategy(dp=2)).stages
    assert stage.memory["state_inputs_bytes"] == 2 * 1000 * 8 * 2
    with pytest.raises(distir.DistirError, match="only for ONNX files"):
        load_problem("gpt2", devices=2, sizes={"before": 1000})


def test_measured_products_of_another_device_are_said_to_be_of_no_use() -> None:
    table = MeasuredProducts("X1", "", (MeasuredProduct("bf16", 8, 8, 8, 1, 1e-6),))
    own = replace(load_stack(), products=table)
    (told,) = load_problem("mlp-2x32", devices=1, stack=own).notes
    assert "measured on X1, so they are not used on A100-SXM4-80GB" in told
    here = replace(own, products=replace(table, device="A100-SXM4-80GB"))
    assert not load_problem("mlp-2x32", devices=1, stack=here).notes


def test_a_problem_says_first_that_memory_is_not_claimed() -> None:
    (told,) = load_problem("gpt2", stack="fsdp-eager").notes
    assert told.startswith("Memory with fsdp-eager is not claimed: simulated peaks are 11 and 15 %")
    plain = replace(load_stack("ideal"), claims_memory=False)
    assert load_problem("mlp-2x32", devices=1, stack=plain).notes == (
        "Memory with ideal is not claimed.",
    )
    assert not load_problem("gpt2", stack="megatron").notes


def test_a_problem_says_first_in_what_it_is_beyond_measured_runs() -> None:
    (told,) = load_problem("gpt2", cluster="dgx-a100", devices=8192).notes
    assert told.startswith("Beyond measured runs: 8,192 devices")
    assert "is added to the band" in told
    assert not load_problem("gpt2", cluster="dgx-a100", devices=16).notes


def test_what_a_model_leaves_out_is_noted(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 256}
    counts = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    content = {"model_type": "gemma2", **sizes, **counts, "attn_logit_softcapping": 50.0}
    (tmp_path / "config.json").write_text(json.dumps({**content, "max_position_embeddings": 64}))
    notes = load_problem(str(tmp_path), devices=2, batch_size=4).notes
    assert any("attn_logit_softcapping is not applied" in note for note in notes)


def _with_rows_looked_up(tmp_path: Path) -> Path:
    """Two products, between which rows of the batch are looked up: of the second none is known to
    belong to one sample."""
    stored = {"w": weights(8, 16), "order": np.array([2, 0, 1]), "v": weights(16, 24)}
    nodes = [
        node("MatMul", "x w", "h"),
        node("Gather", "h order", "turned", axis=0),
        node("MatMul", "turned v", "y"),
    ]
    path = tmp_path / "turned.onnx"
    cast("Any", onnx).save(model({"x": (FLOAT, [3, 8])}, nodes, "y", stored), path)
    return path


def test_work_that_no_degree_splits_is_told(tmp_path: Path) -> None:
    def told(source: Any, devices: int = 8, **stated: Any) -> list[str]:
        notes = load_problem(source, "dgx-a100", devices=devices, **stated).notes
        return [note for note in notes if " splits " in note]

    path = _with_rows_looked_up(tmp_path)
    share = 64 * 8 * 16 / (64 * 8 * 16 + 3 * 16 * 24)
    (of_samples, *_) = told(path, batch_size=64, loss="mse")
    assert of_samples.startswith(f"dp splits only {100 * share:.1f} % of the work")
    assert not told(path, batch_size=64, loss="mse", devices=1)
    for whole in ("gpt2", "mixtral-8x7b", "t5-base", "vit-b"):
        assert not told(whole)
