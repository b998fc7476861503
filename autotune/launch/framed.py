"""A problem whose strategies a framework is to run."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from autotune.launch.better import space_around
from autotune.launch.priced import check_stated, restricted
from autotune.launch.target import TARGETS
from autotune.problem import Problem, load_problem
from autotune.statement import ProblemStatement, takes


@dataclass(frozen=True, kw_only=True)
class ForFramework(ProblemStatement):
    """A problem as it is stated, and the framework that it is for."""

    framework: str
    """Its name: only what it can state is in the space."""
    search_all: bool = False
    """Whether what it cannot state is in the space, too."""

    @property
    def alone(self) -> ProblemStatement:
        """The problem, with what the framework usually has where nobody says."""
        said = {each.name: getattr(self, each.name) for each in fields(ProblemStatement)}
        usual = TARGETS.get(self.framework).usual
        return ProblemStatement(**said | {n: v for n, v in usual.items() if said[n] is None})


@takes(ForFramework)
def load_problem_for(asked: ForFramework) -> Problem:
    """The problem that is stated, with a space of what a framework can state: the one that
    `run --launch` searches, whose studies `tune` goes on with.

    The arguments are those of `ProblemStatement`, `framework` and `search_all`. Raises
    `DistirError` as `load_problem`, and if the framework cannot state the model or the workload.
    """
    target, statement = TARGETS.get(asked.framework), asked.alone
    around = replace(statement, space=space_around(target, statement.space))
    problem = replace(
        load_problem(**{each.name: getattr(around, each.name) for each in fields(around)}),
        space_name=f"{statement.space} for {target.name}",
        space_options="",
        framework={"framework": asked.framework, "search_all": asked.search_all},
        statement=statement,
    )
    if not asked.search_all:
        problem = restricted(problem, target)
    check_stated(problem, target)
    return problem
