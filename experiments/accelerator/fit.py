"""From timings to the constants of a software stack, and to the file that states them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from distir.cost import Device
from distir.cost.stack import AttentionForm, KernelDispatch

LARGE = 0.5
"""Of the samples of a kind, those of the longest half tell what is reached when large."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timing: `kind` is `product`, `attention`, `memory`, `eager`, `graph` or `all_reduce`.

    Launch samples have `count` empty kernels; an all-reduce has the bytes that one device sends.
    """

    kind: str
    label: str
    seconds: float
    flops: float = 0.0
    size_bytes: float = 0.0
    dtype: str = "bf16"
    count: int = 1


def constants(samples: Sequence[Sample], device: Device, link: float | None) -> dict[str, float]:
    """What the samples pin, by key of a stack's table [constants]; seconds for launches. `link` is
    the datasheet bandwidth between devices, bytes per second."""
    bandwidth = device.memory_bandwidth_bytes_per_second

    def rate(sample: Sample) -> float:
        return device.peak(sample.dtype) * device.sustained_fraction * sample.seconds

    found: dict[str, list[float]] = {
        "product_efficiency": [s.flops / rate(s) for s in large(samples, "product")],
        "attention_efficiency": [s.flops / rate(s) for s in large(samples, "attention")],
        "memory_efficiency": [
            s.size_bytes / s.seconds / bandwidth for s in large(samples, "memory")
        ],
        "eager_launch": [s.seconds / s.count for s in large(samples, "eager")],
        "compiled_launch": [s.seconds / s.count for s in large(samples, "graph")],
    }
    if link is not None:
        found["board_link_efficiency"] = [
            s.size_bytes / s.seconds / link for s in large(samples, "all_reduce")
        ]
    return {name: median(values) for name, values in found.items() if values}


def large(samples: Iterable[Sample], kind: str) -> list[Sample]:
    """The longer half of the samples of a kind: what is reached when nothing is small."""
    own = sorted((s for s in samples if s.kind == kind), key=lambda sample: sample.seconds)
    return own[int(len(own) * LARGE) :]


def stack_file(
    name: str,
    found: Mapping[str, float],
    source: str,
    dispatch: KernelDispatch,
    attention: AttentionForm,
) -> str:
    """A software stack with these constants; what was not measured stays as all stacks have it."""
    lines = [
        f'name = "{name}"',
        f'summary = "{source}"',
        "",
        f'dispatch = "{dispatch}"',
        f"fuses_elementwise = {'true' if dispatch == 'compiled' else 'false'}",
        f'attention = "{attention}"',
        "",
        "[constants]",
    ]
    lines += [
        f'{key} = "{1e6 * value:.3g} us"' if key.endswith("launch") else f"{key} = {value:.4g}"
        for key, value in found.items()
    ]
    lines += ["", "[constants.sources]", *(f'{key} = "{source}"' for key in found)]
    return "\n".join(lines) + "\n"


def table(samples: Sequence[Sample]) -> str:
    """One line per sample: what was run, its time and its rates."""
    lines = [f"{'':44}{'time':>12}{'TFLOP/s':>10}{'GB/s':>10}"]
    for each in samples:
        rates = (each.flops / 1e12 / each.seconds, each.size_bytes / 1e9 / each.seconds)
        shown = (f"{value:10.1f}" if value else " " * 10 for value in rates)
        lines.append(
            f"{each.kind + ' ' + each.label:44}{1e6 * each.seconds:9.1f} us{''.join(shown)}"
        )
    return "\n".join(lines)
