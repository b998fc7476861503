"""Options of frameworks that no row of their tables has: what they bear on.

A TOML file beside a target lists them as the framework itself knows them:

    neutral = "seed steps_per_print"          # bear neither on time nor on memory
    bearing = "sparse_gradients"              # bear on them, and are not simulated

    [zero_optimization]                       # options of a section
    bearing = "reduce_scatter offload_param.pin_memory"

    [scheduler]
    neutral = "*"                             # whatever the section has

    [removed]                                 # at which the framework stops, and what to state
    "cpu_offload" = "zero_optimization.offload_optimizer.device cpu"

    [reasons]                                 # why some are not simulated, by their whole names
    "zero_optimization.offload_param.*" = "how copies are buffered is not simulated"
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NOT_SIMULATED = "affects time or memory, but is not simulated"


@dataclass(frozen=True, slots=True)
class KnownOptions:
    """Options by what they bear on, and why some are not simulated."""

    neutral: frozenset[str]
    bearing: frozenset[str]
    reasons: Mapping[str, str]
    removed: Mapping[str, str]
    """Options at which the framework stops, as it has them no more, and what to state instead."""

    @property
    def names(self) -> frozenset[str]:
        """All of them; those of which a whole section is known are `section.*`."""
        return self.neutral | self.bearing

    def is_neutral(self, option: str) -> bool:
        """Whether an option bears neither on time nor on memory."""
        return _entry(option, self.neutral) is not None

    def not_modelled(self, option: str) -> str | None:
        """Why an option is not simulated; None if the framework does not know it."""
        if _entry(option, self.bearing) is None:
            return None
        said = _entry(option, self.reasons)
        return NOT_SIMULATED if said is None else self.reasons[said]


def _entry(option: str, listed: Collection[str]) -> str | None:
    """What of some names stands for an option: itself, or all of a section that it is in."""
    parts = option.split(".")
    sections = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next((name for name in (option, *(f"{s}.*" for s in sections)) if name in listed), None)


@cache
def known_options(target: str) -> KnownOptions:
    """The options that are listed for a target of `autotune.launch.targets`."""
    file = Path(__file__).parent / "targets" / f"{target}_options.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    reasons: dict[str, str] = content.pop("reasons", {})
    removed: dict[str, str] = content.pop("removed", {})
    listed = list(_listed(content, ""))
    neutral, bearing = (
        frozenset(name for kind, name in listed if kind == wanted)
        for wanted in ("neutral", "bearing")
    )
    return KnownOptions(neutral, bearing, reasons, removed)


def _listed(table: Mapping[str, Any], section: str) -> Iterator[tuple[str, str]]:
    """Every option of a table and of the sections in it, with the list that it is in."""
    for name, given in table.items():
        if isinstance(given, dict):
            yield from _listed(cast("Mapping[str, Any]", given), f"{section}{name}.")
        else:
            yield from ((name, f"{section}{option}") for option in given.split())
