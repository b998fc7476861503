"""What may be fitted: a field of the software stack, or what a generation of devices sustains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

from autotune.validation.cases import Case
from autotune.validation.words import read_toml_data
from distir.cost import Cluster, SoftwareStack

__all__ = ["Constant", "applied", "generation_of", "known_constants"]

_SUSTAINED = "sustained_fraction:"

_GENERATIONS = {"GB200": "B200", "GB300": "B300", "H200": "H100"}
"""Families of devices that are of one generation."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A positive number that may be fitted. Its logarithm is believed to be normal around that of
    `prior`, with standard deviation `spread`."""

    name: str
    prior: float
    spread: float
    because: str

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest value that it can have."""
        return _limits(self.name)

    def concerns(self, case: Case, stack: SoftwareStack) -> bool:
        """Whether a case could depend on it at all."""
        if self.name.startswith(_SUSTAINED):
            return generation_of(case) == self.name.removeprefix(_SUSTAINED)
        if self.name == "eager_launch_seconds":
            return stack.dispatch != "compiled"
        if self.name == "launch_order":
            return stack.dispatch != "blocking"
        if self.name == "attention_efficiency":
            return case.model.attention == "fused" and stack.attention_kernels != "first"
        return True


@lru_cache(maxsize=1)
def known_constants() -> tuple[Constant, ...]:
    """All of `priors.toml`, in order."""
    entries = read_toml_data(Path(__file__).resolve().parent / "priors.toml")
    known = {field.name for field in fields(SoftwareStack)}
    return tuple(
        Constant(name, entry["prior"], entry["spread"], entry["because"])
        for name, entry in entries.items()
        if name in known or name.startswith(_SUSTAINED)
    )


def generation_of(case: Case) -> str:
    """The generation of a case's devices."""
    family = case.hardware.family.split()[0]
    return _GENERATIONS.get(family, family)


def applied(
    values: Mapping[str, float], case: Case, stack: SoftwareStack
) -> tuple[SoftwareStack, Cluster]:
    """A case's software stack and hardware with these constants."""
    own = {name: value for name, value in values.items() if not name.startswith(_SUSTAINED)}
    limited = {name: _limited(name, value) for name, value in own.items()}
    cluster = case.hardware.cluster
    sustained = values.get(_SUSTAINED + generation_of(case))
    if sustained is not None:
        cluster = replace(cluster, device=replace(cluster.device, sustained_fraction=sustained))
    return replace(stack, **limited), cluster


def _limited(name: str, value: float) -> float:
    """The nearest value that a constant can have."""
    least, most = _limits(name)
    return min(max(value, least), most)


def _limits(name: str) -> tuple[float, float]:
    if name.endswith(("efficiency", "fraction")):
        return 0.0, _MOST
    return 1.0 if name.endswith("order") else 0.0, math.inf


_MOST = 0.98
"""No efficiency is fitted above this."""
