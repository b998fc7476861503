"""Whoever has a cluster of their own writes one file; the command line takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.newcomers.packages import autotune

pytestmark = pytest.mark.slow(seconds=1)  # each starts processes

CLUSTER = """
name = "their lab"
devices = 8

[device]
name = "Their GPU"
memory = "24 GiB"
memory_bandwidth = "936 GB/s"
peak = { fp32 = "35.6 TFLOP/s", bf16 = "142 TFLOP/s" }

[[levels]]
name = "PCIe"
size = 2
bandwidth = "24 GB/s"
latency = "5 us"

[[levels]]
name = "Ethernet"
bandwidth = "25 Gbit/s"
latency = "14 us"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "lab.toml").write_text(CLUSTER)
    (folder / "slower.toml").write_text(CLUSTER.replace("25 Gbit/s", "2.5 Gbit/s"))
    return folder


def simulated(folder: Path, cluster: str, *plan: str) -> Any:
    options = ["--model", "gpt2", "--cluster", cluster, *plan, "--json", "-"]
    return json.loads(autotune(folder, "simulate", *options))


def test_a_plan_is_simulated_on_the_cluster(folder: Path) -> None:
    result = simulated(folder, "lab.toml", "--dp", "8", "--microbatches", "16")
    assert result["cluster"] == "their lab"
    assert result["feasible"]


def test_its_slowest_links_count_where_a_plan_crosses_them(folder: Path) -> None:
    def seconds(cluster: str, degree: str) -> float:
        plan = ["--dp", degree, "--microbatches", "16"]
        return float(simulated(folder, cluster, *plan)["metrics"]["iteration_seconds"])

    assert seconds("slower.toml", "8") > seconds("lab.toml", "8")
    assert seconds("slower.toml", "2") == seconds("lab.toml", "2")


def test_the_best_way_to_use_the_cluster_is_found(folder: Path) -> None:
    asked = ["--model", "gpt2", "--cluster", "lab.toml", "--devices", "8", "--no-tracking"]
    found = json.loads(autotune(folder, "run", *asked, "--trials", "10", "--json", "-"))
    seconds = [each["metrics"]["iteration_seconds"] for each in found["trials"] if each["feasible"]]
    assert found["cluster"] == "their lab"
    assert found["search"]["best"]["metrics"]["iteration_seconds"] == min(seconds)
    assert found["best"]["metrics"]["iteration_seconds"] <= min(seconds)
