"""Mesh axes of a user's own are degrees by another name, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice, product

import pytest

from autotune import load_problem
from autotune.cli import main
from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.errors import StrategyError
from distir.execute.verify import Verifier
from distir.metrics import iteration_seconds, peak_memory_bytes, reserved_memory_bytes
from distir.ops.host import HOST
from distir.plan import axis_lists
from distir.simulation.pricing.instructions import COMPUTE, GRADIENTS
from distir.simulation.trace import ACTIONS
from distir.strategy import PLACEMENT, TAKEN, lists_of_mesh, parse_lists

pytestmark = pytest.mark.not_quick

MEGATRON = "heads,ffn,vocabulary"
METRICS = (iteration_seconds.name, peak_memory_bytes.name, reserved_memory_bytes.name)


@pytest.mark.parametrize("model", ["gpt2-xs", "mlp-4x64"])
@pytest.mark.parametrize("placement", [PLACEMENT, "pp-tp-cp-ep-dp"])
@pytest.mark.parametrize(("data", "tensor", "ranks"), [(2, 4, 1), (4, 2, 2), (1, 4, 2)])
def test_replicas_and_tensor_parallelism_by_other_names_cost_the_same(
    model: str, placement: str, data: int, tensor: int, ranks: int
) -> None:
    own = "ffn" if model.startswith("mlp") else MEGATRON
    simulator = Simulator(
        Workload(model=load_model(model), batch_size=16),
        load_cluster("p3-v100-16gb", data * tensor * ranks),
    )
    usual = Strategy(dp=data, tp=tensor, pp=ranks, axes=f"tp={own}", placement=placement)
    lists = f"data:{data}=batch;model:{tensor}={own}"
    named = replace(usual, dp=1, tp=data * tensor, axes=lists)
    wanted, found = (simulator.simulate(each).metrics for each in (usual, named))
    assert {name: found[name] for name in METRICS} == {name: wanted[name] for name in METRICS}
    many = simulator.simulate_many([named, usual]).metrics
    for name in METRICS:
        assert many[name][0] == pytest.approx(found[name], rel=1e-12)


@pytest.mark.slow(seconds=3)
def test_a_mesh_of_ones_own_computes_what_one_device_computes() -> None:
    workload = Workload(model=load_model("gpt2-xs"), batch_size=16)
    for axes in ("a:2=batch;b:2=heads,ffn,sequence", "x:2=sequence;y:2=;z:2=vocabulary,batch"):
        tp = 4 if axes.startswith("a") else 8
        strategy = Strategy(dp=2, tp=tp, pp=2, microbatches=2, axes=axes)
        assert Verifier(workload).verify(strategy).passed


def test_lists_of_a_mesh_are_made_for_every_axis_and_each_plan_is_there_once() -> None:
    space = {"extends": "small", "microbatches": [1], "schedule": ["1f1b"]}
    problem = load_problem("mlp-4x64", devices=8, space=space, mesh="data=4,model=2", batch_size=16)
    found = [each for each in problem.space.enumerate() if each.axes]
    assert {each.tp for each in found} == {8}
    assert {tuple(parse_lists(each.axes)) for each in found} == {("data:4", "model:2")}
    simulator = problem.simulator
    assert isinstance(simulator, Simulator)
    assert len({simulator.planner.fingerprint(each) for each in found}) == len(found)
    stated = load_problem(
        "mlp-4x64", devices=8, space=space, mesh="data=4,model=2", axis_lists="data=batch"
    )
    lists = [parse_lists(each.axes) for each in stated.space.enumerate() if each.axes]
    assert lists
    assert all(each["data:4"] == ("batch",) for each in lists)


@pytest.mark.slow(seconds=5)
def test_lists_of_a_mesh_need_not_divide_what_usual_lists_split() -> None:
    space = {"extends": "small", "microbatches": [1], "schedule": ["1f1b"]}
    problem = load_problem("mlp-4x64", devices=6, space=space, mesh="data=3,model=2")
    assert problem.space.impossible(Strategy(tp=6)), "the usual list splits 256 by 6"
    assert Strategy(tp=6, axes="data:3=batch;model:2=ffn") in problem.space
    alone = load_problem("gpt2", devices=8, space=space, axis_lists="auto")
    assert alone.space.impossible(Strategy(tp=8)), "the usual list splits 12 heads by 8"
    assert 8 in alone.space.values("tp")


def test_lists_that_are_left_out_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    space = {"extends": "small", "tp": [4], "axes": "auto"}
    problem = load_problem("mlp-4x64", devices=4, space=space, batch_size=16)
    problem.space.count()
    assert not problem.notes
    monkeypatch.setattr(axis_lists, "MOST_LISTS", 3)
    problem = load_problem("mlp-4x64", devices=4, space=space, batch_size=16)
    problem.space.count()
    (note,) = problem.notes
    assert note == (
        "Of the axis lists along tp 4, only the first 3 are in the space, which have the fewest "
        "words."
    )


def test_combinations_of_many_lists_are_not_all_made_before_the_first_are_taken() -> None:
    lists = [(str(number),) * (1 + number % 5) for number in range(1000)]
    made = islice(axis_lists.combined([lists] * 4), 5000)
    words = [sum(map(len, each)) for each in made]
    assert words == [4] * 5000
    few = [[("a",), ("b", "c"), ()], [("d",), ()]]
    found = list(axis_lists.combined(few))
    assert sorted(found) == sorted(product(*few))
    assert [sum(map(len, each)) for each in found] == [0, 1, 1, 2, 2, 3]


def test_names_of_streams_are_no_names_of_mesh_axes() -> None:
    assert {ACTIONS, COMPUTE, GRADIENTS, HOST, "pp"} <= {*TAKEN}


@pytest.mark.parametrize(
    ("mesh", "axes", "reason"),
    [
        ("data=4,model", "", "expected names with numbers of devices"),
        ("data=4,data=4", "", "each once"),
        ("data=4,data=2", "", "each once"),
        ("data=4,model=2", "data:8=batch", "unknown mesh axis 'data:8'"),
        ("dp=4,model=2", "", "none of dp, tp"),
        ("data=0", "", "expected names with numbers"),
        ("compute=2", "", "expected names with numbers"),
        ("data=4,model=2", "modle=heads", "unknown mesh axis 'modle'; did you mean: model"),
        ("data=4,model=2", "tp=heads", "shares the devices of tp"),
    ],
)
def test_a_mesh_that_cannot_be_read_is_refused_in_one_line(
    mesh: str, axes: str, reason: str
) -> None:
    with pytest.raises(StrategyError, match=reason) as refused:
        lists_of_mesh(mesh, axes)
    assert "\n" not in str(refused.value)


def test_one_mesh_has_one_spelling_and_each_name_once() -> None:
    assert Strategy(tp=4, axes="data:02=batch;model:2=").axes == "data:2=batch;model:2="
    assert parse_lists(lists_of_mesh("data=02,model=2")) == {"data:2": (), "model:2": ()}
    with pytest.raises(StrategyError, match="two lists for data"):
        parse_lists("data:2=batch;data:4=heads")


def test_a_mesh_has_all_devices_of_tp() -> None:
    workload = Workload(model=load_model("mlp-4x64"), batch_size=16)
    simulator = Simulator(workload, load_cluster("dgx-a100", 8))
    reason = simulator.explain(Strategy(tp=8, axes="data:2=batch;model:2=ffn"))
    assert reason is not None
    assert "a mesh of data x model = 2 x 2 = 4, but it must have the devices of tp = 8" in reason
    assert "tp = 4 would do" in reason


def test_a_mesh_is_simulated_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["simulate", "--model", "gpt2-xs", "--batch-size", "16", "--mesh", "data=2,model=4"]
    assert (
        main([*options, "--axes", "data=batch", "--axes", f"model={MEGATRON}", "--json", "-"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["strategy"]["tp"] == 8
    assert {each["mesh_axis"] for each in told["collectives"]} == {"data", "model"}
    assert told["known_lists"]["model:4"] == "Megatron's tensor parallelism"
    assert main([*options, "--tp", "4"]) != 0
    assert "it must have the devices of tp = 4" in capsys.readouterr().err


def test_a_mesh_is_verified_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["verify", "--model", "gpt2-xs", "--mesh", "data=2,model=2", "--microbatches", "2"]
    lists = ["--axes", "data=batch", "--axes", "model=heads,ffn"]
    assert main([*options, *lists, "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["passed"]
    assert told["strategy"]["axes"] == "data:2=batch;model:2=heads,ffn"


def test_a_mesh_that_does_not_divide_the_devices_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--model", "mlp-4x64", "--devices", "8", "--mesh", "data=3,model=2"]
    assert main(["grid", *options]) != 0
    assert "the mesh data=3,model=2 has 6 devices; expected a number" in capsys.readouterr().err
