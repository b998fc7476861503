"""What is said about a plan's communication adds up to what the simulation says."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from autotune.cli import main
from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.simulation.communication import collectives_of

PLANS = [
    Strategy(dp=8),
    Strategy(dp=4, tp=2, zero=3, microbatches=2, sequence_parallel=True),
    Strategy(dp=2, tp=2, pp=2, microbatches=4),
    Strategy(dp=2, pp=2, cp=2, microbatches=4, schedule="interleaved", chunks=2),
]


def simulator() -> Simulator:
    return Simulator(Workload(model=load_model("gpt2"), batch_size=16), load_cluster("dgx-a100", 8))


@pytest.mark.parametrize("strategy", PLANS, ids=lambda each: each.label)
def test_exposed_seconds_add_up_to_those_of_the_result(strategy: Strategy) -> None:
    own = simulator()
    result = own.simulate(strategy)
    found = collectives_of(own.step(strategy), result)
    exposed = sum(each.exposed for each in found)
    fraction = result.metrics["communication_fraction"]
    assert exposed == pytest.approx(fraction * result.metrics["iteration_seconds"])
    for each in found:
        assert each.count > 0
        assert each.size_bytes > 0
        assert each.hidden == max(0.0, each.seconds - each.exposed)


@pytest.mark.parametrize("strategy", PLANS, ids=lambda each: each.label)
def test_choices_that_have_one_device_communicate_nothing(strategy: Strategy) -> None:
    own = simulator()
    found = collectives_of(own.step(strategy), own.simulate(strategy))
    assert {each.along for each in found} == {
        name for name in ("dp", "tp", "pp", "cp") if getattr(strategy, name) > 1
    }


def test_gradients_of_data_parallelism_are_sent_once() -> None:
    """124,439,808 parameters in bf16, over however many buckets."""
    own, strategy = simulator(), Strategy(dp=8, microbatches=2)
    sent: dict[str, float] = defaultdict(float)
    for each in collectives_of(own.step(strategy), own.simulate(strategy)):
        sent[each.op] += each.size_bytes
    assert sum(sent.values()) == pytest.approx(2 * 124_439_808, rel=1e-3)


def test_json_has_collectives_by_mesh_axis_and_kind(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["simulate", "--model", "gpt2", "--dp", "2", "--tp", "2", "--json", "-"]
    assert main(own) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["mesh_axis"] for each in found["collectives"]} == {"dp", "tp"}
    for each in found["collectives"]:
        assert set(each) == {
            "mesh_axis", "level", "kind", "count", "bytes", "exposed_seconds", "hidden_seconds",
        }  # fmt: skip
    assert found["memory"]["reserve_bytes"] > 0
