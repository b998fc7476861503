"""The space of distributions of one workload over a number of devices.

To add a dimension: declare it, add it to the list, and add the constraints that rule its wrong
combinations out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from search_spaces.arithmetic import divisors, listed
from search_spaces.constraints import Constraint
from search_spaces.parameters import Dimension
from search_spaces.space import SearchSpace

ONE_SCHEDULE = "1f1b"
"""The schedule that stands for all where they make the same plan (no pipeline, or forward only)."""


class WorkloadFacts(Protocol):
    """What the space needs to know about a workload; `distir.Workload` provides it."""

    @property
    def mode(self) -> str:
        """`training` or `inference`."""
        ...

    @property
    def batch_size(self) -> int:
        """Samples per step, over all devices."""
        ...

    @property
    def num_blocks(self) -> int:
        """The most stages that the model can be cut into."""
        ...

    @property
    def internal_axes(self) -> Sequence[tuple[str, int]]:
        """Label and size of every axis that tensor parallelism must divide."""
        ...


def distribution_space(
    workload: WorkloadFacts, devices: int, schedules: Sequence[str] | None = None
) -> SearchSpace:
    """Every valid combination of degrees, microbatches and schedule that uses exactly `devices`
    devices.
    """
    return SearchSpace(
        _dimensions(workload, devices, _all_schedules() if schedules is None else schedules),
        _constraints(workload, devices),
    )


def _all_schedules() -> list[str]:
    from distir.schedules import SCHEDULES

    return SCHEDULES.names()


def _dimensions(workload: WorkloadFacts, devices: int, schedules: Sequence[str]) -> list[Dimension]:
    def tp() -> Sequence[int]:
        return divisors(devices)

    def pp(tp: int) -> Sequence[int]:
        return divisors(devices // tp)

    def dp(tp: int, pp: int) -> Sequence[int]:
        return (devices // (tp * pp),)

    def schedule(pp: int) -> Sequence[str]:
        same_plan = pp == 1 or workload.mode == "inference"
        return (ONE_SCHEDULE,) if same_plan else schedules

    def microbatches(dp: int) -> Sequence[int]:
        return divisors(workload.batch_size // dp)

    return [
        Dimension("tp", tp),
        Dimension("pp", pp),
        Dimension("dp", dp),
        Dimension("schedule", schedule),
        Dimension("microbatches", microbatches),
    ]


def _constraints(workload: WorkloadFacts, devices: int) -> list[Constraint]:
    batch = workload.batch_size

    def degrees_fill_devices(dp: int, tp: int, pp: int) -> str | None:
        product = dp * tp * pp
        if product == devices:
            return None
        return (
            f"dp x tp x pp = {dp} x {tp} x {pp} = {product}, but there are {devices} devices"
            f"{_single_change({'dp': dp, 'tp': tp, 'pp': pp}, devices)}"
        )

    def tp_divides_internal_axes(tp: int) -> str | None:
        sizes = dict(workload.internal_axes)
        uneven = next((label for label, size in sizes.items() if size % tp), None)
        if uneven is None:
            return None
        suited = listed(divisors(math.gcd(*sizes.values())))
        return f"{uneven} ({sizes[uneven]}) does not divide by tp = {tp}; {suited} do"

    def every_stage_has_a_block(pp: int) -> str | None:
        most = workload.num_blocks
        if pp <= most:
            return None
        return (
            f"pp = {pp} asks for {pp} stages, but the model has {most} blocks; "
            f"at most {most} would do"
        )

    def dp_divides_batch(dp: int) -> str | None:
        return _divides(f"the batch ({batch})", batch, "dp", dp)

    def microbatches_divide_share(dp: int, microbatches: int) -> str | None:
        share = batch // dp
        return _divides(
            f"each replica's share of the batch ({batch} / {dp} = {share})",
            share,
            "microbatches",
            microbatches,
        )

    return [
        Constraint("the degrees multiply to the devices", degrees_fill_devices),
        Constraint("tp divides every internal axis", tp_divides_internal_axes),
        Constraint("every stage has a block", every_stage_has_a_block),
        Constraint("dp divides the batch", dp_divides_batch),
        Constraint("microbatches divide a replica's share", microbatches_divide_share),
    ]


def _divides(what: str, size: int, name: str, degree: int) -> str | None:
    if size % degree == 0:
        return None
    return f"{what} does not divide by {name} = {degree}; {listed(divisors(size))} do"


def _single_change(degrees: dict[str, int], devices: int) -> str:
    """Which degree, changed alone, would make the product right."""
    product = math.prod(degrees.values())
    fitting = [
        f"{name} = {devices * degree // product}"
        for name, degree in degrees.items()
        if devices * degree % product == 0
    ]
    if not fitting:
        return f"; degrees that divide {devices} are {listed(divisors(devices))}"
    return f"; {' or '.join(fitting)} would do"
