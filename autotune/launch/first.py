"""The plan of a launch file that a search of some problem tries first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, Any

from autotune.launch.errors import LaunchError
from autotune.launch.facts import MODEL, SIZES, Facts, facts_given, model_facts
from autotune.launch.read import Reading, Stated, read_launch
from distir.models.transformer import TransformerConfig

if TYPE_CHECKING:
    from autotune.problem import Problem
    from distir.strategy import Strategy


def plan_for(problem: Problem, path: str, model: str) -> tuple[Strategy, str]:
    """The plan that a file states, and in words what the file says of another problem than this
    one, whose model is `model`: an empty text if nothing. What the file leaves open is as here.

    Raises `LaunchError` if it cannot be read, or is for another number of devices, on which the
    plan would be another one.
    """
    here = _of(problem, model)
    reading, left_open = _read(path, here)
    there = {"devices": reading.facts["devices"], **reading.facts}
    if there["devices"] != here["devices"]:
        raise LaunchError(
            f"{path} is for {there['devices']} devices, but here there are {here['devices']}; "
            f"state --devices {there['devices']}, or list a plan for {here['devices']}"
        )
    told = [
        f"{name.replace('_', ' ')} {there[name]} (here {here[name]})"
        for name in ("batch_size", "sequence_length")
        if name not in left_open and there.get(name) not in (None, here[name])
    ]
    if "model" not in left_open:
        told += _other_sizes(reading, problem)
    return reading.strategy, ", ".join(told)


def _of(problem: Problem, model: str) -> dict[str, Any]:
    """What a problem says that files may leave open."""
    simulator: Any = problem.simulator
    return {
        "devices": problem.devices,
        "batch_size": problem.batch_size,
        "sequence_length": simulator.workload.length,
        "model": model,
    }


def _read(path: str, here: dict[str, Any]) -> tuple[Reading, tuple[str, ...]]:
    """What a file states with the least of what is said here, and what of that it needs. Raises
    `LaunchError` if all of it is not enough."""
    *some, whole = (names for count in range(len(here) + 1) for names in combinations(here, count))
    for names in some:
        try:
            return read_launch(path, Stated(**{name: here[name] for name in names})), names
        except LaunchError:
            continue  # it leaves more open
    return read_launch(path, Stated(**here)), whole


def _other_sizes(reading: Reading, problem: Problem) -> Iterator[str]:
    """The sizes of a file's model that are others than those of a problem's, as far as both are
    known."""
    simulator: Any = problem.simulator
    config = simulator.workload.model.config
    there = _sizes(reading.source)
    if not there or not isinstance(config, TransformerConfig):
        return
    here = model_facts(config)
    for name in (f"{MODEL}{size}" for size in SIZES):
        if there.get(name) != here.get(name):
            size = name.removeprefix(MODEL)
            yield f"{size} {there.get(name, 'none')} (here {here.get(name, 'none')})"


def _sizes(source: object) -> Facts:
    """The facts of what a reading loads the model by."""
    return model_facts(source) if isinstance(source, TransformerConfig) else facts_given(source)
