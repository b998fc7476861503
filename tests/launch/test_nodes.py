"""Launched nodes have equally many devices, and what a plan has near each other stays so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.launch import TARGETS
from autotune.launch.errors import LaunchError
from autotune.launch.nodes import as_launched, node_sizes, stated_size
from autotune.launch.priced import launched
from autotune.problem import Problem, load_problem
from distir.cost import Cluster, load_cluster
from distir.strategy import Strategy
from tests.launch.strategies import launch_with

MODEL = ("--model", "llama3.2-1b", "--cluster", "hgx-h100", "--batch-size", "72")
FULL = {1: 1, 8: 8, 12: 6, 13: 1, 16: 8, 18: 6, 20: 5, 24: 8, 28: 7}
"""The most devices that every node of 8 may have, by how many there are in all."""


def problem_on(cluster: str | Cluster, devices: int) -> Problem:
    return load_problem(
        "llama3.2-1b", cluster, devices=devices, batch_size=devices * 6, space="standard"
    )


@pytest.mark.parametrize(("devices", "most"), FULL.items())
def test_nodes_have_equally_many_devices(devices: int, most: int) -> None:
    sizes = node_sizes(load_cluster("hgx-h100", devices))
    assert sizes[0] == most
    assert all(devices % each == 0 and each <= 8 for each in sizes)


@pytest.mark.parametrize("cluster", ["hgx-h100", "gb200-nvl72"])
@pytest.mark.parametrize("devices", [12, 18, 20, 24, 36, 90])
def test_what_is_near_each_other_is_launched_near_each_other(cluster: str, devices: int) -> None:
    problem = problem_on(cluster, devices)
    simulator: Any = problem.simulator
    hardware: Cluster = simulator.cost.cluster
    for index in range(0, problem.space.count(), max(1, problem.space.count() // 15)):
        launch = launch_with(problem, problem.space.at(index))
        nodes, each = launch.nodes
        assert nodes * each == devices
        on_launched = as_launched(hardware, each)
        grid = launch.plan.grid
        for axis in (*grid.mesh, grid.ranks):
            near, still = (
                [n == 1 for n in on.group(axis.degree, axis.stride).fan_out]
                for on in (hardware, on_launched)
            )
            assert all(b for a, b in zip(near, still, strict=True) if a)


def test_full_nodes_and_parts_of_one_node_are_launched_as_they_are_simulated() -> None:
    for devices in (1, 6, 8, 16, 64):
        cluster = load_cluster("hgx-h100", devices)
        assert as_launched(cluster, min(devices, 8)) is cluster


def test_more_than_what_is_near_may_be_on_a_node() -> None:
    problem = problem_on("hgx-h100", 12)
    sizes = {
        strategy.label: launch_with(problem, strategy).nodes
        for strategy in (
            Strategy(dp=3, tp=4), Strategy(dp=6, tp=2), Strategy(dp=12), Strategy(dp=3, pp=2, tp=2)
        )
    }  # fmt: skip
    assert list(sizes.values()) == [(3, 4), (2, 6), (2, 6), (2, 6)]


def test_a_node_has_the_levels_and_the_host_of_its_first_devices() -> None:
    hgx = as_launched(load_cluster("hgx-h100", 12), 4)
    assert hgx.devices_per_unit == (4, 12)
    assert hgx.node_devices == 4
    assert hgx.host is not None
    assert hgx.host.devices == 4
    rack = as_launched(load_cluster("gb200-nvl72", 90), 3)
    assert rack.devices_per_unit[0] == 54  # 18 nodes
    assert rack.host is not None
    assert rack.host.devices == 2


def test_pieces_of_a_unit_are_never_nearer_than_they_are() -> None:
    node = replace(load_cluster("hgx-h100", 12), devices_per_node=8)
    pair = replace(node.levels[0], name="pair", size=2)
    node = replace(node, levels=(pair, replace(pair, name="node", size=4), *node.levels[1:]))
    assert as_launched(node, 6).devices_per_unit == (2, 6, 12)
    assert as_launched(node, 3).devices_per_unit == (1, 3, 12)


def small(nodes: int, devices: int) -> Cluster:
    """A cluster of so many nodes of 8, and no more."""
    cluster = load_cluster("hgx-h100", 1)
    inner, outer = cluster.levels
    return replace(cluster, levels=(inner, replace(outer, size=nodes)), num_devices=devices)


def test_devices_that_need_more_nodes_than_there_are_are_refused() -> None:
    assert node_sizes(small(4, 20)) == [5]
    with pytest.raises(LaunchError, match="such as 16"):
        node_sizes(small(4, 22))
    with pytest.raises(LaunchError, match="11 nodes of 2 devices"):
        as_launched(small(4, 22), 2)
    problem = problem_on(small(4, 22), 22)
    with pytest.raises(LaunchError, match="equally many processes on every node"):
        launched(problem, TARGETS.get("megatron"), Strategy(dp=22))


def test_a_file_says_its_nodes_in_numbers_or_not_at_all() -> None:
    assert stated_size("3", "4", 12) == 4
    assert stated_size("$NNODES", 4, 12) == 4
    assert stated_size(1, 8, 64) is None  # the user speaks of other devices
    assert stated_size(1, None, 8) is stated_size("$N", 5, 12) is stated_size(1, "auto", 8) is None


PLANS = {
    "megatron": ("--dp", "3", "--tp", "4", "--microbatches", "2"),
    "nanotron": ("--dp", "3", "--tp", "4", "--microbatches", "2"),
    "deepspeed": ("--dp", "12", "--zero", "3"),
    "accelerate": ("--dp", "12", "--zero", "3"),
}


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("target", PLANS)
def test_launched_nodes_are_simulated_and_read(
    target: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    to = ("--target", target, "--to", str(tmp_path))
    done = json_of(capsys, "launch", *MODEL, *PLANS[target], *to)
    each = done["as_run"]["devices_per_node"]
    assert each == {"megatron": 4, "nanotron": 4}.get(target, 6)
    assert any(note["what"] == "nodes" for note in done["approximated"])
    read = json_of(capsys, "read", str(tmp_path), *MODEL[2:4], "--trials", "0")
    assert read["as_run"]["devices_per_node"] == each
    assert read["simulated"]["metrics"] == done["simulated"]["metrics"]
    if target != "accelerate":  # whose script says how gradients are kept
        assert read["as_run"]["metrics"] == done["as_run"]["metrics"]


def test_nodes_that_a_file_states_are_simulated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = (*PLANS["megatron"], "--target", "megatron", "--to", str(tmp_path))
    json_of(capsys, "launch", *MODEL, *plan)
    script = tmp_path / "launch.sh"
    times: list[float] = []
    for nodes, each in ((3, 4), (2, 6)):
        text = script.read_text().replace(
            "--nnodes 3 --nproc-per-node 4", f"--nnodes {nodes} --nproc-per-node {each}"
        )
        (tmp_path / "other.sh").write_text(text)
        found = json_of(capsys, "read", str(tmp_path / "other.sh"), *MODEL[2:4], "--trials", "0")
        times.append(found["as_run"]["metrics"]["iteration_seconds"])
    assert times[0] < times[1]  # with nodes of 6 the second group of tp is on two nodes


def test_reports_say_which_nodes_are_launched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *MODEL, *PLANS["megatron"], "--target", "megatron"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "As megatron runs it, on 3 nodes of 4 devices instead of 8:" in text
    assert "3 nodes of 4 devices are launched" in text
