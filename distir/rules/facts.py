"""What rules and search spaces need to know about a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from distir.strategy import Strategy


class WorkloadFacts(Protocol):
    """Facts about a workload; `distir.Workload` provides them."""

    @property
    def mode(self) -> str:
        """`training` or `inference`."""
        ...

    @property
    def batch_size(self) -> int:
        """Samples per step, over all devices."""
        ...

    @property
    def sequence_lengths(self) -> Sequence[int]:
        """Sizes of the axes that run along a sequence; none where there is nothing to split."""
        ...

    @property
    def num_blocks(self) -> int:
        """The most stages that the model can be cut into."""
        ...

    @property
    def num_layers(self) -> int:
        """Blocks that repeat, which pipelines like to share evenly."""
        ...

    @property
    def internal_axes(self) -> Sequence[tuple[str, int]]:
        """Label and size of every axis that tensor parallelism must divide."""
        ...

    @property
    def inner_axes(self) -> Mapping[str, int]:
        """By label of an internal axis: size of the axis inside it that tensor parallelism can
        split too."""
        ...

    @property
    def expert_axes(self) -> Sequence[tuple[str, int]]:
        """Label and size of every axis of experts; none where the model is no mixture."""
        ...

    @property
    def cp_exchanges(self) -> Sequence[str]:
        """Ways in which context parallelism can bring this model's keys and values together."""
        ...

    def explain_lists(self, strategy: Strategy) -> str | None:
        """Why the axis lists of a strategy name no axes of the model, or do not divide them; or
        `None`."""
        ...


__all__ = ["WorkloadFacts"]
