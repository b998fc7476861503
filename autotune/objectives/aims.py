"""What a search makes large or small: one metric, or several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.objectives.costs import settled
from autotune.objectives.evaluation import finite
from distir.errors import DistirError
from distir.metrics import find_metric

DIRECTIONS = ("maximize", "minimize")


@dataclass(frozen=True, slots=True)
class Aim:
    """One metric, and its direction."""

    metric: str
    direction: str = ""
    """Empty: that of the simulated metric of this name, else `minimize`."""

    @property
    def maximize(self) -> bool:
        """Whether larger is better."""
        return (self.direction or default_direction(self.metric)) == "maximize"

    def cost(self, metrics: Mapping[str, float]) -> float | None:
        """The metric with its sign chosen so that smaller is better; None where there is none."""
        value = metrics.get(self.metric)
        if value is None or not finite(value):
            return None
        return settled(-value if self.maximize else value)


def default_direction(metric: str) -> str:
    """The direction of the simulated metric of this name, else `minimize`."""
    known = find_metric(metric)
    return known.direction if known is not None else "minimize"


def aims_in(stated: str | Sequence[str]) -> tuple[Aim, ...]:
    """Aims by names as they are typed: `throughput,memory`, or `accuracy=maximize` where the usual
    direction is not meant. Raises `DistirError`."""
    each = stated.split(",") if isinstance(stated, str) else stated
    aims = tuple(_aim(name.strip()) for name in each if name.strip())
    if not aims:
        raise DistirError(
            f"the objectives are {stated!r}; expected metrics such as throughput,memory"
        )
    return each_once(aims)


def each_once(aims: Sequence[Aim]) -> tuple[Aim, ...]:
    """The aims. Raises `DistirError` if two of them are one metric."""
    names = [aim.metric for aim in aims]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DistirError(f"the objectives are {', '.join(names)}, which has {twice} twice")
    return tuple(aims)


def _aim(text: str) -> Aim:
    name, equals, direction = text.partition("=")
    if not name or (equals and direction not in DIRECTIONS):
        raise DistirError(
            f"the objective {text!r} is neither a metric nor METRIC=maximize or METRIC=minimize"
        )
    return Aim(name, direction)
