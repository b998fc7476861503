"""What a search within a framework finds that is better than what a file states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from autotune.launch.facts import WORKLOAD_FACTS, Facts, launch_of
from autotune.launch.priced import launched_as_run, restricted, with_own_software
from autotune.launch.rows import Options
from autotune.launch.target import Note, Target
from autotune.objectives.evaluation import Evaluation
from distir.metrics import iteration_seconds
from distir.strategy import Strategy

if TYPE_CHECKING:
    from autotune.problem import Problem
    from autotune.search import Search
    from autotune.study.trial import Trial

MOST = 3
"""Better strategies that are shown: the best of as many layouts."""

MOST_SIMULATED = 8
"""How many strategies, quickest first, are simulated as the framework runs them."""

LEAST_GAIN = 0.001
"""The part of the time that a better strategy saves at least: less would be shown as nothing."""


@dataclass(frozen=True, slots=True)
class Better:
    """A better strategy, and which options to change to have it: by option what it is now and what
    it would be, None where it is not there."""

    trial: Trial
    changes: dict[str, tuple[Any, Any]]
    needed: tuple[Note, ...] = ()
    """What a user has to add that a file does not need as it is."""

    def to_dict(self, batch_size: int) -> dict[str, Any]:
        """Plain JSON values."""
        changes = {name: {"from": a, "to": b} for name, (a, b) in self.changes.items()}
        needed = [note.to_dict() for note in self.needed]
        return {**self.trial.outcome(batch_size), "changes": changes, "needed": needed}


def space_around(target: Target, space: Any, strategy: Strategy | None = None) -> Any:
    """A named space for a framework: with the framework's own values of what varies, and with what
    a strategy chooses otherwise than the space varies it. Other spaces stay as they are."""
    from search_spaces.named import DEFAULTS, SPACES

    if not isinstance(space, str) or space not in SPACES:
        return space
    named = SPACES.get(space)
    chosen: dict[str, list[Any]] = {
        name: list(values)
        for name, values in target.searches.items()
        if named.allowed(name) != "default" or name in target.own
    }
    for name, value in strategy.to_dict().items() if strategy is not None else ():
        if named.allowed(name) == "default" and value != DEFAULTS[name]:
            chosen[name] = [DEFAULTS[name], value]
    return {"extends": space, **chosen} if chosen else space


def better(
    problem: Problem,
    target: Target,
    strategy: Strategy,
    run: Any,
    options: Options,
    facts: Facts,
    search: Search,
) -> list[Better]:
    """The best strategies of a framework that fit and take less time than `strategy`, by
    `LEAST_GAIN` and more, each of another layout, all as the framework runs them. `run` is the
    result of `strategy` as the framework runs it: if that does not fit, every strategy that fits is
    better, however long it takes.

    `options` are those of the file, and `facts` what they state.
    """
    from autotune.solving import solve

    within = restricted(with_own_software(problem, target, facts), target)
    if not within.space.count():
        return []
    result = solve(within, search)
    if result.interrupted:
        raise KeyboardInterrupt
    name = iteration_seconds.name
    seconds = run.metrics[name] * (1 - LEAST_GAIN) if run.feasible else inf
    expected = [each for each in result.layouts if (each.metric(name) or inf) < seconds]
    expected.sort(key=lambda trial: trial.metric(name) or inf)
    others = [trial for trial in expected if trial.strategy != strategy][:MOST_SIMULATED]
    judged = (_as_run(problem, target, trial) for trial in others)
    found = [each for each in judged if each is not None and (each.cost or inf) < seconds]
    found.sort(key=lambda trial: trial.cost or inf)
    simulator: Any = problem.simulator
    simulated = launch_of(problem, strategy, simulator.plan(strategy)).facts
    left_open = {name: simulated[name] for name in WORKLOAD_FACTS if name in simulated}
    now = {**target.table.write({**left_open, **facts}), **_otherwise(target, options, facts)}
    there = set(_reasons(target, simulated))
    made: list[Better] = []
    for trial in found[:MOST]:
        then = launch_of(problem, trial.strategy, simulator.plan(trial.strategy)).facts
        needed = (note for why, note in _reasons(target, then).items() if why not in there)
        made.append(Better(trial, _changes(target, options, now, then), tuple(needed)))
    return made


def _reasons(target: Target, facts: Facts) -> dict[str, Note]:
    """What a user has to add to a launch, by the reasons."""
    return {note.reason: note for note in target.missing(facts)}


def _as_run(problem: Problem, target: Target, trial: Trial) -> Trial | None:
    """A strategy as the framework runs it; None if it does not fit then."""
    result, _ = launched_as_run(problem, target, trial.strategy)
    if not result.feasible:
        return None
    cost = result.metrics[iteration_seconds.name]
    return replace(trial, evaluation=Evaluation(dict(result.metrics)), cost=cost)


def _otherwise(target: Target, options: Options, facts: Facts) -> dict[str, Any]:
    """The options that a file states otherwise than what is simulated has them."""
    notes = target.assumed(options, facts)
    return {note.what: note.value for note in notes if note.what in target.table.options}


def _changes(
    target: Target, options: Options, now: Options, facts: Facts
) -> dict[str, tuple[Any, Any]]:
    """The options to change so that a launch has these facts."""
    then = target.table.write(facts)
    now = {**now, **_spelled_otherwise(target, options, now, then)}
    names = dict.fromkeys([*now, *then])
    return {n: (now.get(n), then.get(n)) for n in names if now.get(n) != then.get(n)}


def _spelled_otherwise(
    target: Target, options: Options, now: Options, then: Options
) -> dict[str, Any]:
    """Of rows that change, the options by which a file states them where these are others than
    those that would be written, which are not there."""
    found: dict[str, Any] = {}
    for row in target.table.rows:
        own = {name: options[name] for name in row.options if name in options and name not in now}
        if own and any(now.get(name) != then.get(name) for name in row.options):
            found |= own | {n: None for n in row.options if n in now and n not in options}
    return found
