"""Experts as exporters write them today: every token looks up the matrices of the expert that it
chose, and is multiplied by them. What tokens choose of a parameter is one to the product."""

from __future__ import annotations

from distir import Simulator, Strategy, Workload, load_cluster
from distir.execute.verify import verify
from distir.importers.load import LoadedModel
from distir.ir import Builder, Function, Value
from distir.ops.activations import Relu
from distir.ops.arithmetic import Add
from distir.ops.linalg import MatMul
from distir.ops.lookup import Gather
from distir.ops.positions import ArgMax
from distir.ops.tensor import Reshape

HIDDEN, FFN, EXPERTS = 8, 12, 4


def experts(builder: Builder, x: Value, name: str) -> Value:
    """`x` with the result of the best expert of every token added."""
    batch, sequence, _ = x.type.shape
    router = builder.parameter(f"{name}.router", (HIDDEN, EXPERTS))
    choice = builder.add(ArgMax(2, keepdims=False), builder.add(MatMul(), x, router))
    y = builder.add(Reshape((batch, sequence, 1, HIDDEN)), x)
    for part, inner, outer in (("up", HIDDEN, FFN), ("down", FFN, HIDDEN)):
        table = builder.parameter(f"{name}.{part}", (EXPERTS, inner, outer))
        y = builder.add(MatMul(), y, builder.add(Gather(0), table, choice))
        y = builder.add(Relu(), y) if part == "up" else y
    return builder.add(Add(), x, builder.add(Reshape(x.type.shape), y))


def two_layers() -> Function:
    builder = Builder("two layers")
    x = builder.input("x", (5, 7, HIDDEN))
    for layer in range(2):
        x = experts(builder, x, f"layers.{layer}")
    return builder.build([x])


def workload(batch_size: int = 4) -> Workload:
    model = LoadedModel("two layers", two_layers())
    return Workload(model=model, batch_size=batch_size, loss="mse")


def test_the_width_of_chosen_experts_is_split_and_their_number_is_no_vocabulary() -> None:
    families = workload().program.families
    assert {axis.size for axis in families["ffn"]} == {FFN}
    assert "vocabulary" not in families
    assert "heads" not in families


def test_a_device_holds_its_part_of_every_expert() -> None:
    def held(strategy: Strategy) -> float:
        simulator = Simulator(workload(), load_cluster("dgx-a100", strategy.devices))
        return simulator.simulate(strategy).stages[0].memory["parameters_bytes"]

    routers, tables = 2 * HIDDEN * EXPERTS, 2 * 2 * EXPERTS * HIDDEN * FFN
    assert held(Strategy()) == 2 * (routers + tables)
    assert held(Strategy(tp=2)) == 2 * (routers + tables / 2)


def test_chosen_rows_compute_what_one_device_computes() -> None:
    for strategy in (Strategy(tp=2), Strategy(dp=2, tp=2, zero=3), Strategy(dp=2, pp=2)):
        assert verify(workload(), strategy).passed
