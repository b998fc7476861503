"""The report of plans that were executed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from distir.units import short_bytes, short_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.distributed.execution import RealVerification
    from distir.execute.verify import Verification

MOST_TABLES = 4
"""Names of made-up tables that are shown."""


def verification_report(model: str, done: Sequence[Verification]) -> RenderableType:
    """Whether the numbers agree, and how far they are apart."""
    from rich.console import Group

    return Group(*_parts(model, done))


def execution_report(model: str, done: Sequence[RealVerification]) -> RenderableType:
    """Whether the numbers of real processes agree, and what the processes sent each other."""
    from rich.console import Group

    agree = verification_report(model, [each.verification for each in done])
    return Group(agree, *_traffic(done))


def _traffic(done: Sequence[RealVerification]) -> Iterator[RenderableType]:
    from rich.text import Text

    for each in done:
        names = ", ".join(f"{name} {short_bytes(t.sent)}" for name, t in each.traffic.items())
        seconds = f"{each.processes} processes, {short_seconds(each.seconds)}"
        yield Text(f"{each.verification.strategy.label}: {seconds}; sent {names or 'nothing'}")
        for name, traffic in each.traffic.items():
            if traffic.planned != traffic.sent:
                text = f"sent {traffic.sent:,} bytes over {name}; planned {traffic.planned:,}"
                yield Text(f"{each.verification.strategy.label}: {text}", style="bold red")


def _parts(model: str, done: Sequence[Verification]) -> Iterator[RenderableType]:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    failed = [each for each in done if not each.passed]
    compared = sum(each.compared for each in done)
    plans = "1 plan" if len(done) == 1 else f"{len(done)} plans"
    yield Text(f"{model}, made small: {plans} executed, {compared} values compared", style="bold")
    invented = done[0].invented
    if invented:
        names = ", ".join(invented[:MOST_TABLES]) + (", …" if len(invented) > MOST_TABLES else "")
        yield Text(f"The model has tables without values ({names}); their values are made up.")
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("strategy", "devices", "largest relative error", "simulated", "executed peak"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    for each in done:
        table.add_row(
            each.strategy.label,
            str(each.devices),
            f"{each.max_relative_error:.1e}",
            short_bytes(each.simulated_peak_bytes),
            short_bytes(each.executed_peak_bytes),
            style="" if each.passed else "bold red",
        )
    yield table
    for each in failed:
        first = each.first_difference
        if first is not None:
            text = f"{first.name} is the first that differs, by {first.error:.1e}"
            yield Text(f"{each.strategy.label}: {text}", style="bold red")
    for each in done:
        if each.rounded:
            worst = max(each.rounded, key=lambda found: found.error)
            yield Text(
                f"{each.strategy.label}: {len(each.rounded)} of {each.compared} values differ by "
                f"more than {each.tolerance:g}, which rounding explains: {worst.name} by "
                f"{worst.error:.1e}, where changing the last bits of all weights and inputs moves "
                f"it by {worst.rounding:.1e}"
            )
    if not failed:
        tolerance = done[0].tolerance
        rest = ", or as close as rounding allows" if any(e.rounded for e in done) else ""
        yield Text(f"The same numbers as on one device, to {tolerance:g}{rest}.", style="green")
