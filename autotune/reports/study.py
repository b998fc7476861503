"""The report of a search: the answer, the ranked plans, the reason, and where it is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.exhaustive.outside import WORTH
from autotune.reports.advice import advice, closest_line, conclusions, kept_out
from autotune.reports.breakdown import breakdown
from autotune.reports.quantities import (
    described,
    heading,
    lists_told,
    lost,
    memory_use,
    shown,
)
from autotune.reports.ranking import ranking_table
from autotune.reports.why import why
from autotune.study.trial import Trial
from distir.errors import brief
from distir.metrics import (
    dollars_per_million_tokens,
    dollars_to_train,
    iteration_seconds,
    megawatt_hours_to_train,
    mfu,
    peak_memory_bytes,
    throughput_samples_per_second,
    time_to_train_seconds,
)
from distir.units import counted, percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.exhaustive.certificate import Certificate
    from autotune.problem import Problem
    from autotune.result import TrackingRecord, TuneResult
    from autotune.study.pareto import Pareto

HEADLINE = (
    iteration_seconds,
    throughput_samples_per_second,
    peak_memory_bytes,
    mfu,
    time_to_train_seconds,
    dollars_to_train,
    dollars_per_million_tokens,
    megawatt_hours_to_train,
)
"""Metrics of the best plan shown beside the objective."""
MOST_OF_FRONT = 25
"""Plans of a Pareto front that are shown."""
LAST_LINES = 4
"""How much is shown of what a trial has printed that failed."""


def study_report(result: TuneResult) -> RenderableType:
    """The whole report."""
    from rich.console import Group

    parts = [answer_report(result), search_report(result), outside_report(result)]
    if result.tracking is not None:
        parts.append(tracking_report(result.tracking))
    return Group(*parts)


def answer_report(result: TuneResult) -> RenderableType:
    """What is known of the problem: the best plan, how sure that is, and why it is the best."""
    from rich.console import Group

    return Group(*_answer_parts(result))


def search_report(result: TuneResult) -> RenderableType:
    """How the sampler did in the space."""
    from rich.console import Group
    from rich.text import Text

    parts = [Text(line) for line in _sampler_lines(result)]
    if result.error is not None:
        parts.insert(1, Text(f"The search ended early: {result.error}.", style="bold red"))
    if _grows(result):
        parts += [Text(line) for line in _too_close(result)]
    return Group(*parts)


def outside_report(result: TuneResult) -> RenderableType:
    """What is known of plans outside the space."""
    from rich.console import Group
    from rich.text import Text

    return Group(*(Text(line) for line in _outside(result)))


def search_lines(result: TuneResult) -> list[str]:
    """How the sampler did, and whether there is a better plan outside the space, in sentences."""
    return [*_sampler_lines(result), *_outside(result)]


def _sampler_lines(result: TuneResult) -> list[str]:
    return [
        _searched(result),
        *_stopped(result),
        *_search_did(result),
        *_setbacks(result.trials),
    ]


def comparison_lines(result: TuneResult, best: Trial) -> list[str]:
    """What was looked for, what is known of all other plans, and which are too close to call."""
    return [_looked_for(result), *_comparison(result, best), *_too_close(result)]


def tracking_report(record: TrackingRecord) -> RenderableType:
    """Where the study is recorded. Terminals follow the addresses however they break lines."""
    from rich.console import Group
    from rich.text import Text

    def line(said: str) -> Text:
        text = Text(said, no_wrap=True, overflow="ignore")
        for url in record.links.values():
            if said.endswith(url):
                text.stylize(f"link {url}", len(said) - len(url))
        return text

    return Group(*map(line, tracking_lines(record)))


def _answer_parts(result: TuneResult) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(result.problem.title, style="bold")
    yield from (Text(note) for note in result.problem.notes)
    yield Text(_looked_for(result))
    if result.best is None and result.interrupted:
        yield Text(f"\n{result.said_without_best}\n", style="bold red")
        yield from (Text(line) for line in closest_line(result.closest))
    elif result.best is None:
        yield Text(f"\n{result.said_without_best}", style="bold red")
        yield from (Text(line) for line in advice(result.problem, result.objective, result.closest))
        yield Text("")
    else:
        yield Text(f"\nBest: {described(result.best.strategy)}", style="bold green")
        if known := lists_told(result.problem.known_lists(result.best.strategy)):
            yield Text(known)
        yield Text(_headline(result, result.best))
        yield from (Text(line) for line in _comparison(result, result.best))
        if result.objective.cheap:
            plan = breakdown(result.problem, result.best.strategy)
            yield from (Text(line) for line in conclusions(plan))
            yield from (Text(line) for line in _kept_out(result.problem))
        if not _grows(result):
            yield from (Text(line) for line in _too_close(result))
        yield Text("")
        yield from _tables(result)
        yield from (
            Text(part) if isinstance(part, str) else part for part in why(result, result.best)
        )


def _tables(result: TuneResult) -> Iterator[RenderableType]:
    """The best plans: of several objectives, those that no other plan beats in all."""
    from rich.text import Text

    front = result.pareto
    if front is None:
        yield ranking_table(result.ranked, result.objective, "Best plans")
        return
    yield Text(pareto_line(front))
    yield ranking_table(front.plans, result.objective, "Pareto front", MOST_OF_FRONT)


def pareto_line(front: Pareto) -> str:
    """How many plans are on a Pareto front, and how much they cover."""
    count = len(front.plans)
    plans = "1 plan is" if count == 1 else f"{count} plans are"
    line = f"{plans} on the Pareto front: no other plan tried is as good in all objectives"
    if front.share is None:
        return f"{line}."
    return (
        f"{line}. The hypervolume is {front.hypervolume:.6g}, {percent(front.share)} of the box "
        "between the best and the worst of each objective."
    )


def _looked_for(result: TuneResult) -> str:
    goals = [
        f"the {'largest' if aim.maximize else 'smallest'} {heading(aim.metric or 'value')}"
        for aim in result.objective.aims
    ]
    whole = result.problem.of_space(result.problem.space.count())
    return f"{whole}, searched for {' and '.join(goals)}."


def _searched(result: TuneResult) -> str:
    stopped = " (interrupted)" if result.interrupted else ""
    repeats = counted(result.repeats, "suggestion")
    again = f", {repeats} answered from memory" if result.repeats else ""
    tried = counted(len(result.trials), "strategy")
    return (
        f"The sampler {result.sampler} (seed {result.seed}) tried {tried} in "
        f"{result.seconds:.2f} s{stopped}{again}."
    )


def _stopped(result: TuneResult) -> Iterator[str]:
    """Why the search ended, where that says more than that its trials are made."""
    said = ("timeout", "stop-within", "failing", *(("sampler",) if result.error is None else ()))
    if result.stopped is not None and result.stopped.reason in said:
        yield f"The search ended because {result.stopped.words}."


def _headline(result: TuneResult, best: Trial) -> str:
    metric = result.objective.metric
    others = [
        _metric(result, best, name)
        for name in (each.name for each in HEADLINE)
        if name != metric and best.metric(name) is not None
    ]
    return "; ".join([_metric(result, best, metric), *others])


def _metric(result: TuneResult, best: Trial, name: str) -> str:
    if name == peak_memory_bytes.name and result.objective.cheap:
        return memory_use(best.evaluation.metrics, result.problem.memory_bytes)
    return f"{heading(name)} {shown(name, best.metric(name))}"


def _kept_out(problem: Problem) -> Iterator[str]:
    """Why an obvious plan is not among the best, if memory is the reason."""
    said = kept_out(problem)
    if said is not None:
        yield said


def _grows(result: TuneResult) -> bool:
    """Whether trials find more plans that are too close to call than are known at first: a proof
    keeps few. They are told once, when all are known."""
    return result.grid is None and result.proof is not None


def _too_close(result: TuneResult) -> Iterator[str]:
    """A sentence about plans too close to the best to be told apart."""
    band, count = result.problem.band, result.as_good
    if not count or band is None:
        return
    plans = "1 other plan is" if count == 1 else f"{count} other plans are"
    plans = plans if result.grid is not None else f"At least {plans}"
    yield (
        f"{plans} too close to call: behind by less than {percent(band.between_plans)}, by which "
        "the errors of two predictions typically differ "
        f"({percent(band.between_like_plans)} where plans differ only in schedule and "
        "microbatches). Measure before you choose among them."
    )


def _comparison(result: TuneResult, best: Trial) -> Iterator[str]:
    """What is known of all other plans of the space."""
    if result.grid is not None and result.grid.best is not None:
        grid = result.grid
        seen = "" if grid.complete else f"; only {grid.evaluated:,} were evaluated"
        yield (
            f"No other of the {grid.space_size:,} strategies in the grid ({grid.seconds:.2f} s) is "
            f"better{seen}."
        )
    elif result.proof is not None:
        yield _proved(result.proof, best, result.problem.space_options)
    elif result.objective.cheap:
        yield "Not compared with the grid: other plans of the space may be better."


def _outside(result: TuneResult) -> Iterator[str]:
    """What is known of plans that are not in the space, in a sentence."""
    outside = result.outside
    if outside is None:
        return
    looked = f"{outside.evaluated:,} evaluated, in {outside.seconds:.2f} s"
    if outside.best is None:
        yield (
            f"Proved: none of the {outside.space_size:,} strategies in the space {outside.space} "
            f"is better by more than {percent(WORTH)} ({looked})."
        )
        return
    metric = result.objective.metric
    said = f"{heading(metric)} {shown(metric, outside.best.metric(metric))}"
    known = "proved to be the best there" if outside.proved else "there may be better ones"
    yield (
        f"Outside this space, in the space {outside.space} ({outside.space_size:,} strategies): "
        f"{described(outside.best.strategy)} has {said}, {percent(outside.gain)} better ({looked}; "
        f"{known})."
    )


def _proved(proof: Certificate, best: Trial, space: str) -> str:
    """What certified search says of all other plans; `space` are the options that state it."""
    seconds = f"{proof.seconds:.2f} s"
    gain = proof.may_gain(best)
    if gain == 0:
        return (
            f"Proved: none of the {proof.space_size:,} strategies in the space is better "
            f"({proof.evaluated:,} evaluated{proof.rest}, in {seconds})."
        )
    ruled_out = sum(proof.ruled_out.values())
    seen = (
        f"Not proved: in {seconds}, {proof.evaluated:,} of {proof.space_size:,} were evaluated and "
        f"{ruled_out:,} ruled out"
    )
    if gain is None:
        return f"{seen}; nothing is known about the others."
    what = "memory" if proof.metric == peak_memory_bytes.name else "time"
    found = f"{seen}; none of the others can save more than {percent(gain)} of the {what}."
    return found + (f" `autotune grid {space} --certified` completes the proof." if space else "")


def _search_did(result: TuneResult) -> Iterator[str]:
    """How the sampler did against the best that is known."""
    if result.regret is None or result.found is None:
        if result.found is None and result.best is not None and result.trials:
            yield f"The sampler {result.sampler} found no plan that fits."
        return
    if result.regret == 0:
        yield f"The sampler {result.sampler} found the best plan."
        return
    rank = result.grid.rank(result.found) if result.grid is not None else None
    place = f", number {rank} in the grid" if rank is not None else ""
    yield (
        f"The best plan that the sampler {result.sampler} found is {result.found.label}{place}, "
        f"{lost(result.regret)} behind the best one."
    )


def _setbacks(trials: Sequence[Trial]) -> Iterator[str]:
    infeasible = sum(trial.state == "infeasible" for trial in trials)
    failures = Counter(trial.evaluation.reason or "" for trial in trials if trial.failed)
    if pruned := sum(trial.state == "pruned" for trial in trials):
        yield f"{pruned:,} of {len(trials):,} trials were pruned: they were not promising enough."
    yield from setbacks(len(trials), infeasible, dict(failures.most_common()))
    left = next((trial for trial in reversed(trials) if trial.evaluation.output), None)
    if left is not None:
        yield from _last_words(left)


def _last_words(trial: Trial) -> Iterator[str]:
    """The end of what a trial that failed left behind."""
    told = trial.evaluation.output
    name = next(name for name in ("stderr", "stdout", "traceback") if name in told)
    what = "Its traceback" if name == "traceback" else f"What it printed to {name}"
    yield f"The last trial that failed is number {trial.number}, {trial.label}. {what} ends:"
    lines = told[name].splitlines()[-LAST_LINES:]
    yield from (f"  {brief(_printable(line))}" for line in lines)


def _printable(line: str) -> str:
    """A line that does to a terminal nothing but show."""
    return "".join(each if each.isprintable() else " " for each in line)


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
    if record.note:
        yield f"  {record.note}"
    if record.command:
        yield f"  {record.command}"
    for what, url in record.links.items():
        yield f"  {what}: {url}"
