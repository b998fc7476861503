"""The software stack as data: what it does, what of the hardware it reaches, what it adds.

A plan is costed on hardware × stack: the cluster says what the devices and links could do, the
profile what the frameworks and libraries make of it. What a stack does is stated stack by stack
(`stacks/`); how much that costs is fitted once and shared by all (`constants.toml`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from distir.errors import ClusterError

__all__ = ["Allocator", "Attention", "AttentionKernels", "CostProfile", "Dispatch", "Messages"]

Dispatch: TypeAlias = Literal["eager", "blocking", "compiled"]
"""Whether Python launches every kernel and runs ahead of the device, or waits for each of them to
end (CUDA_LAUNCH_BLOCKING=1), or compiled code or a graph launches them ahead."""
Messages: TypeAlias = Literal["never", "interleaved", "always"]
"""With which schedules a pipeline rank goes on while it sends: those in which a rank holds several
stages are interleaved."""
Attention: TypeAlias = Literal["fused", "eager"]
"""One kernel, or products and a softmax that write the scores to memory."""
AttentionKernels: TypeAlias = Literal["native", "portable", "first"]
"""Those of the device's own generation (cuDNN, FlashAttention-3), those of Ampere, which later
generations still have (FlashAttention-2), or the first that there were (FlashAttention, also as
written in Triton)."""
Allocator: TypeAlias = Literal["blocks", "segments", "static"]
"""PyTorch's cache of blocks, the same with segments that grow (expandable_segments), or a compiler
that knows all sizes beforehand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """A software stack: facts about it, and few, physically named constants. Efficiencies are in
    (0, 1]."""

    name: str
    summary: str = ""

    dispatch: Dispatch = "compiled"
    fuses_elementwise: bool = False
    """Whether chains of elementwise ops run as one kernel."""
    attention: Attention = "fused"
    """How attention runs in models that are described by their sizes; a file says itself."""
    attention_kernels: AttentionKernels = "native"
    """Which kernels fused attention has."""
    overlaps_gradients: bool = True
    """Whether gradients are settled while the rest of the last backward pass is computed."""
    overlaps_messages: Messages = "always"
    """When a pipeline rank goes on while what it made is on its way to the next."""
    overlaps_activations: bool = False
    """Whether gathers and scatters of activations are pipelined with the products beside them."""
    overlaps_exchanges: bool = False
    """Whether exchanges with experts run beside the computation of another microbatch."""
    sends_copies_once: bool = False
    """Whether exchanges with experts send a token to a node once, and copy it there."""
    allocator: Allocator = "blocks"
    """What hands out the device's memory."""
    spells_loss_out: bool = False
    """Whether the loss runs op by op on fp32 logits, instead of as one kernel."""
    loss_metrics: int = 0
    """Metrics of every training batch that are a loss of their own, computed from its logits."""
    balances_context: bool = True
    """Whether devices that share a sequence have a piece from either end of it each, so that causal
    attention is as much work for all; in order, the last of n has 2 - 1/n times the mean."""

    product_efficiency: float
    """Matrix products: fraction of the dense matrix peak."""
    vector_product_efficiency: float
    """Matrix products without matrix units: fraction of the fp32 vector peak."""
    attention_efficiency: float
    """Fused attention: fraction of the dense matrix peak."""
    first_attention_efficiency: float
    """The same of the first kernels that there were."""
    vector_efficiency: float
    """Other arithmetic: fraction of the fp32 vector peak."""
    memory_efficiency: float
    """Fraction of the memory bandwidth that large kernels reach."""
    board_link_efficiency: float
    """Fraction of the bandwidth of direct links between devices (NVLink, Infinity Fabric, PCIe)."""
    network_link_efficiency: float
    """Fraction of the bandwidth of network adapters."""

    soft_maximum_order: float
    """How well arithmetic and memory traffic of a kernel overlap; see `amounts.soft_maximum`."""
    launch_order: float
    """How well launches overlap with kernels where the host runs ahead, as such an order."""
    kernel_ramp_seconds: float
    """Filling and draining the device, per kernel: what makes a small kernel less efficient."""
    overlapped_fraction: float
    """Of gathers and scatters beside products, and of exchanges beside another microbatch, what a
    stack hides that pipelines them."""
    eager_launch_seconds: float
    """Time of the host per kernel that Python launches; it runs ahead of the device where it
    can."""
    compiled_launch_seconds: float
    """Time of the host per kernel that compiled code or a graph launches."""
    collective_launch_seconds: float
    """Fixed time of a collective or a send, before the first byte moves."""
    source_spread: float
    """Relative standard deviation of measured times between sources that are described alike."""
    repeat_spread: float
    """Relative standard deviation of measured times of one configuration."""
    iteration_overhead_seconds: float
    """Fixed time of a training step outside the model: data loading, scaling, logging."""

    @property
    def launch_seconds(self) -> float:
        """Time of the host per kernel launched."""
        if self.dispatch == "compiled":
            return self.compiled_launch_seconds
        return self.eager_launch_seconds

    @property
    def host_order(self) -> float:
        """How well launches overlap with kernels: not at all, where the host waits for every
        kernel."""
        return 1.0 if self.dispatch == "blocking" else self.launch_order

    def overhead_seconds(self, training: bool) -> float:
        """Fixed time of an iteration: inference has none."""
        return self.iteration_overhead_seconds if training else 0.0

    def goes_on(self, stages_per_rank: int) -> bool:
        """Whether ranks that hold so many stages compute while they send."""
        if self.overlaps_messages == "interleaved":
            return stages_per_rank > 1
        return self.overlaps_messages == "always"

    def __post_init__(self) -> None:
        for name in _EFFICIENCIES:
            if not 0 < getattr(self, name) <= 1:
                raise ClusterError(
                    f"{name} is {getattr(self, name)}; expected more than 0, at most 1"
                )
        for name in _FRACTIONS:
            if not 0 <= getattr(self, name) < 1:
                raise ClusterError(f"{name} is {getattr(self, name)}; expected at least 0, below 1")
        if self.loss_metrics < 0:
            raise ClusterError(f"loss_metrics is {self.loss_metrics}; expected at least 0")
        for name in _SECONDS:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ClusterError(f"{name} is {getattr(self, name)}; expected at least 0")
        for name in ("soft_maximum_order", "launch_order"):
            if not getattr(self, name) >= 1:
                raise ClusterError(
                    f"{name} is {getattr(self, name)}; expected at least 1 (the sum), or inf (the "
                    "maximum)"
                )


_EFFICIENCIES = (
    "product_efficiency",
    "vector_product_efficiency",
    "attention_efficiency",
    "first_attention_efficiency",
    "vector_efficiency",
    "memory_efficiency",
    "board_link_efficiency",
    "network_link_efficiency",
)
_FRACTIONS = ("overlapped_fraction", "source_spread", "repeat_spread")
_SECONDS = (
    "kernel_ramp_seconds",
    "eager_launch_seconds",
    "compiled_launch_seconds",
    "collective_launch_seconds",
    "iteration_overhead_seconds",
)
