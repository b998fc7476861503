"""From timings to a software stack; no GPU is needed for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from distir.cost import CostModel, OpClass, Work, load_cluster, load_device, load_stack
from experiments.accelerator import measure
from experiments.accelerator.__main__ import main
from experiments.accelerator.fit import Sample, constants, stack_file

A100 = load_device("a100-sxm4-80gb")


def timings() -> list[Sample]:
    """An A100 that reaches half of its products' peak, a quarter in attention and 0.9 of its
    memory bandwidth when large, a tenth of each when small; 10 us from Python, 2 us in a graph."""
    return [
        Sample("product", "small", 1e9 / 31.2e12, 1e9),
        Sample("product", "large", 1e12 / 156e12, 1e12),
        Sample("attention", "small", 1e9 / 31.2e12, 1e9),
        Sample("attention", "large", 1e12 / 78e12, 1e12),
        Sample("memory", "small", 1e6 / 203.9e9, size_bytes=1e6),
        Sample("memory", "large", 1e9 / (0.9 * 2039e9), size_bytes=1e9),
        Sample("eager", "few", 20e-6, count=1),
        Sample("eager", "many", 1e-2, count=1000),
        Sample("graph", "many", 2e-3, count=1000),
        Sample("all_reduce", "large", 1e9 / 225e9, size_bytes=1e9),
    ]


EXPECTED = {
    "product_efficiency": 0.5,
    "attention_efficiency": 0.25,
    "memory_efficiency": 0.9,
    "eager_launch": 10e-6,
    "compiled_launch": 2e-6,
    "board_link_efficiency": 0.75,
}


def test_large_samples_tell_what_is_reached() -> None:
    assert constants(timings(), A100, link=300e9) == pytest.approx(EXPECTED)


def test_what_was_not_measured_is_left_out() -> None:
    assert constants(timings()[:2], A100, link=None) == pytest.approx({"product_efficiency": 0.5})


def test_the_stack_that_is_written_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(stack_file("lab", EXPECTED, "a test", "eager", "fused"), encoding="utf-8")
    stack = load_stack(path)
    assert (stack.name, stack.launch_seconds, stack.attention) == ("lab", 10e-6, "fused")
    assert stack.network_link_efficiency == load_stack("megatron").network_link_efficiency
    large = Work(OpClass.PRODUCT, 1e15, 1.0, 1.0, "bf16")
    seconds = CostModel(load_cluster("dgx-a100"), stack).kernel_seconds(large)
    assert seconds == pytest.approx(1e15 / 156e12, rel=1e-3)


def test_without_a_gpu_it_is_skipped_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "why_not", lambda: "there is no NVIDIA GPU")
    output = tmp_path / "stack.toml"
    assert main(["--device", "a100-sxm4-80gb", "--output", str(output)]) == 0
    assert capsys.readouterr().out == "nothing measured: there is no NVIDIA GPU\n"
    assert not output.exists()
