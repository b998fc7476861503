"""One accelerator, and the seconds it needs for a piece of work.

    compute = flops / (peak × efficiency)         memory = bytes / (bandwidth × efficiency)
    kernel  = soft maximum of compute and memory + ramp per kernel
    op      = soft maximum of kernel and host launch time

The ramp makes efficiency a smooth function of op size, `size / (size + ramp × rate)`, without a
table and without a cliff: more work never takes less time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distir.cost.amounts import Amount, soft_maximum
from distir.cost.profile import CostProfile
from distir.cost.work import OpClass, Work
from distir.errors import ClusterError

__all__ = ["DTYPES", "Device", "kernel_seconds", "op_seconds"]

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
"""Types that a device description may state a peak rate for."""

_RUNS_AS = {
    "fp8": ("fp8", "bf16", "fp16"),
    "bf16": ("bf16",),
    "fp16": ("fp16",),
    "tf32": ("tf32",),
    "fp64": ("fp64",),
}
"""Types that can hold a type's values without loss of range; fp32 comes last for all but fp64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Datasheet numbers of one accelerator."""

    name: str
    memory_bytes: float
    memory_bandwidth_bytes_per_second: float
    peak_flops_per_second: Mapping[str, float] = field(hash=False)
    """Dense peak by type name (`DTYPES`); `fp32` is the vector rate and must be there."""
    sustained_fraction: float = 1.0
    """Matrix rate held under the power limit, relative to datasheet and to an A100."""
    portable_fraction: float = 1.0
    """Matrix rate of kernels that use Ampere's instructions (mma.sync), relative to that of the
    device's own."""
    rate_spread: float = 0.0
    """Relative standard deviation of what `sustained_fraction` is believed to be."""

    def __post_init__(self) -> None:
        numbers = {
            "memory": self.memory_bytes,
            "memory bandwidth": self.memory_bandwidth_bytes_per_second,
            "sustained fraction": self.sustained_fraction,
            "portable fraction": self.portable_fraction,
            **{f"peak {dtype}": rate for dtype, rate in self.peak_flops_per_second.items()},
        }
        for name, value in numbers.items():
            if not 0 < value < float("inf"):
                raise ClusterError(f"{name} of {self.name} is {value}; expected more than 0")
        if not 0 <= self.rate_spread < 1:
            raise ClusterError(
                f"rate spread of {self.name} is {self.rate_spread}; expected at least 0, below 1"
            )
        if "fp32" not in self.peak_flops_per_second:
            raise ClusterError(f"{self.name} states no fp32 peak; expected at least that one")

    def supports(self, dtype: str) -> bool:
        """Whether the device states a rate for `dtype` itself."""
        return dtype in self.peak_flops_per_second

    def peak(self, dtype: str) -> float:
        """Dense peak, FLOP per second, in `dtype` or the fastest stated type that can stand in.

        A V100 has no bf16: fp16 lacks its range, so its products run in fp32.
        """
        return self.peak_flops_per_second[self.runs_as(dtype)]

    def runs_as(self, dtype: str) -> str:
        """The type whose peak counts for `dtype`; `fp32` means vector units."""
        candidates = _RUNS_AS.get(dtype, ())
        if dtype != "fp64":
            candidates = (*candidates, "fp32")
        for candidate in candidates:
            if candidate in self.peak_flops_per_second:
                return candidate
        raise ClusterError(
            f"{self.name} states no {dtype} peak; known are {', '.join(self.peak_flops_per_second)}"
        )


def kernel_seconds(work: Work, device: Device, profile: CostProfile) -> Amount:
    """Time on the device, host launches aside."""
    compute = work.flops / _compute_rate(work, device, profile)
    memory = work.bytes / (device.memory_bandwidth_bytes_per_second * profile.memory_efficiency)
    busy = soft_maximum(profile.soft_maximum_order, compute, memory)
    return busy + work.kernels * profile.kernel_ramp_seconds


def op_seconds(work: Work, device: Device, profile: CostProfile) -> Amount:
    """Time of an op on its own: device and host overlap where the host runs ahead."""
    launch = work.kernels * profile.launch_seconds
    return soft_maximum(profile.host_order, kernel_seconds(work, device, profile), launch)


def _compute_rate(work: Work, device: Device, profile: CostProfile) -> float:
    """FLOP per second that work of this kind and type reaches when large."""
    if work.kind is OpClass.MEMORY:
        return device.peak("fp32") * profile.vector_efficiency
    on_vector_units = device.runs_as(work.dtype) == "fp32"
    if work.kind is OpClass.ATTENTION:
        first = profile.attention_kernels == "first"
        efficiency = profile.first_attention_efficiency if first else profile.attention_efficiency
        native = profile.attention_kernels == "native"
        efficiency *= 1.0 if native else device.portable_fraction
    elif on_vector_units:
        efficiency = profile.vector_product_efficiency
    else:
        efficiency = profile.product_efficiency
    sustained = 1.0 if on_vector_units else device.sustained_fraction
    return device.peak(work.dtype) * sustained * efficiency
