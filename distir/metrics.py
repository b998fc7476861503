"""Metrics: numbers that judge a whole strategy. Each is one entry, which everything else reads:
reads: results and tables of simulations, reports, objectives, trackers and files.

An entry is a formula over an `Iteration`, in which every amount is a number, or an array with one
number per strategy: NumPy's operators serve both. The formula's name is the metric's, its
docstring says what is measured:

    from distir.metrics import Iteration, metric

    @metric("$/M samples", unit="{:,.2f} $".format)
    def dollars_per_million_samples(iteration: Iteration):
        \"\"\"Dollars per million samples, at 2 dollars per device and hour.\"\"\"
        return 1e6 * iteration.devices * 2.0 / 3600 / iteration.samples_per_second

A package that has such a module names the metric in the entry-point group `distir.metrics`:

    [project.entry-points."distir.metrics"]
    dollars_per_million_samples = "my_package:dollars_per_million_samples"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from distir.errors import DistirError, shown
from distir.limits import LONGEST_SECONDS, MOST_BYTES, SHORTEST_SECONDS
from distir.registry import Registry
from distir.units import Unit, percent, short_days, short_number, unit_of
from distir.user_code import run_user_code

if TYPE_CHECKING:
    from distir.cost import CostModel
    from distir.cost.amounts import Amount
    from distir.workload import Workload

__all__ = [
    "METRICS",
    "Formula",
    "Iteration",
    "Metric",
    "Need",
    "find_metric",
    "measured",
    "memory_use",
    "metric",
    "missing_needs",
]


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """What is known of an iteration, of one strategy or of many: amounts are numbers, or arrays
    with one number per strategy."""

    workload: Workload
    cost: CostModel
    devices: Amount
    seconds: Amount
    """From its begin to its end, on the rank that takes longest."""
    bubble_seconds: Amount
    """Of these, waiting for other ranks; mean over the ranks."""
    communication_seconds: Amount
    """Of these, waiting for data on its way; mean over the ranks."""
    peak_memory_bytes: Amount
    """Of the fullest device."""
    padding_fraction: Amount
    """FLOPs of products on padding, as a fraction of the model's."""
    communicators: Amount
    """Kinds of parallelism whose devices communicate."""
    host_bytes: Amount = 0.0
    """In the memory of the host, per device; the most of all ranks."""

    @cached_property
    def samples_per_second(self) -> Amount:
        """Over all devices."""
        return self.workload.batch_size / self.seconds

    @cached_property
    def tokens_per_second(self) -> Amount:
        """Over all devices; of models without a sequence, samples."""
        return self.samples_per_second * self.workload.tokens_per_sample

    @cached_property
    def device_hours_per_token(self) -> Amount:
        """Hours that devices take for a token, added up over the devices."""
        return self.devices / 3600.0 / self.tokens_per_second

    @cached_property
    def joules_per_token(self) -> Amount:
        """Energy that devices take for a token where they draw all the power that they may."""
        power = self.cost.cluster.device.power_watts
        assert power is not None  # what needs it says so
        return 3600.0 * self.device_hours_per_token * power

    @property
    def tokens(self) -> float:
        """Tokens of the whole job."""
        job = self.cost.job
        assert job is not None  # what needs them says so
        assert job.tokens is not None
        return job.tokens

    @property
    def price(self) -> float:
        """Dollars per device and hour."""
        job = self.cost.job
        assert job is not None  # what needs it says so
        assert job.price is not None
        return job.price

    @cached_property
    def model_flops_per_second(self) -> Amount:
        """Per device, of the model's own products."""
        return self.workload.model_flops / self.seconds / self.devices


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a metric follows from and that not everybody states."""

    name: str
    """What it is, and how it is stated."""
    known: Callable[[CostModel], bool]


PRICE = Need(
    "a price of devices (--price DOLLARS_PER_DEVICE_HOUR)",
    lambda cost: cost.job is not None and cost.job.price is not None,
)
TOKENS = Need(
    "a number of tokens to train on (--tokens N)",
    lambda cost: cost.job is not None and cost.job.tokens is not None,
)
POWER = Need(
    "a device that states its power (the key `power` of its file)",
    lambda cost: cost.job is not None and cost.cluster.device.power_watts is not None,
)


Formula: TypeAlias = "Callable[[Iteration], Amount]"


@dataclass(frozen=True, slots=True)
class Metric:
    """Something that is measured of every strategy."""

    name: str
    heading: str
    """The head of its column in tables for people."""
    unit: Unit
    """Writes a value for people."""
    larger_is_better: bool
    doc: str
    """What is measured, in one line."""
    formula: Formula
    timed: bool
    """Whether it is an iteration's time, or so much work over it: then the time alone decides which
    of two strategies of a problem is better, and how much."""
    objective: str
    """What it is called as an objective."""
    needs: Sequence[Need] = ()
    """What must be known for it to be measured."""

    @property
    def direction(self) -> str:
        """`maximize` or `minimize`."""
        return "maximize" if self.larger_is_better else "minimize"


METRICS: Registry[Metric] = Registry("metric", group="distir.metrics")
"""All metrics, those of other packages behind those of distir."""

_OBJECTIVES: Registry[Metric] = Registry("objective")
"""Metrics by what they are called as objectives."""


def metric(
    heading: str,
    *,
    unit: Unit | None = None,
    larger_is_better: bool = False,
    timed: bool = False,
    objective: str = "",
    needs: Sequence[Need] = (),
) -> Callable[[Formula], Metric]:
    """Registers a formula as a metric under its own name; see `Metric` for what is stated of it.

    The unit is by default the one that the name ends in (`distir.units.unit_of`), and the name as
    an objective is its own.
    """

    def register(formula: Formula) -> Metric:
        name = getattr(formula, "__name__", type(formula).__name__)
        doc = " ".join((formula.__doc__ or heading).strip().split("\n\n")[0].split())
        made = Metric(
            name=name,
            heading=heading,
            unit=unit or unit_of(name),
            larger_is_better=larger_is_better,
            doc=doc,
            formula=formula,
            timed=timed,
            objective=objective or name,
            needs=needs,
        )
        _OBJECTIVES.add(made.objective, made)
        return METRICS.add(name, made, doc)

    return register


def find_metric(name: str) -> Metric | None:
    """The metric of this name, or the one that is called so as an objective; None if there is
    none."""
    for names in (METRICS, _OBJECTIVES):
        if name in names:
            return names.get(name)
    return None


def missing_needs(metric: Metric, cost: CostModel) -> list[str]:
    """What would have to be known for a metric to be measured."""
    return [need.name for need in metric.needs if not need.known(cost)]


def beyond_reason(iteration: Iteration) -> Any:
    """Whether what is known of an iteration can be no machine's: of many, one answer per strategy.

    The cause is a size or a rate of the input. NaN is beyond reason, too.
    """
    import numpy as np

    within = (iteration.seconds >= SHORTEST_SECONDS) & (iteration.seconds <= LONGEST_SECONDS)
    for part in (iteration.bubble_seconds, iteration.communication_seconds):
        within = within & (part <= LONGEST_SECONDS)
    return np.logical_not(within & (iteration.peak_memory_bytes <= MOST_BYTES))


def reason_beyond(iteration: Iteration, at: int = 0) -> str:
    """What is wrong with an iteration that is `beyond_reason`; `at` is its number among many."""
    import numpy as np

    seconds, held = (
        np.ravel(np.asarray(each, np.float64))
        for each in (iteration.seconds, iteration.peak_memory_bytes)
    )
    return (
        f"an iteration would take {seconds[at]:.4g} s and hold {held[at]:.4g} bytes on a device; "
        "expected more than no time, and at most a century and an exabyte: look for a mistake in "
        "the sizes of the model, in the batch or in the rates of the cluster"
    )


def measured(iteration: Iteration) -> dict[str, Any]:
    """Every metric of an iteration that can be known, by name. Raises `DistirError`, naming the
    metric, where the formula of another package fails or gives no numbers."""
    found = {
        each.name: run_user_code(
            f"metric {each.name}",
            lambda formula=each.value.formula: formula(iteration),
            DistirError,
        )
        for each in METRICS
        if not missing_needs(each.value, iteration.cost)
    }
    for name, value in found.items():
        _check_numbers(name, value, iteration)
    return found


def _check_numbers(name: str, found: object, iteration: Iteration) -> None:
    """Raises `DistirError` if what a metric gives is neither a number nor has one for each
    strategy."""
    if type(found) in (float, int):
        return
    import numpy as np

    array, strategies = np.asarray(found), np.shape(iteration.seconds)
    if array.dtype.kind in "biuf" and array.shape in ((), strategies):
        return
    given = f"numbers of shape {array.shape}" if array.dtype.kind in "biuf" else shown(found)
    of_each = f", or an array of shape {strategies} with one of each strategy" if strategies else ""
    raise DistirError(f"metric {name} gives {given}; expected a number{of_each}")


def memory_use(metrics: Mapping[str, float], limit_bytes: float) -> dict[str, float]:
    """Bytes of the fullest device that tensors hold, that the software reserves, and that there
    are, as plain JSON values."""
    return {
        "tensors_bytes": metrics.get(peak_memory_bytes.name, 0.0),
        "reserve_bytes": metrics.get(reserved_memory_bytes.name, 0.0),
        "limit_bytes": limit_bytes,
    }


# --- the metrics of distir ------------------------------------------------------------------------


@metric("iteration", timed=True, objective="latency")
def iteration_seconds(iteration: Iteration) -> Amount:
    """Seconds of an iteration."""
    return iteration.seconds


@metric("samples/s", larger_is_better=True, timed=True, objective="throughput")
def throughput_samples_per_second(iteration: Iteration) -> Amount:
    """Samples per second, over all devices."""
    return iteration.samples_per_second


@metric("tokens/s/device", larger_is_better=True, timed=True)
def tokens_per_second_per_device(iteration: Iteration) -> Amount:
    """Tokens per second and device."""
    return iteration.samples_per_second * iteration.workload.tokens_per_sample / iteration.devices


@metric("TFLOP/s/device", larger_is_better=True, timed=True)
def model_tflops_per_device(iteration: Iteration) -> Amount:
    """TFLOP per second and device, of the model's own products."""
    return iteration.model_flops_per_second / 1e12


