"""What users state has one list of arguments, in Python and on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import autotune
from autotune import Goal, ProblemStatement, Search, compare_samplers, load_problem, tune
from autotune.cli import COMMANDS
from autotune.statement import DEFAULT_STACK, takes
from autotune.testing import toy_problem
from distir import DistirError, Strategy, Workload, load_cluster
from distir.cost import loader


class Options:
    """Stands in for a parser, and keeps the names of options by their group."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.groups: dict[str, Options] = {}

    def add_argument_group(self, title: str) -> Options:
        return self.groups.setdefault(title, Options())

    def add_argument(self, *flags: str, dest: str | None = None, **_: Any) -> None:
        self.names.add(dest or flags[-1].removeprefix("--").replace("-", "_"))

    def set_defaults(self, **_: Any) -> None: ...

    def get_default(self, name: str) -> None: ...


def options(command: str, *groups: str) -> set[str]:
    """The names of a subcommand's options, of some groups."""
    found = Options()
    COMMANDS[command].configure(found)
    return set[str]().union(*(found.groups[title].names for title in groups))


def names(stated: type) -> set[str]:
    return {each.name for each in fields(stated)}


@pytest.mark.parametrize("command", ["run", "grid", "compare"])
def test_the_command_line_states_problems_as_python_does(command: str) -> None:
    assert options(command, "model and cluster", "search space") == names(ProblemStatement)
    assert options(command, "objective") == names(Goal)


def test_the_command_line_says_how_to_search_as_python_does() -> None:
    assert options("run", "objective", "search") == names(Search)


def test_a_problem_states_all_that_a_workload_is_made_of() -> None:
    assert names(Workload) <= names(ProblemStatement)
    assert DEFAULT_STACK == loader.DEFAULT_STACK


@pytest.mark.parametrize("function", [load_problem, tune, compare_samplers])
def test_functions_that_state_a_problem_show_its_arguments(function: Callable[..., object]) -> None:
    shown = inspect.signature(function).parameters
    assert names(ProblemStatement) <= set(shown)
    assert list(shown)[:2] == ["model", "cluster"]


def test_a_function_that_takes_a_value_is_called_with_its_parts() -> None:
    @takes(Strategy)
    def devices(strategy: Strategy) -> int:
        """Doubled."""
        return 2 * strategy.devices

    assert devices(dp=2, tp=4) == 16
    assert devices.__doc__ == "Doubled."
    with pytest.raises(TypeError, match="unexpected keyword argument 'pd'"):
        devices(pd=2)  # type: ignore[call-arg]


@pytest.mark.slow(seconds=4)
def test_a_problem_that_is_made_is_searched_as_the_same_problem_stated() -> None:
    stated = tune("mlp-xs", devices=4, trials=10)
    made = tune(load_problem("mlp-xs", devices=4), trials=10)
    assert [trial.strategy for trial in made.trials] == [trial.strategy for trial in stated.trials]
    assert made.to_dict()["best"] == stated.to_dict()["best"]


def test_the_devices_of_a_loaded_cluster_count_unless_a_number_is_stated() -> None:
    loaded = load_cluster("hgx-h100", devices=8)
    assert load_problem("mlp-xs", loaded).devices == 8
    assert load_problem("mlp-xs", loaded, devices=4).devices == 4
    assert load_problem("mlp-xs", loaded, device="a100-sxm4-80gb").devices == 8
    assert load_problem("mlp-xs", "hgx-h100").devices == 16
    assert ProblemStatement("mlp-xs", loaded).stated()["devices"] == 8


def test_a_problem_that_is_made_cannot_be_stated_otherwise() -> None:
    problem = toy_problem()
    assert load_problem(problem) is problem
    with pytest.raises(DistirError, match=r"devices, space cannot change it.*load_problem"):
        tune(problem, devices=8, space="full")


def test_samplers_are_compared_with_the_grid() -> None:
    problem = toy_problem()
    found = compare_samplers(problem, samplers=["random", "grid"], seeds=2, trials=10**6)
    assert [each.sampler for each in found.standings] == ["random", "grid"]
    assert all(each.found == each.seeds == 2 for each in found.standings)
    assert found.grid.best is not None
    assert found.to_dict()["best"] == found.grid.best.outcome(problem.batch_size)
    assert "2 of 2" in str(found)


def test_samplers_with_a_time_limit_are_compared_by_what_ended_in_time() -> None:
    found = compare_samplers(
        toy_problem(), objective="latency", samplers=["random"], seeds=1, trials=5, trial_timeout=60
    )
    assert found.objective.name == "latency"
    assert found.standings[0].seeds == 1


def test_modules_that_were_imported_from_still_have_the_names() -> None:
    from autotune.api import solve
    from autotune.problem import Problem
    from autotune.study.trial import Trial

    assert (solve, Problem, Trial) == (autotune.solve, autotune.Problem, autotune.Trial)
