"""A workload as rules and search spaces see it, without a model."""

from __future__ import annotations

from dataclasses import dataclass

from distir.strategy import CP_EXCHANGES, Strategy


@dataclass(frozen=True)
class Facts:
    """Facts about a workload; `inner` are its `inner_axes`, and `uneven` an axis that no list
    divides."""

    batch_size: int = 256
    num_blocks: int = 12
    internal_axes: tuple[tuple[str, int], ...] = (("heads", 12), ("ffn", 3072))
    mode: str = "training"
    sequence_lengths: tuple[int, ...] = (1024,)
    expert_axes: tuple[tuple[str, int], ...] = ()
    cp_exchanges: tuple[str, ...] = CP_EXCHANGES
    inner: tuple[tuple[str, int], ...] = ()
    uneven: str = ""

    @property
    def num_layers(self) -> int:
        return max(1, self.num_blocks - 2)

    @property
    def inner_axes(self) -> dict[str, int]:
        return dict(self.inner)

    def explain_lists(self, strategy: Strategy) -> str | None:
        splits = bool(strategy.axes) or strategy.cp_exchange == "all-to-all"
        return f"{self.uneven} do not divide" if splits and self.uneven else None
