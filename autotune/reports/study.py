"""The report of a search: the answer, the ranked plans, the reason, and where it is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.reports.advice import advice, closest_line
from autotune.reports.quantities import described, heading, memory_use, shown
from autotune.reports.ranking import ranking_table
from autotune.reports.why import why
from autotune.trial import Trial
from distir.metrics import (
    iteration_seconds,
    mfu,
    peak_memory_bytes,
    throughput_samples_per_second,
)
from distir.units import percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.result import TrackingRecord, TuneResult

HEADLINE = (iteration_seconds, throughput_samples_per_second, peak_memory_bytes, mfu)
"""Metrics of the best plan shown beside the objective."""


def study_report(result: TuneResult) -> RenderableType:
    """The whole report."""
    from rich.console import Group

    return Group(*_parts(result))


def _parts(result: TuneResult) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(result.problem.title, style="bold")
    yield from (Text(note) for note in result.problem.notes)
    yield Text(_searched(result))
    if result.error is not None:
        yield Text(f"The search ended early: {result.error}.", style="bold red")
    if result.best is None and result.interrupted:
        yield Text("\nInterrupted before anything was found that fits.", style="bold red")
        yield from (Text(line) for line in closest_line(result.closest))
    elif result.best is None:
        yield Text(
            "\nNothing fits." if result.closest else "\nNo trial succeeded.", style="bold red"
        )
        yield from (Text(line) for line in advice(result.problem, result.objective, result.closest))
    else:
        yield Text(f"\nBest: {described(result.best.strategy)}", style="bold green")
        yield Text(_headline(result, result.best))
        yield from (Text(line) for line in _too_close(result))
        yield Text("")
        yield ranking_table(result.ranked, result.objective, "Best plans tried")
        yield from (
            Text(part) if isinstance(part, str) else part for part in why(result, result.best)
        )
    yield from (Text(line) for line in _setbacks(result.trials))
    if result.tracking is not None:
        lines = tracking_lines(result.tracking)
        yield from (Text(line, no_wrap=True, overflow="ignore") for line in lines)


def _searched(result: TuneResult) -> str:
    goal = "largest" if result.objective.maximize else "smallest"
    stopped = " (interrupted)" if result.interrupted else ""
    again = f", {result.repeats} suggestions answered from memory" if result.repeats else ""
    return (
        f"{result.problem.space.count():,} valid strategies in the space "
        f"{result.problem.space_name}; {result.sampler} (seed {result.seed}) "
        f"tried {len(result.trials)} in {result.seconds:.2f} s{stopped} for the {goal} "
        f"{heading(result.objective.metric or 'value')}{again}."
    )


def _headline(result: TuneResult, best: Trial) -> str:
    metric = result.objective.metric
    others = [
        _metric(result, best, name)
        for name in (each.name for each in HEADLINE)
        if name != metric and best.metric(name) is not None
    ]
    return "; ".join([_metric(result, best, metric), *others, *_against_grid(result)])


def _metric(result: TuneResult, best: Trial, name: str) -> str:
    if name == peak_memory_bytes.name and result.objective.cheap:
        return memory_use(best.evaluation.metrics, result.problem.memory_bytes)
    return f"{heading(name)} {shown(name, best.metric(name))}"


def _too_close(result: TuneResult) -> Iterator[str]:
    """A sentence about plans too close to the best to be told apart."""
    band, count = result.problem.band, result.as_good
    if not count or band is None:
        return
    plans = "1 other plan is" if count == 1 else f"{count} other plans are"
    yield (
        f"{plans} too close to call: behind by less than the {percent(band.between_plans)} that "
        "runs of equal plans differ by. Measure before you choose among them."
    )


def _against_grid(result: TuneResult) -> Iterator[str]:
    grid = result.grid
    if grid is None or grid.best is None:
        if grid is None and result.objective.cheap:
            yield "not compared with the grid"
        return
    part = "" if grid.complete else f"the first {grid.evaluated:,} of "
    seen = f"{part}the grid of {grid.space_size:,} ({grid.seconds:.2f} s)"
    if result.regret == 0:
        yield f"nothing in {seen} is better"
    elif result.regret is not None:
        place = f"number {grid.rank(result.best)} of {seen}"
        yield f"{place}, {percent(result.regret)} behind its best, {grid.best.label}"


def _setbacks(trials: Sequence[Trial]) -> Iterator[str]:
    infeasible = sum(trial.state == "infeasible" for trial in trials)
    failures = Counter(trial.evaluation.reason or "" for trial in trials if trial.failed)
    return setbacks(len(trials), infeasible, dict(failures.most_common()))


def setbacks(evaluated: int, infeasible: int, failures: Mapping[str, int]) -> Iterator[str]:
    """Failed trials by reason, the most frequent first."""
    if infeasible:
        yield f"{infeasible:,} of {evaluated:,} evaluated strategies are infeasible."
    for reason, times in list(failures.items())[:3]:
        yield f"{times:,} of {evaluated:,} trials failed: {reason}"
    if len(failures) > 3:
        yield f"… and {len(failures) - 3} other reasons."


def tracking_lines(record: TrackingRecord) -> Iterator[str]:
    """Where to look, or what went wrong."""
    if record.error:
        yield f"Tracking failed: {record.error}. The search is complete; what was found is above."
    if record.run_id is None:
        return
    yield f"\nRecorded in MLflow, experiment {record.experiment!r}."
    if record.command:
        yield f"  {record.command}"
    for what, url in record.links.items():
        yield f"  {what}: {url}"
