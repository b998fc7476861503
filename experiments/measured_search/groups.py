"""Measured runs that compete: the same training, distributed in several ways."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

from autotune.samplers.expectation import Expectation
from autotune.validation.cases import Case, Exclusion, make_case
from autotune.validation.predict import PredictedRow, predict
from autotune.validation.rows import read_rows
from distir.strategies import Strategies
from distir.strategy import Strategy

T = TypeVar("T")

FEWEST = 4
"""Strategies that must have been measured."""


@dataclass(frozen=True)
class Group:
    """Strategies of one training that were measured, with what each took."""

    name: str
    batch_size: int
    seconds: Mapping[Strategy, float | None]
    """Measured; None where the run was out of memory."""
    expected: Expectation
    """By the simulator, of the same strategies."""

    @property
    def best(self) -> float:
        """The least measured time."""
        return min(seconds for seconds in self.seconds.values() if seconds is not None)


def read_groups(
    file: Path, stack: str | None, progress: Callable[[str], None] = lambda _: None
) -> list[Group]:
    """The groups of a file of measurements; `stack` names the software stack that the simulator
    takes for all, in place of the one that each was measured with. `progress` is told how far it
    is, and what cannot be used."""
    made = [make_case(row) for row in read_rows(file)]
    cases = [each for each in made if isinstance(each, Case)]
    timed = [case for case in cases if _is_trial(case)]
    if len(timed) < len(cases):
        progress(
            f"{len(cases) - len(timed)} of {len(made)} rows cannot be used: their memory was "
            "measured, and no time"
        )
    every = _competing(timed, lambda case: case)
    competing = [cases for cases in every if _is_large(cases)]
    for text in _unused([each for each in made if isinstance(each, Exclusion)], len(made)):
        progress(text)
    outcomes, refused = predict(
        [case for cases in competing for case in cases],
        stack=stack,
        progress=lambda model: progress(f"simulating {model}"),
    )
    if not made:
        progress("the file has a header and no rows")
    for text in _unused(refused, len(made)):
        progress(text)
    groups = _competing(outcomes, lambda outcome: outcome.case)
    large = [each for each in groups if _is_large(_cases(each))]
    if every and not large:
        simulated = _too_few(map(_cases, groups), " that can be simulated")
        progress(simulated if competing else _too_few(every))
    return [_group(each) for each in large]


def _is_trial(case: Case) -> bool:
    """Whether it is known what comes of trying it: a time, or that the memory was not enough."""
    return case.measured.seconds is not None or case.measured.out_of_memory


def _cases(outcomes: Iterable[PredictedRow]) -> list[Case]:
    return [outcome.case for outcome in outcomes]


def _too_few(groups: Iterable[Iterable[Case]], which: str = "") -> str:
    most = max(map(_num_measured, groups), default=0)
    return f"no group has {FEWEST} measured strategies{which}; the largest has {most}"


def _unused(excluded: Sequence[Exclusion], rows: int) -> Iterator[str]:
    """Lines that say how many of the rows cannot be used, and why."""
    for reason, count in Counter(each.reason for each in excluded).most_common():
        example = next(each for each in excluded if each.reason == reason)
        detail = f": {example.detail}" if example.detail else ""
        yield f"{count} of {rows} rows cannot be used: {reason}{detail}"


def _competing(things: Iterable[T], case_of: Callable[[T], Case]) -> list[list[T]]:
    found: defaultdict[tuple[object, ...], list[T]] = defaultdict(list)
    for each in things:
        found[_key(case_of(each))].append(each)
    return list(found.values())


def _key(case: Case) -> tuple[object, ...]:
    """What competing cases have in common: source, model, cluster, devices, batch, sequence,
    precision and optimizer."""
    return (case.row.text("source"), case.row.text("model"), *case.choice_group)


def _num_measured(cases: Iterable[Case]) -> int:
    return len({case.strategy for case in cases if case.measured.seconds is not None})


def _is_large(cases: Iterable[Case]) -> bool:
    return _num_measured(cases) >= FEWEST


def _group(outcomes: Sequence[PredictedRow]) -> Group:
    by_strategy: defaultdict[Strategy, list[PredictedRow]] = defaultdict(list)
    for outcome in outcomes:
        by_strategy[outcome.case.strategy].append(outcome)
    first = outcomes[0].case
    predicted = [each[0] for each in by_strategy.values()]
    needed = np.array([each.memory_bytes for each in predicted])
    there = np.array([each.case.hardware.cluster.device.memory_bytes for each in predicted])
    return Group(
        f"{first.row.text('source')}, {first.row.text('model')}, {first.strategy.devices} "
        f"{first.row.text('hardware')}, batch {first.batch_size}",
        first.batch_size,
        {strategy: _measured(each) for strategy, each in by_strategy.items()},
        Expectation(
            Strategies.of(by_strategy),
            np.log([each.seconds for each in predicted]),
            np.log(needed / there),
        ),
    )


def _measured(outcomes: Sequence[PredictedRow]) -> float | None:
    """The median of the repeated runs of a strategy; None if all were out of memory."""
    times = [each.case.measured.seconds for each in outcomes]
    known = [seconds for seconds in times if seconds is not None]
    return median(known) if known else None


__all__ = ["FEWEST", "Group", "read_groups"]
