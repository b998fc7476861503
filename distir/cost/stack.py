"""The software stack as data: what it does, which rates it reaches, what overhead it adds.

The cluster says what devices and links could do; the software stack says what frameworks and
libraries make of it. What a stack does is stated in its file (`stacks/`). What that costs is fitted
once and shared by all stacks (`constants.toml`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from distir.cost.amounts import Amount
from distir.cost.collectives import CollectiveLibrary
from distir.cost.products import MeasuredProducts
from distir.errors import ClusterError, shown
from distir.limits import LEAST_FRACTION, LONGEST_SECONDS, MOST_BYTES, MOST_LOSS_METRICS

__all__ = [
    "Allocator",
    "AttentionForm",
    "AttentionKernels",
    "KernelDispatch",
    "MessageOverlap",
    "Scaling",
    "SoftwareStack",
]

KernelDispatch: TypeAlias = Literal["eager", "blocking", "compiled"]
"""How kernels are launched.

- `eager`: Python launches every kernel and runs ahead of the device.
- `blocking`: Python waits for every kernel to end (CUDA_LAUNCH_BLOCKING=1).
- `compiled`: compiled code or a graph launches kernels ahead of the device.
"""
MessageOverlap: TypeAlias = Literal["never", "interleaved", "always"]
"""Schedules with which a pipeline rank computes while it sends: none, interleaved ones (a rank
holds several stages), or all."""
AttentionForm: TypeAlias = Literal["fused", "eager"]
"""Attention as one kernel (`fused`), or as products and a softmax that write the scores to memory
(`eager`)."""
AttentionKernels: TypeAlias = Literal["native", "portable", "first"]
"""The kernels of fused attention.

- `native`: written for the device's own generation (cuDNN, FlashAttention-3).
- `portable`: with Ampere's instructions, which later generations still have (FlashAttention-2).
- `first`: the first ones (FlashAttention, also as written in Triton).
"""
Scaling: TypeAlias = Literal["delayed", "current", "rows", "blocks"]
"""Where the scales of operands in fp8 come from.

