"""From times of ops, steps and messages to the constants with which the cost model predicts them:
those with which it comes nearest to all of them."""

# pyright: basic
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.distributed.profiling import MessageSample, OpSample, Samples, StepSample
from distir.cost import Cluster, CostModel, Device, OpClass, SoftwareStack, load_stack
from distir.cost.cluster import ClusterLevel, Group
from distir.cost.products import MeasuredProduct, MeasuredProducts, ProductShape
from distir.cost.reader import toml_value

ROUNDS, FIRST_STEP, LAST_STEP = 200, 0.5, 0.002
"""Steps of the search, in logarithms of constants."""
LEAST_VECTOR = 0.01
LATENCY_SECONDS = 1e-7
"""Of a step of a collective, where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A machine as the simulator knows machines. `error` is the mean relative error of the samples
    that the constants were fitted to."""

    cluster: Cluster
    stack: SoftwareStack
    error: float


def fitted_profile(samples: Samples, name: str, memory_bytes: float, devices: int) -> Profile:
    """The device, cluster and stack with which the cost model comes nearest to the samples."""
    products = [each for each in samples.ops if each.work.kind is OpClass.PRODUCT]
    peak = max(float(each.work.flops) / each.seconds for each in products)
    device = Device(
        name=name,
        memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_second=max(float(s.work.bytes) / s.seconds for s in samples.ops),
        peak_flops_per_second={"fp32": peak, samples.dtype: peak},
    )
    stack = replace(
        load_stack("ideal"),
        name=name,
        dispatch="eager" if samples.runs_ahead else "blocking",
        fuses_elementwise=False,
        overlaps_gradients=False,
        overlaps_messages="never",
        scatters_messages=False,
        overlaps_activations=False,
        balances_context=False,
        allocator="static",
        kernel_ramp_seconds=0.0,
        context_bytes=0.0,
        communicator_bytes=0.0,
    )
    stack, error = _fit_ops(samples.ops, device, stack)
    stack = _fit_launches(samples.steps, stack)
    cluster, stack = _fit_messages(samples.messages, device, stack, name, devices)
    return Profile(cluster, stack, error)


def _fit_ops(
    ops: Sequence[OpSample], device: Device, stack: SoftwareStack
) -> tuple[SoftwareStack, float]:
    cluster = _cluster(device, "one", 1, 1e9)
    on_matrix_units = device.runs_as(ops[0].work.dtype) != "fp32"
    product = "product_efficiency" if on_matrix_units else "vector_product_efficiency"
    names = (product, "attention_efficiency", "vector_efficiency", "memory_efficiency")
    start = {
        **dict.fromkeys(names, 0.5),
        "vector_efficiency": LEAST_VECTOR,  # from below: above, it decides nothing
        "eager_launch_seconds": min(each.seconds for each in ops),
    }

    def with_constants(constants: Mapping[str, float]) -> SoftwareStack:
        limited = {
            name: value if name.endswith("seconds") else min(value, 1.0)
            for name, value in constants.items()
        }
        return replace(stack, **limited)

    def ratios(constants: Mapping[str, float]) -> list[float]:
        model = CostModel(cluster, with_constants(constants))
        return [float(model.op_seconds(each.work)) / each.seconds for each in ops]

    found = nearest(start, lambda constants: _off(ratios(constants)))
    return with_constants(found), float(np.mean([abs(r - 1) for r in ratios(found)]))


def _fit_launches(steps: Sequence[StepSample], stack: SoftwareStack) -> SoftwareStack:
    """A launch takes what steps with more kernels take longer, a view what steps with more views
    do, and the step itself the rest: the least squares of relative errors, none below zero."""
    from scipy.optimize import nnls  # pyright: ignore[reportMissingTypeStubs]

    parts = [[each.kernels, each.views, 1.0] for each in steps]
    relative = np.divide(parts, [[each.seconds] for each in steps])
    launch, view, rest = (float(each) for each in nnls(relative, np.ones(len(steps)))[0])
    return replace(
        stack,
        eager_launch_seconds=launch,
        eager_view_seconds=view,
        iteration_overhead_seconds=rest,
    )


def _fit_messages(
    messages: Sequence[MessageSample],
    device: Device,
    stack: SoftwareStack,
    name: str,
    devices: int,
) -> tuple[Cluster, SoftwareStack]:
    if not messages:
        return _cluster(device, name, devices, device.memory_bandwidth_bytes_per_second), stack
    start = {
        "collective_launch_seconds": 0.5 * min(each.seconds for each in messages),
        "latency": 0.5 * min(each.seconds for each in messages),
        "bandwidth": max(s.size_bytes / s.seconds for s in messages),
    }

    def applied(constants: Mapping[str, float]) -> CostModel:
        launch = constants["collective_launch_seconds"]
        return CostModel(
            _cluster(device, name, 2, constants["bandwidth"], constants["latency"]),
            replace(stack, collective_launch_seconds=launch),
        )

    def ratios(constants: Mapping[str, float]) -> list[float]:
        model, group = applied(constants), Group(2, (2,), (1,))
        return [
            float(model.collective_seconds(each.kind, each.size_bytes, group)) / each.seconds  # pyright: ignore[reportArgumentType]
            for each in messages
        ]

    model = applied(nearest(start, lambda constants: _off(ratios(constants))))
    return replace(model.cluster, num_devices=devices), model.stack


