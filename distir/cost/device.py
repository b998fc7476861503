"""One accelerator, and the seconds it needs for a piece of work.

    compute = flops / (peak × efficiency)         memory = bytes / (bandwidth × efficiency)
    kernel  = soft maximum of compute and memory + ramp per kernel
    op      = soft maximum of kernel and host launch time

The ramp makes efficiency a smooth function of the size of an op, `size / (size + ramp × rate)`.
There is no table of efficiencies and no cliff: more work never takes less time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distir.cost.amounts import Amount, soft_maximum
from distir.cost.stack import SoftwareStack
from distir.cost.work import OpClass, Work
from distir.errors import ClusterError, shown
from distir.limits import LEAST_FRACTION, LEAST_RATE, MOST_BYTES, MOST_RATE, MOST_WATTS

__all__ = ["DTYPES", "PLATFORMS", "Device", "kernel_seconds", "op_seconds"]

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
"""Types for which a device may state a peak rate."""

PLATFORMS = ("cuda", "rocm", "xla")
"""Software by which programs reach a device: NVIDIA's, AMD's, or the compiler of TPUs."""

_RUNS_AS = {
    "fp8": ("fp8", "bf16", "fp16"),
    "bf16": ("bf16",),
    "fp16": ("fp16",),
    "tf32": ("tf32",),
    "fp64": ("fp64",),
}
"""By type, the types that can hold its values without loss of range, in order of preference;
`Device.runs_as` appends fp32 to all but those of fp64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Datasheet numbers of one accelerator. Raises `ClusterError` if a number is out of range."""

    name: str
    memory_bytes: float
    memory_bandwidth_bytes_per_second: float
    peak_flops_per_second: Mapping[str, float] = field(hash=False)
    """Dense peak rate by type (`DTYPES`). `fp32` is the rate of the vector units and required."""
    sustained_fraction: float = 1.0
    """Matrix rate that the device sustains under its power limit, as a fraction of its datasheet
    rate and relative to what an A100 sustains of its own."""
    portable_fraction: float = 1.0
    """Matrix rate of kernels that use Ampere's instructions (mma.sync), relative to kernels that
    use the device's own instructions."""
    rate_spread: float = 0.0
    """Uncertainty of `sustained_fraction`, as a relative standard deviation."""
    power_watts: float | None = None
    """Electrical power that one device may draw, without host, network and cooling; None where
    nobody states it."""
    platform: str | None = None
    """Which of `PLATFORMS` programs reach it by; None where nobody states it."""
    sources: Mapping[str, str] = field(
        default_factory=dict[str, str], repr=False, compare=False, hash=False
    )
    """By key of its file, where a value comes from, as far as that is stated."""

    def __post_init__(self) -> None:
        numbers = {
            "memory": (self.memory_bytes, 1.0, MOST_BYTES),
            "memory bandwidth": (self.memory_bandwidth_bytes_per_second, LEAST_RATE, MOST_RATE),
            "sustained fraction": (self.sustained_fraction, LEAST_FRACTION, 1 / LEAST_FRACTION),
            "portable fraction": (self.portable_fraction, LEAST_FRACTION, 1 / LEAST_FRACTION),
            **{
                f"peak {dtype}": (rate, LEAST_RATE, MOST_RATE)
                for dtype, rate in self.peak_flops_per_second.items()
            },
        }
        for name, (value, least, most) in numbers.items():
            if not least <= value <= most:
                raise ClusterError(
                    f"{name} of {self.name} is {value}; expected more than 0: at least "
                    f"{least:g}, at most {most:g}"
                )
        if not 0 <= self.rate_spread < 1:
            raise ClusterError(
                f"rate spread of {self.name} is {self.rate_spread}; expected at least 0, below 1"
            )
        if self.power_watts is not None and not 0 < self.power_watts <= MOST_WATTS:
            raise ClusterError(
                f"power of {self.name} is {self.power_watts} W; expected more than 0, at most "
                f"{MOST_WATTS:g}"
            )
        if self.platform not in (None, *PLATFORMS):
            raise ClusterError(
                f"platform of {self.name} is {shown(self.platform)}; expected one of "
                f"{', '.join(PLATFORMS)}"
            )
        if "fp32" not in self.peak_flops_per_second:
            raise ClusterError(f"{self.name} states no fp32 peak; expected at least that one")

    def supports(self, dtype: str) -> bool:
        """Whether the device states a peak rate for `dtype` itself."""
        return dtype in self.peak_flops_per_second

    @property
    def usual_precision(self) -> str:
        """bf16, or fp16 where the device has no bf16."""
        return "bf16" if self.supports("bf16") else "fp16"

    def peak(self, dtype: str) -> float:
        """Dense peak rate in FLOP per second of ops in `dtype`; raises `ClusterError` if there is
        none.

        A type that the device lacks runs as another (`runs_as`): a V100 has no bf16, and fp16 lacks
        its range, so products in bf16 run in fp32.
        """
        return self.peak_flops_per_second[self.runs_as(dtype)]

    def runs_as(self, dtype: str) -> str:
        """The type as which ops in `dtype` run on this device; `fp32` means the vector units.

        Raises `ClusterError` if the device states no rate for a type that could hold the values.
        """
        candidates = _RUNS_AS.get(dtype, ())
        if dtype != "fp64":
            candidates = (*candidates, "fp32")
        for candidate in candidates:
            if candidate in self.peak_flops_per_second:
                return candidate
        raise ClusterError(
            f"{self.name} states no {dtype} peak; it states {', '.join(self.peak_flops_per_second)}"
        )


def kernel_seconds(work: Work, device: Device, stack: SoftwareStack) -> Amount:
    """Seconds that the kernels of a work take on the device, without host launches."""
    compute = work.flops / _compute_rate(work, device, stack)
    memory = work.bytes / (device.memory_bandwidth_bytes_per_second * stack.memory_efficiency)
    busy = soft_maximum(stack.soft_maximum_order, compute, memory)
    return busy + work.kernels * stack.kernel_ramp_seconds


def op_seconds(work: Work, device: Device, stack: SoftwareStack) -> Amount:
    """Seconds of an op that runs by itself: the host's launches overlap with the device's
    kernels."""
    launch = work.kernels * stack.launch_seconds
    return soft_maximum(stack.host_order, kernel_seconds(work, device, stack), launch)


def _compute_rate(work: Work, device: Device, stack: SoftwareStack) -> float:
    """FLOP per second that a large work of this class and type reaches."""
    if work.kind is OpClass.MEMORY:
        return device.peak("fp32") * stack.vector_efficiency
    on_vector_units = device.runs_as(work.dtype) == "fp32"
    if work.kind is OpClass.ATTENTION:
        first = stack.attention_kernels == "first"
        efficiency = stack.first_attention_efficiency if first else stack.attention_efficiency
        native = stack.attention_kernels == "native"
        efficiency *= 1.0 if native else device.portable_fraction
    elif on_vector_units:
        efficiency = stack.vector_product_efficiency
    else:
        efficiency = stack.product_efficiency
    sustained = 1.0 if on_vector_units else device.sustained_fraction
    return device.peak(work.dtype) * sustained * efficiency
