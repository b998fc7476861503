"""What studies on storages have learned of the simulator's expectations, for other studies."""

from __future__ import annotations

from dataclasses import fields

from autotune.durable.opening import found_study
from autotune.durable.optuna_storage import StoredStudy
from autotune.durable.stated import Kept, restored
from autotune.problem import load_problem
from autotune.prospects.prospects import ProblemProspects, foretold
from autotune.samplers.experience import Experience
from autotune.samplers.guided import GuidedSampler
from autotune.samplers.sampler import Outcome
from autotune.statement import ProblemStatement
from distir.errors import DistirError


def carried_from(study: str, storage: str | None) -> Experience:
    """What the trials of another study, made by whatever sampler, say of what its own simulator
    expected of them: how far times and memory were off, and no times or bytes.

    `study` is its name in `storage`, or `STORAGE#NAME`. Raises `DistirError` if it is not there, is
    about several objectives or about files that have changed, or says nothing.
    """
    where, _, name = study.rpartition("#")
    if not where and "://" in study:
        raise DistirError(f"--warm-start {study}: no study is named; expected {study}#NAME")
    if not (where or storage):
        raise DistirError(
            f"--warm-start {study}: no storage is named; expected STORAGE#NAME, such as "
            f"sqlite:///study.db#{study}, or --storage"
        )
    found = found_study(Kept(storage=where or storage, study=name, resume=True))
    if len(found.maximize) > 1:
        raise DistirError(
            f"--warm-start {study}: it has several objectives; expected a study with one"
        )
    kept = found.attributes()["problem"]
    names = {each.name for each in fields(ProblemStatement)}
    about = {each: value for each, value in kept.items() if each in names}
    problem = load_problem(**restored(about, {}))
    metric = foretold(problem, str(kept.get("metric") or kept.get("objective")))
    prospects = ProblemProspects(problem, problem.objective(metric.name))
    sampler = GuidedSampler(prospects.simulated(), problem.batch_size, noise=prospects.noise)
    found.over(problem.space)
    for outcome in _outcomes(found):
        sampler.tell_outcome(outcome)
    if not sampler.experience:
        raise DistirError(
            f"--warm-start {study}: there is nothing to learn from it; expected a study with "
            "finished trials that the simulator can predict"
        )
    return sampler.experience


def _outcomes(study: StoredStudy) -> list[Outcome]:
    """What came of every strategy that was tried to its end."""
    (maximize,) = study.maximize
    found: list[Outcome] = []
    for attempt in study.attempts():
        known = attempt.evaluation
        if known is None or known.pruned:
            continue
        value = None if attempt.value is None else attempt.value * (-1 if maximize else 1)
        found.append(Outcome(attempt.strategy, value, known.violation, known.metrics, known.reason))
    return found
