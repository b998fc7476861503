"""The user-level choice: how a model is distributed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from distir.errors import StrategyError, UnknownNameError

PLACEMENT = "tp-cp-ep-dp-pp"
"""The usual order: what talks most has the nearest neighbours (Narayanan et al. 2021)."""


KEEP_GATHERED = ("none", "parameters", "activations", "all")
"""What of the gathered is kept for the backward pass, the least first."""


def checked_placement(placement: object) -> str:
    """An order in which degrees are laid on the devices; raises `StrategyError` if it is none."""
    names = placement.lower().split("-") if isinstance(placement, str) else []
    if sorted(names) != sorted(PLACEMENT.split("-")):
        raise StrategyError(
            f"placement is {placement!r}; expected all of tp, cp, ep, dp and pp, innermost first, "
            f"such as {PLACEMENT}"
        )
    return "-".join(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Degrees of parallelism, microbatches, schedule and memory techniques.

    `devices = dp · tp · cp · pp`. `microbatches` counts per data-parallel replica.
    """

    dp: int = 1
    """Data-parallel replicas."""
    tp: int = 1
    """Devices that share each layer."""
    pp: int = 1
    """Pipeline ranks."""
    cp: int = 1
    """Devices that share each sequence."""
    ep: int = 1
    """Replicas that share the experts of a mixture; it divides `dp`."""
    microbatches: int = 1
    """Pieces that each replica's share of the batch is cut into."""
    schedule: str = "1f1b"
    """Name of the pipeline schedule, or the path of a schedule file."""
    chunks: int = 1
    """Stages per pipeline rank."""
    zero: int = 0
    """What is sharded over data parallelism at rest: 1 the optimizer's state, 2 gradients too,
    3 parameters too (Rajbhandari et al. 2020)."""
    recompute: str = "none"
    """What is computed again in the backward pass: none, selective or full."""
    recompute_every: int = 1
    """Every which block is recomputed so; the others keep everything."""
    keep_gathered: str = "none"
    """What is kept for the backward pass instead of gathered again: none, parameters (of ZeRO 3),
    activations (of sequence parallelism) or all."""
    sequence_parallel: bool = False
    """Whether the sequence rests on the tensor-parallel devices between their products."""
    placement: str = PLACEMENT
    """In which order degrees are laid on the devices, those of neighbours first."""

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep", "microbatches", "chunks", "recompute_every"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise StrategyError(f"{name} is {value!r}; expected a whole number of at least 1")
        if type(self.zero) is not int or self.zero not in (0, 1, 2, 3):
            raise StrategyError(f"zero is {self.zero!r}; expected 0, 1, 2 or 3")
        for name in ("schedule", "recompute"):
            if not isinstance(getattr(self, name), str):
                raise StrategyError(f"{name} is {getattr(self, name)!r}; expected a name")
        if self.sequence_parallel not in (False, True):
            raise StrategyError(
                f"sequence_parallel is {self.sequence_parallel!r}; expected true or false"
            )
        if self.keep_gathered not in KEEP_GATHERED:
            raise StrategyError(
                str(UnknownNameError("keep_gathered", str(self.keep_gathered), KEEP_GATHERED))
            )
        object.__setattr__(self, "placement", checked_placement(self.placement))

    @property
    def devices(self) -> int:
        """Number of devices that the strategy occupies."""
        return self.dp * self.tp * self.cp * self.pp

    @property
    def order(self) -> tuple[str, ...]:
        """The degrees above 1 in the order in which they are laid on the devices, innermost
        first."""
        return tuple(name for name in self.placement.split("-") if getattr(self, name, 1) > 1)

    @property
    def keeps_parameters(self) -> bool:
        """Whether gathered parameters are kept for the backward pass."""
        return self.keep_gathered in ("parameters", "all")

    @property
    def keeps_activations(self) -> bool:
        """Whether gathered activations are kept for the backward pass."""
        return self.keep_gathered in ("activations", "all")

    @property
    def stages(self) -> int:
        """Pipeline stages: ranks times chunks."""
        return self.pp * self.chunks

    @property
    def label(self) -> str:
        """A short readable name such as `dp2-tp8-pp1-m4-1f1b`; what is switched off is left
        out."""
        parts = [f"dp{self.dp}", f"tp{self.tp}", f"pp{self.pp}"]
        parts += [f"cp{self.cp}"] if self.cp > 1 else []
        parts += [f"ep{self.ep}"] if self.ep > 1 else []
        parts += [f"m{self.microbatches}", self.schedule]
        parts += [f"c{self.chunks}"] if self.chunks > 1 else []
        parts += [f"z{self.zero}"] if self.zero else []
        again = self.recompute + (f"/{self.recompute_every}" if self.recompute_every > 1 else "")
        parts += [again] if self.recompute != "none" else []
        parts += [f"keep:{self.keep_gathered}"] if self.keep_gathered != "none" else []
        parts += ["sp"] if self.sequence_parallel else []
        parts += [f"on:{','.join(self.order)}"] if self.placement != PLACEMENT else []
        return "-".join(parts)

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
