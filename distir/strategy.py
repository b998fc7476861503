"""The user-level choice: how a model is distributed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from distir.errors import StrategyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Degrees of parallelism, microbatches and schedule.

    `devices = dp · tp · pp`. `microbatches` counts per data-parallel replica.
    """

    dp: int = 1
    """Data-parallel replicas."""
    tp: int = 1
    """Devices that share each layer."""
    pp: int = 1
    """Pipeline stages."""
    microbatches: int = 1
    """Pieces that each replica's share of the batch is cut into."""
    schedule: str = "1f1b"
    """Name of the pipeline schedule, or the path of a schedule file."""

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "microbatches"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise StrategyError(f"{name} is {value!r}; expected a whole number of at least 1")

    @property
    def devices(self) -> int:
        """Number of devices that the strategy occupies."""
        return self.dp * self.tp * self.pp

    @property
    def label(self) -> str:
        """A short readable name such as `dp2-tp8-pp1-m4-1f1b`."""
        return f"dp{self.dp}-tp{self.tp}-pp{self.pp}-m{self.microbatches}-{self.schedule}"

    def to_dict(self) -> dict[str, Any]:
        """The strategy as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Strategy:
        """The inverse of `to_dict`; unknown keys raise `StrategyError`."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise StrategyError(
                f"unknown strategy key {unknown[0]!r}; known are {', '.join(sorted(known))}"
            )
        return cls(**values)
