"""The best of a problem, and what becomes of every strategy that a sampler tries.

Spaces of up to `MOST_EVALUATED` strategies are evaluated in full, once, and kept in a folder; the
best of larger ones is found and proved by certified search, and what is tried is simulated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

import distir
import search_spaces
from autotune import objectives
from autotune.exhaustive.certified import certify
from autotune.exhaustive.chunks import Chunk, chunks_here
from autotune.exhaustive.grid import evaluate_grid
from autotune.objectives import Evaluation, Objective
from autotune.objectives.columns import Evaluations, MetricColumn
from autotune.problem import Problem
from autotune.reports.advice import closest_line
from autotune.solving import measuring
from autotune.study.trial import Trial
from distir.errors import DistirError
from distir.files import is_file, user_path, whole_file
from distir.metrics import find_metric
from distir.strategy import Strategy
from distir.units import counted
from experiments.samplers.problems import Question
from search_spaces import SearchSpace
from search_spaces.columns import SpaceColumns

WHOLE_FILES = (".onnx", ".json")
"""Endings of files of models that name no further ones."""
MOST_EVALUATED = 150_000
"""Strategies of the largest space that is evaluated in full."""
SIMULATOR = (distir, search_spaces, objectives)
"""Packages that decide what is true."""
FORM = 2
"""Which form what is kept has: a file of another one has another name, and is not read."""


@dataclass(frozen=True)
class Truth:
    """A problem with its best."""

    question: Question
    problem: Problem
    objective: Objective
    best: Trial
    """The one that `autotune grid` ranks first."""
    best_cost: float
    """Its cost; smaller is better."""
    how: str
    """`exhaustive` or `certified`."""
    fitting: int | None
    """How many strategies fit; None if not all were evaluated."""
    measure: Callable[[Strategy], Evaluation]
    """What an objective says of a strategy, looked up where it is known."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "title": self.problem.title,
            "objective": self.objective.name,
            "space_size": self.problem.space.count(),
            "fitting": self.fitting,
            "truth": self.how,
            "best": self.best.strategy.to_dict(),
            "label": self.best.label,
            "best_value": self.best.metric(self.objective.metric),
        }


def find_truth(question: Question, folder: Path | None) -> Truth:
    """The truth of a problem, from the folder if it is there; raises `DistirError`, which says why,
    if nothing fits."""
    problem = question.problem()
    problem.check_not_empty()
    objective = question.goal.over(problem)
    if problem.space.count() > MOST_EVALUATED:
        return _certified(question, problem, objective)
    said = _known(question, problem, objective, folder)
    grid = evaluate_grid(
        problem.space, objective, chunks=[_chunk(problem.space, objective, said)], top=1
    )
    if not grid.complete:
        raise KeyboardInterrupt
    best = _found(grid.best, grid.closest, grid.failures)

    def measure(strategy: Strategy) -> Evaluation:
        found = said[problem.space.index(strategy)]
        if found.feasible or found.reason is not None or not objective.trusted:
            return found
        # Of many strategies at once, the simulator does not say why they do not fit.
        return objective.measure(strategy)

    return Truth(question, problem, objective, *best, "exhaustive", grid.feasible, measure)


def _found(
    best: Trial | None, closest: Trial | None, failures: Mapping[str, int]
) -> tuple[Trial, float]:
    """The best and its cost; raises `DistirError` if there is none, with the strategy that misses
    by least, and the most frequent of `failures`, which are counts by reason."""
    if best is not None and best.cost is not None:
        return best, best.cost
    said = ["no strategy is feasible", *closest_line(closest)]
    if failures:
        failed = counted(sum(failures.values()), "trial")
        said.append(f"{failed} failed; the most frequent reason: {next(iter(failures))}")
    raise DistirError(". ".join(said))


def _certified(question: Question, problem: Problem, objective: Objective) -> Truth:
    if question.goal.trial_timeout is not None:
        raise DistirError(
            f"a space of more than {MOST_EVALUATED:,} strategies is simulated, and there are no "
            "trials for a trial-timeout; leave it out"
        )
    certificate = certify(problem, objective)
    if certificate.interrupted:
        raise KeyboardInterrupt
    best = _found(certificate.best, certificate.closest, {})
    return Truth(question, problem, objective, *best, "certified", None, objective.measure)


def _known(
    question: Question, problem: Problem, objective: Objective, folder: Path | None
) -> Evaluations:
    """What the objective says of all strategies, by place in the space."""
    file = None
    if folder is not None and can_be_kept(question):
        file = folder / f"{key_of(question, SIMULATOR)}.npz"
    if file is not None and (kept := _read(file)) is not None:
        return kept
    with measuring(objective, question.goal) as measure:
        each = measure if question.goal.apart(objective) else None
        chunks = chunks_here(problem.space, objective, each)
        said = _together(problem.space.count(), chunks)
    if file is not None:
        _write(file, said)
    return said


