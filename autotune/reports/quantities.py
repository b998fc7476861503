"""Metrics as people read them."""

from __future__ import annotations

from distir.strategy import Strategy
from distir.units import format_bytes, format_seconds
from search_spaces.named import DEFAULTS

HEADINGS = {
    "iteration_seconds": "iteration",
    "throughput_samples_per_second": "samples/s",
    "tokens_per_second_per_device": "tokens/s/device",
    "model_tflops_per_device": "TFLOP/s/device",
    "mfu": "MFU",
    "peak_memory_bytes": "memory",
    "bubble_fraction": "bubble",
    "communication_fraction": "comm.",
}
"""Short names of the metrics that the simulator gives, in the order they are shown."""


def heading(metric: str) -> str:
    """The name of `metric` as a column's head."""
    return HEADINGS.get(metric, metric.replace("_", " "))


def shown(metric: str, value: float | None) -> str:
    """`value` in the unit that the name of `metric` ends in."""
    if value is None:
        return "-"
    if metric.endswith("_seconds"):
        return format_seconds(value, digits=3)
    if metric.endswith("_bytes"):
        return format_bytes(value, digits=3)
    if metric.endswith("_fraction") or metric in ("mfu", "regret"):
        return percent(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(fraction: float) -> str:
    """`0.0123` as `1.2 %`."""
    return f"{100 * fraction:.1f} %"


ALWAYS_SHOWN = ("dp", "tp", "pp", "microbatches", "schedule")
"""Choices that every strategy is described by; the others only where they are made."""


def described(strategy: Strategy) -> str:
    """`dp 2, tp 8, pp 1, microbatches 4, schedule 1f1b`, then what is not as by default."""
    parts: list[str] = []
    for name, value in strategy.to_dict().items():
        if name in ALWAYS_SHOWN or value != DEFAULTS.get(name):
            label = choice_heading(name)
            parts.append(label if value is True else f"{label} {value}")
    return ", ".join(parts)


def choice_heading(name: str) -> str:
    """The name of a choice for people."""
    return {"zero": "ZeRO"}.get(name, name.replace("_", " "))