def _cluster(
    device: Device,
    name: str,
    devices: int,
    bandwidth: float,
    latency_seconds: float = LATENCY_SECONDS,
) -> Cluster:
    level = ClusterLevel(
        name="messages",
        size=None,
        bandwidth_bytes_per_second=bandwidth,
        latency_seconds=latency_seconds,
        medium="board",
    )
    return Cluster(name=name, device=device, levels=(level,), num_devices=devices)


def _off(ratios: Sequence[float]) -> float:
    """How far predictions are off: the mean distance of logarithms, so that a few samples that
    something disturbed do not decide."""
    return float(np.mean([abs(math.log(ratio)) for ratio in ratios]))


def nearest(
    start: Mapping[str, float], loss: Callable[[Mapping[str, float]], float]
) -> dict[str, float]:
    """The positive constants with the least loss, looked for one at a time, in ever smaller steps
    (Hooke and Jeeves 1961)."""
    best, least, step = dict(start), loss(start), FIRST_STEP
    for _ in range(ROUNDS):
        moved = False
        for name in start:
            for direction in (step, -step):
                other = {**best, name: best[name] * math.exp(direction)}
                found = loss(other)
                if found < least:
                    best, least, moved = other, found, True
                    break
        if not moved:
            step /= 2
            if step < LAST_STEP:
                break
    return best


# --- files ----------------------------------------------------------------------------------------


def measured_products(samples: Samples, profile: Profile, versions: str) -> MeasuredProducts:
    """A table of the products among the samples, launch not counted: where the host waits for every
    kernel, times have it. Products that take no longer than a launch tell nothing and are left out.
    """
    launch = 0.0 if samples.runs_ahead else profile.stack.eager_launch_seconds
    times: dict[ProductShape, list[float]] = {}
    for each in samples.ops:
        if each.product is not None and each.seconds > launch:
            times.setdefault(each.product, []).append(each.seconds - launch)
    points = tuple(
        MeasuredProduct(
            shape.dtype,
            int(shape.rows),
            int(shape.columns),
            int(shape.inner),
            int(shape.batch),
            float(np.median(seconds)),
        )
        for shape, seconds in times.items()
    )
    return MeasuredProducts(profile.cluster.device.name, versions, points)


def device_text(profile: Profile, source: str) -> str:
    """The device as TOML that `--device` reads."""
    device = profile.cluster.device
    lines = [
        f"name = {toml_value(device.name)}",
        f'memory = "{device.memory_bytes:.0f} B"',
        f'memory_bandwidth = "{device.memory_bandwidth_bytes_per_second / 1e9:.4g} GB/s"',
        "",
        "[peak]",
        *(f'{k} = "{v / 1e12:.4g} TFLOP/s"' for k, v in device.peak_flops_per_second.items()),
        "",
        "[sources]",
        *(f"{key} = {toml_value(source)}" for key in ("memory", "memory_bandwidth", "peak")),
    ]
    return "\n".join(lines) + "\n"


def cluster_text(profile: Profile, device_file: str, source: str) -> str:
    """The cluster as TOML that `--cluster` reads; its device is in a file beside it."""
    cluster, (level,) = profile.cluster, profile.cluster.levels
    lines = [
        f"name = {toml_value(cluster.name)}",
        f"summary = {toml_value(source)}",
        f"devices = {cluster.num_devices}",
        f"device = {toml_value(device_file)}",
        "",
        "[[levels]]",
        f"name = {toml_value(level.name)}",
        f'bandwidth = "{level.bandwidth_bytes_per_second / 1e9:.4g} GB/s"',
        f'latency = "{1e6 * level.latency_seconds:.4g} us"',
        f'medium = "{level.medium}"',
    ]
    return "\n".join(lines) + "\n"


_FACTS = (
    "dispatch", "fuses_elementwise", "attention", "attention_kernels", "overlaps_gradients",
    "overlaps_messages", "scatters_messages", "overlaps_activations", "collectives", "allocator",
    "spells_loss_out", "balances_context",
)  # fmt: skip
_FRACTIONS = (
    "product_efficiency", "vector_product_efficiency", "attention_efficiency", "vector_efficiency",
    "memory_efficiency", "board_link_efficiency", "soft_maximum_order",
)  # fmt: skip
_SECONDS = (
    "eager_launch_seconds", "eager_view_seconds", "collective_launch_seconds",
    "iteration_overhead_seconds", "kernel_ramp_seconds", "blocking_wait_seconds",
)  # fmt: skip


def stack_text(profile: Profile, source: str, products: str | None = None) -> str:
    """The software stack as TOML that `--stack` reads. `products` is the path of a file of measured
    products that belongs to it."""
    stack = profile.stack
    constants = [
        *((name, f"{getattr(stack, name):.4g}") for name in _FRACTIONS),
        *((n.removesuffix("_seconds"), f'"{1e6 * getattr(stack, n):.4g} us"') for n in _SECONDS),
        ("context", '"0 B"'),
        ("communicator", '"0 B"'),
    ]
    lines = [
        f"name = {toml_value(stack.name)}",
        f"summary = {toml_value(source)}",
        "",
        *(f"{fact} = {toml_value(getattr(stack, fact))}" for fact in _FACTS),
        *([] if products is None else [f"products = {toml_value(products)}"]),
        "",
        "[constants]",
        *(f"{key} = {value}" for key, value in constants),
        "",
        "[constants.sources]",
        *(f"{key} = {toml_value(source)}" for key, _ in constants),
    ]
    return "\n".join(lines) + "\n"


__all__ = ["Profile", "cluster_text", "device_text", "fitted_profile", "nearest", "stack_text"]
