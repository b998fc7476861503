"""Whoever has a GPU of their own writes one file; the command line takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.newcomers.packages import autotune, python

pytestmark = pytest.mark.slow(seconds=1)  # each starts processes

GPU = """
name = "Their GPU"
memory = "{memory}"
memory_bandwidth = "4078 GB/s"
peak = {{ fp32 = "39 TFLOP/s", bf16 = "624 TFLOP/s" }}
"""
"""An A100 (80 GB) with twice its rates."""

PLAN = ["--model", "gpt2", "--cluster", "dgx-a100", "--dp", "8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "gpu.toml").write_text(GPU.format(memory="80 GiB"))
    (folder / "small.toml").write_text(GPU.format(memory="1 GiB"))
    return folder


def simulated(folder: Path, *options: str) -> Any:
    return json.loads(autotune(folder, "simulate", *PLAN, *options, "--json", "-"))


def test_a_gpu_with_twice_the_rates_computes_twice_as_fast(folder: Path) -> None:
    theirs, known = simulated(folder, "--device", "gpu.toml"), simulated(folder)
    assert theirs["cluster"] == "dgx-a100 with Their GPU"
    (faster,), (slower,) = theirs["stages"], known["stages"]
    # Kernels ramp up as slowly as before.
    assert 0.5 < faster["seconds"]["compute"] / slower["seconds"]["compute"] < 0.55
    assert theirs["metrics"]["peak_memory_bytes"] == known["metrics"]["peak_memory_bytes"]


def test_what_does_not_fit_on_the_gpu_is_said_not_to(folder: Path) -> None:
    assert "1 GiB per device" in autotune(folder, "simulate", *PLAN, "--device", "small.toml")


def test_a_search_knows_the_gpu(folder: Path) -> None:
    asked = ["--model", "gpt2", "--devices", "4", "--device", "gpu.toml"]
    assert "4 devices of dgx-a100 with Their GPU" in autotune(folder, "grid", *asked, "--jobs", "2")


def test_the_file_of_a_cluster_names_that_of_its_gpu_from_any_folder(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "lab.toml").write_text(
        'name = "lab"\ndevice = "gpu.toml"\n[[levels]]\nname = "bus"\nsize = 8\n'
        'bandwidth = "300 GB/s"\nlatency = "3 us"\n'
    )
    asked = ["simulate", "--model", "gpt2", "--cluster", str(folder / "lab.toml"), "--dp", "8"]
    assert "8 devices of lab" in autotune(tmp_path, *asked)


def test_a_gpu_that_is_not_there_is_named(folder: Path) -> None:
    done = python(folder, "-m", "autotune", "verify", "--model", "gpt2", "--device", "gpux.toml")
    assert done.returncode == 2
    assert "gpux.toml: there is no such device file" in done.stderr
