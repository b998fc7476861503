"""The zoo's GPT-2 and PyTorch's export of it are the same model."""

from __future__ import annotations

from collections import Counter

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.program import parameter_count
from distir.simulation.reference.flat import flat_stage
from tests.conftest import shared_path

ZERO_BIASES = 82_944
"""12 layers of 2304 + 768 + 3072 + 768: zero at initialisation, so the exporter dropped them."""

FAMILIES = {
    "MatMul": "product",
    "Einsum": "product",
    "Fused": "elementwise",
    "Add": "elementwise",
    "Mul": "elementwise",
    "Scale": "elementwise",
    "UnaryGradient": "elementwise",
    "ReduceSum": "gradient of a bias",
}
"""Names of ops that differ between the two; all others are families of their own."""


@pytest.fixture(scope="module", params=[(8, 1024), (4, 512)], ids=["8x1024", "4x512"])
def both(request: pytest.FixtureRequest) -> tuple[Simulator, Simulator]:
    """The zoo's, with attention spelled out and dropout left out as exporters do, and the
    export."""
    batch, length = request.param
    path = str(shared_path("models/gpt2.onnx"))
    models = load_model("gpt2", attention="eager"), load_model(path)
    cluster = load_cluster("dgx-a100", 8)
    zoo, export = (
        Simulator(
            Workload(model=model, batch_size=batch, sequence_length=length, dropout=False), cluster
        )
        for model in models
    )
    return zoo, export


def test_zoo_and_export_have_the_same_parameters_but_for_zero_biases(
    both: tuple[Simulator, Simulator],
) -> None:
    zoo, export = (parameter_count(each.workload.model.function) for each in both)
    assert zoo == 124_439_808
    assert zoo - export == ZERO_BIASES


def test_products_of_zoo_and_export_have_the_same_flops(both: tuple[Simulator, Simulator]) -> None:
    zoo, export = (each.workload.model_flops for each in both)
    assert zoo == export


@pytest.mark.parametrize(
    "strategy",
    [Strategy(), Strategy(dp=4), Strategy(tp=4), Strategy(dp=2, pp=2, microbatches=2)],
    ids=lambda strategy: strategy.label,
)
def test_zoo_and_export_take_the_same_time_within_ten_percent(
    both: tuple[Simulator, Simulator], strategy: Strategy
) -> None:
    zoo, export = (each.simulate(strategy).metrics["iteration_seconds"] for each in both)
    assert zoo == pytest.approx(export, rel=0.1)


def seconds_by_family(simulator: Simulator) -> Counter[str]:
    plan = simulator.plan(Strategy())
    stage = flat_stage(plan, 0, simulator.pricing(plan))
    found: Counter[str] = Counter()
    for step in (step for each in stage.passes for step in each.steps):
        name = step.instruction.label.partition(" ")[0]  # the op, without what tells it from others
        found[FAMILIES.get(name, name)] += step.instruction.seconds  # type: ignore[assignment]
    return found


def test_gelu_and_biases_explain_the_rest(both: tuple[Simulator, Simulator]) -> None:
    """The export spells out GELU, which is more elementwise kernels, and has no zero biases, which
    is fewer sums of gradients. All else takes the same time."""
    zoo, export = map(seconds_by_family, both)
    differ = {"elementwise", "gradient of a bias"}
    for name in zoo.keys() | export.keys():
        if name not in differ:
            assert zoo[name] == pytest.approx(export[name], rel=1e-3, abs=1e-9), name
    assert export["elementwise"] > zoo["elementwise"]
    assert export["gradient of a bias"] < zoo["gradient of a bias"]


def test_fused_attention_is_quicker_than_the_export(both: tuple[Simulator, Simulator]) -> None:
    _, export = both
    workload = export.workload
    fused = Workload(
        model=load_model("gpt2"),
        batch_size=workload.batch_size,
        sequence_length=workload.sequence_length,
    )
    ours = Simulator(fused, export.cluster).simulate(Strategy()).metrics["iteration_seconds"]
    assert ours < export.simulate(Strategy()).metrics["iteration_seconds"]
