"""The best of a problem, and what becomes of every strategy that a sampler tries.

Spaces of up to `MOST_EVALUATED` strategies are evaluated in full, once, and kept in a folder; the
best of larger ones is found and proved by certified search, and what is tried is simulated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import distir
import search_spaces
from autotune.exhaustive.certified import certify
from autotune.exhaustive.chunks import chunks_here
from autotune.objectives import Evaluation, Objective
from autotune.problem import Problem
from autotune.reports.advice import closest_line
from autotune.study.trial import Trial
from distir.arrays import Floats
from distir.errors import DistirError
from distir.files import is_file, user_path, whole_file
from distir.metrics import iteration_seconds, peak_memory_bytes
from distir.strategy import Strategy
from experiments.samplers.problems import OBJECTIVE, Question

WHOLE_FILES = (".onnx", ".json")
"""Endings of files of models that name no further ones."""
MOST_EVALUATED = 150_000
"""Strategies of the largest space that is evaluated in full."""
SIMULATOR = (distir, search_spaces)
"""Packages that decide what is true."""
KEPT = (iteration_seconds.name, peak_memory_bytes.name)
"""Metrics that samplers learn from, besides the one that counts."""


@dataclass(frozen=True)
class Truth:
    """A problem with its best."""

    question: Question
    problem: Problem
    objective: Objective
    best_cost: float
    """Smaller is better."""
    best: Strategy
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
            "best": self.best.to_dict(),
            "label": self.best.label,
            "best_value": -self.best_cost if self.objective.maximize else self.best_cost,
        }


def find_truth(question: Question, folder: Path | None) -> Truth:
    """The truth of a problem, from the folder if it is there; raises `DistirError`, which says why,
    if nothing fits."""
    problem = question.problem()
    problem.check_not_empty()
    objective = problem.objective(question.objective)
    if problem.space.count() > MOST_EVALUATED:
        return _certified(question, problem, objective)
    known = _known(question, problem, objective, folder)
    costs, violation = known["cost"], known["violation"]
    usable = (violation <= 0) & np.isfinite(costs)
    if not usable.any():
        raise DistirError(_infeasible(_closest(problem, objective, violation)))

    def measure(strategy: Strategy) -> Evaluation:
        place = problem.space.index(strategy)
        cost = float(costs[place])
        if np.isnan(cost):
            return Evaluation.failure("not simulated")
        metrics = {name: float(known[name][place]) for name in KEPT}
        metrics = {name: value for name, value in metrics.items() if not np.isnan(value)}
        metrics[objective.metric] = -cost if objective.maximize else cost
        short = float(violation[place])
        if short > 0:
            return Evaluation(metrics, feasible=False, reason="does not fit", violation=short)
        return Evaluation(metrics)

    place = int(np.argmin(np.where(usable, costs, np.inf)))
    return Truth(
        question,
        problem,
        objective,
        float(costs[place]),
        problem.space.at(place),
        "exhaustive",
        int(usable.sum()),
        measure,
    )


def _closest(problem: Problem, objective: Objective, violation: Floats) -> Trial | None:
    """The strategy that misses by least, as a trial; None if none was simulated."""
    if not np.isfinite(violation).any():
        return None
    place = int(np.nanargmin(violation))
    strategy = problem.space.at(place)
    return Trial(place, strategy, objective.measure(strategy), None)


def _infeasible(closest: Trial | None) -> str:
    return ". ".join(["no strategy is feasible", *closest_line(closest)])


def _certified(question: Question, problem: Problem, objective: Objective) -> Truth:
    certificate = certify(problem, objective)
    if certificate.interrupted:
        raise KeyboardInterrupt
    found = certificate.best
    if found is None or found.cost is None:
        raise DistirError(_infeasible(certificate.closest))
    return Truth(
        question,
        problem,
        objective,
        found.cost,
        found.strategy,
        "certified",
        None,
        objective.measure,
    )


def _known(
    question: Question, problem: Problem, objective: Objective, folder: Path | None
) -> dict[str, Any]:
    """Costs, violations, and, as far as they are known, metrics, by place in the space."""
    file = None
    if folder is not None and can_be_kept(question):
        file = folder / f"{key_of(question, SIMULATOR)}.npz"
    if file is not None and (kept := _read(file)) is not None:
        return kept
    size = problem.space.count()
    names = ("cost", "violation", *KEPT)
    known = {name: np.full(size, np.nan) for name in names}
    for chunk in chunks_here(problem.space, objective):
        said = chunk.evaluations
        columns = {**said.metrics, "cost": chunk.costs, "violation": said.violation}
        for name in columns.keys() & {*names}:
            known[name][chunk.numbers] = columns[name]
    if file is not None:
        columns: dict[str, Any] = known
        with whole_file(file) as written:
            np.savez_compressed(written, **columns)
    return known


def _read(file: Path) -> dict[str, Any] | None:
    """What is kept in a file; None if there is none, or a damaged one."""
    try:
        with np.load(file) as kept:
            return {name: kept[name] for name in ("cost", "violation", *KEPT)}
    except Exception:  # noqa: BLE001 - bytes that changed raise whatever their readers meet
        return None


def can_be_kept(question: Question, *others: str) -> bool:
    """Whether the answer stays as long as the software does: not where the question or `others`
    name code of one's own, or files that may name further files, as clusters and spaces may."""
    stated = {**question.stated, OBJECTIVE: question.objective}
    model = stated.pop("model", None)
    named = [each for each in (*stated.values(), *others) if isinstance(each, str)]
    whole = Path(str(model)).suffix in WHOLE_FILES or not _is_own(str(model))
    return whole and not any(map(_is_own, named))


def _is_own(text: str) -> bool:
    return ":" in text or user_path(text).exists()


def key_of(question: Question, packages: tuple[ModuleType, ...], *others: object) -> str:
    """A name for what is kept: it changes with the question, with the files that it and `others`
    name, with these packages, and with others."""
    said = [dict(question.stated), question.objective, *others]
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
