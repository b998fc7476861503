"""Constants that are fitted to times of the cost model are those of the cost model."""

# pyright: basic
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.distributed.backend import torch_installed
from autotune.distributed.fitting import (
    Profile,
    cluster_text,
    device_text,
    fitted_profile,
    measured_products,
    nearest,
    stack_text,
)
from autotune.distributed.profiling import MessageSample, OpSample, Samples, StepSample
from distir.cost import CostModel, OpClass, Work, load_cluster, load_stack, products_text
from distir.cost.cluster import Group
from distir.cost.products import ProductShape

needs_torch = pytest.mark.skipif(not torch_installed(), reason="needs PyTorch: .[torch]")

LAUNCH, VIEW, COLLECTIVE = 50e-6, 20e-6, 200e-6
RATE, BANDWIDTH, LINK = 1e11, 5e10, 2e9


def _shape(work: Work) -> ProductShape | None:
    """A product of this work: 64 columns of a sum over 50, two operations each."""
    is_product = work.kind is OpClass.PRODUCT
    return ProductShape("fp32", int(float(work.flops)) // 6400, 64, 50) if is_product else None


def _samples() -> Samples:
    """Times of a machine with those constants, which launches and then computes."""
    works = [
        *(Work(OpClass.PRODUCT, flops=n, bytes_read=n / 100) for n in (1e5, 1e6, 1e7, 1e8, 1e9)),
        *(Work(OpClass.MEMORY, flops=n / 100, bytes_read=n) for n in (1e4, 1e5, 1e6, 1e7, 1e8)),
        *(Work(OpClass.ATTENTION, flops=n, bytes_read=n / 100) for n in (1e6, 1e7, 1e8)),
    ]
    rates = {OpClass.PRODUCT: RATE, OpClass.ATTENTION: RATE / 4, OpClass.MEMORY: 1e12}

    def seconds(work: Work) -> float:
        busy = max(work.flops / rates[work.kind], work.bytes / BANDWIDTH)
        return LAUNCH + float(busy)

    ops = [OpSample("op", work, seconds(work), _shape(work)) for work in works]
    steps = [
        StepSample(f"{kernels} {views}", kernels, views, 1e-4 + 2 * LAUNCH * kernels + VIEW * views)
        for kernels, views in ((10.0, 2.0), (50.0, 5.0), (100.0, 80.0), (60.0, 90.0))
    ]
    messages = [MessageSample("shift", n, COLLECTIVE + n / LINK) for n in (1e3, 1e5, 1e6, 1e7, 1e8)]
    return Samples("fp32", ops, steps, messages)


def _profile() -> Profile:
    return fitted_profile(_samples(), '"here"', 1e10, 2)


def test_the_cost_model_predicts_the_times_that_it_was_fitted_to() -> None:
    samples, profile = _samples(), _profile()
    assert profile.error < 0.05
    stack = replace(profile.stack, eager_launch_seconds=LAUNCH)
    model = CostModel(profile.cluster, stack)
    for each in samples.ops:
        assert model.op_seconds(each.work) == pytest.approx(each.seconds, rel=0.15)
    for each in samples.messages:
        found = model.collective_seconds("shift", each.size_bytes, Group(2, (2,), (1,)))
        assert found == pytest.approx(each.seconds, rel=0.15)
    assert profile.stack.eager_launch_seconds == pytest.approx(2 * LAUNCH, rel=0.01)
    assert profile.stack.eager_view_seconds == pytest.approx(VIEW, rel=0.01)
    assert profile.stack.iteration_overhead_seconds == pytest.approx(1e-4, rel=0.01)


def test_files_say_what_was_fitted(tmp_path: Path) -> None:
    profile, source = _profile(), 'a "test"\\ of\nlines'
    (tmp_path / "device.toml").write_text(device_text(profile, source))
    (tmp_path / "cluster.toml").write_text(cluster_text(profile, "device.toml", source))
    (tmp_path / "stack.toml").write_text(stack_text(profile, source))
    cluster, stack = load_cluster(tmp_path / "cluster.toml"), load_stack(tmp_path / "stack.toml")
    read, written = CostModel(cluster, stack), CostModel(profile.cluster, profile.stack)
    assert cluster.num_devices == 2
    for each in _samples().ops:
        assert read.op_seconds(each.work) == pytest.approx(written.op_seconds(each.work), rel=1e-3)
    assert read.hop_seconds(1e6, 0) == pytest.approx(written.hop_seconds(1e6, 0), rel=1e-3)
    assert stack.iteration_overhead_seconds == pytest.approx(
        profile.stack.iteration_overhead_seconds, rel=1e-3
    )
    assert stack.reserve_bytes(1.0, 1) == 0


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_table_of_products_has_what_was_timed_without_launches(
    runs_ahead: bool, tmp_path: Path
) -> None:
    samples = replace(_samples(), runs_ahead=runs_ahead)
    profile = fitted_profile(samples, "here", 1e10, 2)
    table = measured_products(samples, profile, "a library")
    (tmp_path / "products.toml").write_text(products_text(table, "measured"))
    (tmp_path / "stack.toml").write_text(stack_text(profile, "test", "products.toml"))
    found = load_stack(tmp_path / "stack.toml").products
    assert found is not None
    assert (found.device, found.versions) == ("here", "a library")
    launch = 0.0 if runs_ahead else profile.stack.eager_launch_seconds
    wanted = {
        each.product.rows: each.seconds - launch
        for each in samples.ops
        if each.product is not None and each.seconds > launch
    }
    assert {point.rows: point.seconds for point in found.points} == pytest.approx(wanted, rel=1e-4)
    assert len(wanted) > 1


def test_the_search_finds_the_least_of_a_valley() -> None:
    found = nearest({"a": 1.0, "b": 1.0}, lambda at: abs(at["a"] - 7) + abs(at["b"] - 0.02))
    assert found["a"] == pytest.approx(7, rel=0.01)
    assert found["b"] == pytest.approx(0.02, rel=0.01)


@needs_torch
@pytest.mark.slow(seconds=30)
def test_the_command_writes_files_that_plans_are_simulated_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--to", str(tmp_path / "new"), "--products", "--json", "-"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    options = ["--cluster", files["cluster"], "--stack", files["stack"], "--devices", "1"]
    assert main(["simulate", "--model", "mlp-xs", "--precision", "fp32", *options]) == 0


@needs_torch
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "taken"], "expected a folder"),
        (["--name", " "], "--name is empty"),
        (["--devices", "1" + 30 * "0"], "expected at most"),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_refused_before_anything_is_timed(
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("")
    assert main(["profile", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@needs_torch
def test_without_a_gpu_cuda_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from autotune.distributed.backend import load_torch

    if load_torch().cuda.device_count():
        pytest.skip("there is a GPU")
    assert main(["profile", "--on", "cuda", "--to", str(tmp_path)]) == 2
    assert main(["measure", "--on", "cuda", "--model", "mlp-xs", "--devices", "1"]) == 2
    assert main(["execute", "--on", "cuda", "--model", "mlp-xs", "--dp", "2"]) == 2
    said = capsys.readouterr().err
    assert said.count("no NVIDIA GPU") == 3