@metric("MFU", unit=percent, larger_is_better=True, timed=True)
def mfu(iteration: Iteration) -> Amount:
    """FLOPs of the model's own products, as a fraction of what the devices could do.

    Model FLOPs utilization, as Chowdhery et al. (2022, appendix B) define it.
    """
    types, device = iteration.workload.types, iteration.cost.cluster.device
    peak = device.peak(types.narrower(device.supports) or types.compute.short_name)
    return iteration.model_flops_per_second / peak


@metric("memory", objective="memory")
def peak_memory_bytes(iteration: Iteration) -> Amount:
    """Peak memory of the fullest device, in tensors."""
    return iteration.peak_memory_bytes


@metric("reserve")
def reserved_memory_bytes(iteration: Iteration) -> Amount:
    """Memory of the fullest device that no tensor can use: context, communicators, gaps."""
    stack = iteration.cost.stack
    return stack.reserve_bytes(iteration.peak_memory_bytes, iteration.communicators)


@metric("bubble")
def bubble_fraction(iteration: Iteration) -> Amount:
    """Share of the iteration in which ranks wait for each other, on average."""
    return iteration.bubble_seconds / iteration.seconds


@metric("comm.")
def communication_fraction(iteration: Iteration) -> Amount:
    """Share of the iteration in which ranks wait for data in transit, on average."""
    return iteration.communication_seconds / iteration.seconds