def _together(count: int, chunks: Iterable[Chunk]) -> Evaluations:
    """The evaluations of chunks that make up a space of `count` strategies, by place in it."""
    feasible, failed = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    violation = np.zeros(count)
    metrics: dict[str, MetricColumn] = {}
    reasons: dict[int, str] = {}
    for chunk in chunks:
        said, places = chunk.evaluations, chunk.numbers
        feasible[places], failed[places] = said.feasible, said.failed
        violation[places] = said.violation
        for name, values in said.metrics.items():
            if name not in metrics:
                metrics[name] = np.full(count, np.nan)
            metrics[name][places] = values
        reasons.update((int(places[at]), reason) for at, reason in said.reasons.items())
    return Evaluations(metrics, feasible, failed, violation, reasons)


def _chunk(space: SearchSpace, objective: Objective, said: Evaluations) -> Chunk:
    """The whole space as one chunk."""
    numbers, strategies = SpaceColumns(space).taken(0, len(said))
    return Chunk(numbers, strategies, said, objective.costs(said), 0.0, 0.0)


def _write(file: Path, said: Evaluations) -> None:
    columns: dict[str, Any] = {
        "names": np.array([*said.metrics]),
        "metrics": np.array([*said.metrics.values()]),
        "feasible": said.feasible,
        "failed": said.failed,
        "violation": said.violation,
        "places": np.array([*said.reasons], np.int64),
        "reasons": np.array([*said.reasons.values()], np.str_),
    }
    with whole_file(file) as written:
        np.savez_compressed(written, **columns)


def _read(file: Path) -> Evaluations | None:
    """What is kept in a file; None if there is none, or a damaged one."""
    try:
        with np.load(file) as kept:
            columns = zip(kept["names"].tolist(), kept["metrics"], strict=True)
            metrics = {str(name): each for name, each in columns}
            told = zip(kept["places"].tolist(), kept["reasons"].tolist(), strict=True)
            reasons = {int(place): str(reason) for place, reason in told}
            flags = kept["feasible"], kept["failed"]
            return Evaluations(metrics, *flags, kept["violation"], reasons)
    except Exception:  # noqa: BLE001 - bytes that changed raise whatever their readers meet
        return None


def can_be_kept(question: Question, *others: str) -> bool:
    """Whether the answer stays as long as the software does: not where the objective is not
    simulated, or has a time limit; not where the question or `others` name code of one's own, or
    files that may name further files, as clusters and spaces may."""
    if find_metric(question.objective) is None or question.goal.trial_timeout is not None:
        return False
    stated = {**question.stated}
    model = stated.pop("model", None)
    named = [text for each in (*stated.values(), *others) for text in _texts(each)]
    whole = Path(str(model)).suffix in WHOLE_FILES or not _is_own(str(model))
    return whole and not any(map(_is_own, named))


def _texts(stated: object) -> list[str]:
    """The texts in what is stated: those of a space may be files of schedules."""
    if isinstance(stated, str):
        return [stated]
    if isinstance(stated, Mapping):
        stated = [*cast("Mapping[str, object]", stated).values()]
    each = cast("list[object]", stated) if isinstance(stated, list) else []
    return [text for part in each for text in _texts(part)]


def _is_own(text: str) -> bool:
    return ":" in text or user_path(text).exists()


def key_of(question: Question, packages: tuple[ModuleType, ...], *others: object) -> str:
    """A name for what is kept: it changes with the question, with the files that it and `others`
    name, with these packages, and with others."""
    said = [FORM, question.stated, question.objective, question.objective_options, *others]
    named = [*question.stated.values(), question.objective, *others]
    said += [_content(each) for each in named if isinstance(each, str)]
    stated = json.dumps(said, sort_keys=True, default=str)
    return hashlib.sha256(f"{stated} {_software(packages)}".encode()).hexdigest()[:24]


def _content(text: str) -> str | None:
    """A digest of the file that a text names; None if it names none."""
    file = user_path(text)
    return hashlib.sha256(file.read_bytes()).hexdigest() if is_file(file) else None


@cache
def _software(packages: tuple[ModuleType, ...]) -> str:
    """A digest of the packages' files."""
    digest = hashlib.sha256()
    for package in packages:
        root = Path(package.__file__ or "").parent
        for file in sorted(root.rglob("*")):
            if file.suffix in (".py", ".toml"):
                digest.update(file.read_bytes())
    return digest.hexdigest()


__all__ = ["SIMULATOR", "Truth", "can_be_kept", "find_truth", "key_of"]
