"""Metrics, shares and choices as people read them."""

from __future__ import annotations

from collections.abc import Mapping

from distir.metrics import METRICS, peak_memory_bytes, reserved_memory_bytes
from distir.shares import share_heading
from distir.strategy import Strategy
from distir.units import percent, short_bytes, unit_of
from search_spaces.named import DEFAULTS

LEAST_SHOWN = 0.0005
"""Fractions below this would be shown as 0.0 %."""


def heading(metric: str) -> str:
    """A metric, or another number by name, as a column's head."""
    return METRICS.get(metric).heading if metric in METRICS else metric.replace("_", " ")


def shown(metric: str, value: float | None) -> str:
    """A metric in its unit, another number in the one that its name ends in."""
    if value is None:
        return "-"
    unit = METRICS.get(metric).unit if metric in METRICS else unit_of(metric)
    return unit(value)


def lost(fraction: float) -> str:
    """What is lost against the best: a percentage that is 0 only where nothing is."""
    return "<0.1 %" if 0 < fraction < LEAST_SHOWN else percent(fraction)


def memory_use(metrics: Mapping[str, float], limit_bytes: float) -> str:
    """What of a device's memory a plan takes: `memory 76 GiB in tensors + 2.4 GiB reserve of
    80 GiB`."""
    tensors = metrics[peak_memory_bytes.name]
    reserve = metrics.get(reserved_memory_bytes.name, 0.0)
    beside = f" + {short_bytes(reserve)} reserve" if reserve else ""
    name, limit = heading(peak_memory_bytes.name), short_bytes(limit_bytes)
    return f"{name} {short_bytes(tensors)} in tensors{beside} of {limit}"


def narrow_heading(share: str) -> str:
    """A share of time or memory as the head of a narrow column."""
    return share_heading(share).replace("communication", "comm.").replace(" ", "\n")


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


def lists_told(known: Mapping[str, str]) -> str:
    """The techniques that axis lists come to, by degree, as a sentence."""
    said = [f"{name} (the list of {user})" for user, name in known.items()]
    return f"This is {' and '.join(said)}: the placed program is the same." if said else ""


def choice_value(value: object) -> str:
    """The value of a choice for people."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def choice_heading(name: str) -> str:
    """The name of a choice for people."""
    return {"zero": "ZeRO"}.get(name, name.replace("_", " "))