@metric("padding")
def padding_fraction(iteration: Iteration) -> Amount:
    """FLOPs of products on padding, as a fraction of the model's."""
    return iteration.padding_fraction


# --- prices and goals, where they are stated ------------------------------------------------------


@metric("time to train", unit=short_days, timed=True, objective="time-to-train", needs=[TOKENS])
def time_to_train_seconds(iteration: Iteration) -> Amount:
    """Seconds of the iterations that the stated tokens take, without failures and restarts."""
    return iteration.tokens / iteration.tokens_per_second


@metric("$/M tokens", unit=short_number, timed=True, objective="cost", needs=[PRICE])
def dollars_per_million_tokens(iteration: Iteration) -> Amount:
    """Dollars per million tokens, at the stated price of devices."""
    return 1e6 * iteration.device_hours_per_token * iteration.price


@metric("dollars to train", unit=short_number, timed=True, needs=[PRICE, TOKENS])
def dollars_to_train(iteration: Iteration) -> Amount:
    """Dollars that training on the stated tokens costs, at the stated price of devices."""
    return iteration.tokens * iteration.device_hours_per_token * iteration.price


@metric("J/token", unit=short_number, timed=True, objective="energy", needs=[POWER])
def joules_per_token(iteration: Iteration) -> Amount:
    """Joules per token, for the devices alone, if they draw the full power that they state."""
    return iteration.joules_per_token


@metric("MWh to train", unit=short_number, timed=True, needs=[POWER, TOKENS])
def megawatt_hours_to_train(iteration: Iteration) -> Amount:
    """Megawatt-hours that the devices take for the stated tokens, at the full power they state."""
    return iteration.tokens * iteration.joules_per_token / 3.6e9