- `delayed`: from the maxima of earlier steps, so that kernels write fp8 at once.
- `current`: from the operand's own maximum, which a pass over memory finds first.
- `rows`: from that of each row, or column in the other layout, so that layouts are cast apart.
- `blocks`: from that of each small block (MXFP8, blockwise), which the casting kernel holds.
"""
Allocator: TypeAlias = Literal["blocks", "segments", "static"]
"""What hands out device memory: PyTorch's cache of blocks, that cache with growing segments
(expandable_segments), or a compiler that knows all sizes beforehand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareStack:
    """A software stack: facts about it, and a few constants with a physical meaning.

    Efficiencies are in (0, 1], orders at least 1. Raises `ClusterError` if a constant is out of
    range.
    """

    name: str
    summary: str = ""

    dispatch: KernelDispatch = "compiled"
    fuses_elementwise: bool = False
    """Whether chains of elementwise ops run as one kernel."""
    attention: AttentionForm = "fused"
    """How attention runs in models that are described by their sizes; a model file spells its
    attention itself."""
    attention_kernels: AttentionKernels = "native"
    """Which kernels fused attention runs."""
    overlaps_gradients: bool = True
    """Whether gradients are settled while the rest of the last backward pass is computed."""
    overlaps_messages: MessageOverlap = "always"
    """With which schedules a pipeline rank computes while it sends its results to the next rank."""
    scatters_messages: bool = True
    """Whether a value that several devices of a pipeline stage hold is sent to the next stage in
    parts, one by each of them, and gathered on arrival, where that is faster. Otherwise each of
    them sends all of it."""
    overlaps_activations: bool = False
    """Whether gathers and scatters of activations are pipelined with the products beside them,
    which are done in pieces (asynchronous tensor parallelism)."""
    overlaps_exchanges: bool = False
    """Whether exchanges with experts run beside the computation of another microbatch, which hides
    a fixed fraction of them. With schedules that have overlapped pairs this is not looked at: what
    these hide follows from what they do."""
    sends_copies_once: bool = False
    """Whether exchanges with experts send a token to a node once and copy it there."""
    sorts_tokens: bool = False
    """Whether a pass over memory sorts tokens by expert after an exchange, and another one sorts
    results by device before the exchange back, where a device has several experts. Exchanges that
    send a token once deliver it in the order of experts, and need none."""
    sends_narrow_tokens: bool = False
    """Whether tokens go to experts in the narrower type of products (fp8). Otherwise they are cast
    where they arrive."""
    pads_experts: bool = False
    """Whether the rows of each expert are copied to places that products in a narrower type need,
    and results copied back."""
    collectives: CollectiveLibrary = "rings"
    """Which algorithms the collective library gathers and reduces with."""
    allocator: Allocator = "blocks"
    """What hands out device memory."""
    spells_loss_out: bool = False
    """Whether the loss runs op by op on fp32 logits, instead of as one kernel."""
    fp8_scaling: Scaling = "delayed"
    """Where the scales of operands in fp8 come from."""
    spells_norms_out: bool = False
    """Whether root-mean-square norms run op by op on fp32 copies, instead of as one kernel."""
    routing_kernels: int = 0
    """Kernels that are launched to choose experts and to move tokens there and back, in every pass
    of a layer with experts, beside those that the program spells out."""
    groups_experts: bool = True
    """Whether the products of a device's experts are launched as one."""
    loss_copies: int = 0
    """How many copies of the logits in fp32 the loss holds while its gradient is computed."""
    loss_metrics: int = 0
    """How many metrics of every training batch are losses that are computed from its logits again,
    to log them."""
    balances_context: bool = True
    """Whether each of the devices that share a sequence has a piece from either end of it, so that
    causal attention is equal work for all. If they have pieces in order, the last of n devices has
    2 - 1/n times the mean work."""
    claims_memory: bool = True
    """Whether simulated memory is claimed to be near what is measured. Where it is not, `sources`
    say why, and reports repeat it (`unclaimed_memory`)."""
    products: MeasuredProducts | None = field(default=None, repr=False)
    """Measured seconds of matrix products, which take the place of rates where they hold."""

    product_efficiency: float
    """Matrix products: fraction of the dense matrix peak."""
    vector_product_efficiency: float
    """Matrix products without matrix units: fraction of the fp32 vector peak."""
    attention_efficiency: float
    """Fused attention: fraction of the dense matrix peak."""
    first_attention_efficiency: float
    """Fused attention with the first kernels: fraction of the dense matrix peak."""
    vector_efficiency: float
    """Other arithmetic: fraction of the fp32 vector peak."""
    memory_efficiency: float
    """Fraction of the memory bandwidth that large kernels reach."""
    board_link_efficiency: float
    """Fraction of the bandwidth of direct links between devices (NVLink, Infinity Fabric, PCIe)."""
    network_link_efficiency: float
    """Fraction of the bandwidth of network adapters."""

    soft_maximum_order: float
    """How well arithmetic and memory traffic of a kernel overlap: the order of
    `amounts.soft_maximum`."""
    launch_order: float
    """How well launches overlap with kernels where the host runs ahead: the order of
    `amounts.soft_maximum`."""
    blocking_wait_seconds: float
    """What the host takes to learn that a kernel has ended, where it waits for each."""
    kernel_ramp_seconds: float
    """Time to fill and drain the device, per kernel; it makes small kernels less efficient."""
    overlapped_fraction: float
    """Fraction of exchanges with experts that a stack hides which overlaps them with another
    microbatch."""
    eager_launch_seconds: float
    """Host time per kernel that Python launches."""
    eager_view_seconds: float
    """Host time per op that launches no kernel (a view or a reshape), where Python runs ops."""
    compiled_launch_seconds: float
    """Host time per kernel that compiled code or a graph launches."""
    collective_launch_seconds: float
    """Fixed time of a collective or a message, before the first byte moves."""
    source_spread: float
    """Root mean square of the mean errors of sources, relative: all plans on a system share it."""
    mixture_spread: float
    """What comes on top of `source_spread` where the model is a mixture of experts."""
    software_spread: float
    """What comes on top of `source_spread` where nobody says which software measured a time."""
    dispatcher_spread: float
    """What comes on top of `mixture_spread` where nobody says how tokens are sent to experts."""
    layout_spread: float
    """Root mean square of errors between layouts of one problem on one system, relative."""
    repeat_spread: float
    """Root mean square of errors between plans that differ in schedule and microbatches alone,
    relative."""
    known_devices: float
    """Devices of the largest measured run that constants and bands are told by."""
    known_nodes: float
    """Innermost groups of devices (nodes) of that with most."""
    known_parameters: float
    """Parameters of the largest model of these runs."""
    known_sequence: float
    """Tokens of the longest sequence of these runs."""
    devices_spread: float
    """What comes on top of `source_spread` per doubling of devices beyond `known_devices`: so much
    times the square root of doublings."""
    nodes_spread: float
    """As `devices_spread`, of nodes beyond `known_nodes`."""
    parameters_spread: float
    """As `devices_spread`, of parameters beyond `known_parameters`."""
    sequence_spread: float
    """As `devices_spread`, of tokens per sequence beyond `known_sequence`."""
    band_width: float
    """Two runs in three lie within this many root mean squares of their prediction."""
    band95_width: float
    """Nineteen runs in twenty lie within this many root mean squares of their prediction."""
    iteration_overhead_seconds: float
    """Fixed time of a training step outside the model: data loading, scaling, logging."""
    block_gaps: float
    """Memory that an allocator of blocks takes and no tensor fills, as a fraction of what tensors
    hold, where memory is short."""
    context_bytes: float
    """Memory that the device's context and its libraries take, before the first tensor."""
    communicator_bytes: float
    """Buffers of the communication library, for every kind of parallelism whose groups a device
    communicates in."""

    sources: Mapping[str, str] = field(
        default_factory=dict[str, str], repr=False, compare=False, hash=False
    )
    """By key of its file, where a value comes from, as far as that is stated."""

    @property
    def unclaimed_memory(self) -> str:
        """That simulated memory is not claimed to be near what is measured, and why; empty where it
        is."""
        if self.claims_memory:
            return ""
        why = self.sources.get("claims_memory", "")
        return f"memory with {self.name} is not claimed{why and ': '}{why}"

    @property
    def launch_seconds(self) -> float:
        """Host time per kernel launch, with the wait for its end where the host waits for each."""
        if self.dispatch == "compiled":
            return self.compiled_launch_seconds
        if self.dispatch == "blocking":
            return self.eager_launch_seconds + self.blocking_wait_seconds
        return self.eager_launch_seconds

    @property
    def view_seconds(self) -> float:
        """Host time per op that launches no kernel: none in compiled code or a graph."""
        return 0.0 if self.dispatch == "compiled" else self.eager_view_seconds

    @property
    def host_order(self) -> float:
        """How well launches overlap with kernels: the order of `amounts.soft_maximum`, 1 (no
        overlap) if the host waits for every kernel."""
        return 1.0 if self.dispatch == "blocking" else self.launch_order

    def reserve_bytes(self, tensor_bytes: Amount, communicators: Amount) -> Amount:
        """Memory of a device that no tensor can have while tensors hold `tensor_bytes`: gaps that
        the allocator leaves, the context, and the buffers of communicators, given their number."""
        gaps = self.block_gaps if self.allocator == "blocks" else 0.0
        return tensor_bytes * gaps + self.context_bytes + communicators * self.communicator_bytes

    def overhead_seconds(self, training: bool) -> float:
        """Fixed time of an iteration outside the model: 0 for inference."""
        return self.iteration_overhead_seconds if training else 0.0

    def goes_on(self, stages_per_rank: int) -> bool:
        """Whether ranks that hold `stages_per_rank` stages compute while they send."""
        if self.overlaps_messages == "interleaved":
            return stages_per_rank > 1
        return self.overlaps_messages == "always"

    def __post_init__(self) -> None:
        for name in _EFFICIENCIES:
            if not LEAST_FRACTION <= getattr(self, name) <= 1:
                raise ClusterError(
                    f"{name} is {getattr(self, name)}; expected more than 0, at most 1 (at least "
                    f"{LEAST_FRACTION:g})"
                )
        for name in _FRACTIONS:
            if not 0 <= getattr(self, name) < 1:
                raise ClusterError(f"{name} is {getattr(self, name)}; expected at least 0, below 1")
        for name in _SPREADS:
            if not 0 <= getattr(self, name) <= MOST_SPREAD:
                raise ClusterError(
                    f"{name} is {getattr(self, name)}; expected at least 0, at most {MOST_SPREAD}"
                )
        for name in ("loss_metrics", "loss_copies", "routing_kernels"):
            if not 0 <= getattr(self, name) <= MOST_LOSS_METRICS:
                raise ClusterError(
                    f"{name} is {shown(getattr(self, name))}; expected at least 0, at most "
                    f"{MOST_LOSS_METRICS}"
                )
        for name in _SIZES:
            if not getattr(self, name) >= 1:
                raise ClusterError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in _SECONDS:
            if not 0 <= getattr(self, name) <= LONGEST_SECONDS:
                raise ClusterError(
                    f"{name} is {getattr(self, name)}; expected at least 0, at most a century"
                )
        for name in _BYTES:
            if not 0 <= getattr(self, name) <= MOST_BYTES:
                raise ClusterError(
                    f"{name} is {getattr(self, name)}; expected at least 0, at most an exabyte"
                )
        if not 0 < self.band_width <= self.band95_width <= MOST_BAND_WIDTH:
            raise ClusterError(
                f"band_width is {self.band_width} and band95_width {self.band95_width}; expected "
                f"more than 0, the second at least the first, at most {MOST_BAND_WIDTH}"
            )
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
_FRACTIONS = (
    "overlapped_fraction",
    "block_gaps",
)
_SPREADS = (
    "source_spread",
    "mixture_spread",
    "software_spread",
    "dispatcher_spread",
    "layout_spread",
    "repeat_spread",
    "devices_spread",
    "nodes_spread",
    "parameters_spread",
    "sequence_spread",
)
_SIZES = ("known_devices", "known_nodes", "known_parameters", "known_sequence")
MOST_SPREAD = 10
"""A relative deviation above which a number is a mistake: times that say nothing."""
MOST_BAND_WIDTH = 10
"""Root mean squares of a band: no distribution has more than a hundredth of itself beyond."""
_BYTES = ("context_bytes", "communicator_bytes")
_SECONDS = (
    "blocking_wait_seconds",
    "kernel_ramp_seconds",
    "eager_launch_seconds",
    "eager_view_seconds",
    "compiled_launch_seconds",
    "collective_launch_seconds",
    "iteration_overhead_seconds",
)
