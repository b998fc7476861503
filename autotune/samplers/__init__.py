"""Samplers: which strategy to try next.

Every sampler is an `ask` and a `tell`. A plug-in is a callable `(space, seed) -> sampler`, named as
`module:attribute`, as `file.py:attribute`, or by an entry point in the group `autotune.samplers`. A
further parameter named `prospects` is given what is known of the space before anything in it is
tried (`Prospects`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from inspect import signature
from typing import TYPE_CHECKING, Any

from autotune.plugins import PluginError, load_plugin
from autotune.samplers.grid import GridSampler
from autotune.samplers.random import RandomSampler
from autotune.samplers.reinforce import ReinforceSampler
from autotune.samplers.sampler import Sampler, SamplerFactory
from autotune.samplers.uct import UctSampler
from distir.errors import DistirError
from distir.registry import Registry
from distir.user_code import run_user_code
from search_spaces import SearchSpace

if TYPE_CHECKING:
    from autotune.samplers.expectation import Prospects

__all__ = ["SAMPLERS", "SAMPLER_GROUP", "Sampler", "SamplerFactory", "find_sampler", "load_sampler"]

SAMPLER_GROUP = "autotune.samplers"
"""Entry-point group of plug-in samplers."""

SAMPLERS: Registry[SamplerFactory] = Registry("sampler")
"""The built-in samplers."""


@SAMPLERS.register(
    "bounds", "Gaussian processes around lower bounds (default for simulated time and memory)"
)
def _bounded(space: SearchSpace, seed: int, prospects: Prospects | None = None) -> Sampler:
    from autotune.samplers.bounded import bounded

    return bounded(space, seed, prospects)


@SAMPLERS.register(
    "guided",
    "the simulator's order, corrected by trials (default for slow objectives)",
)
def _guided(space: SearchSpace, seed: int, prospects: Prospects | None = None) -> Sampler:
    from autotune.samplers.guided import guided

    return guided(space, seed, prospects)


@SAMPLERS.register(
    "tpe",
    "Optuna's tree-structured Parzen estimator on integers",
)
def _tpe(
    space: SearchSpace, seed: int, prospects: Prospects | None = None, objectives: int = 1
) -> Sampler:
    from autotune.samplers.optuna import tpe

    return tpe(space, seed, prospects, objectives)


SAMPLERS.add("random", RandomSampler, "uniform draws without replacement")


SAMPLERS.add("grid", GridSampler, "every strategy, in order")
SAMPLERS.add("uct", UctSampler, "tree search over choices, and over the words of axis lists")
SAMPLERS.add("reinforce", ReinforceSampler, "policy gradient over the tree of choices: a baseline")


@SAMPLERS.register("nsga2", "Optuna's genetic algorithm")
def _nsga2(space: SearchSpace, seed: int, objectives: int = 1) -> Sampler:
    from autotune.samplers.optuna import nsga2

    return nsga2(space, seed, objectives)


@SAMPLERS.register("qmc", "Optuna's quasi-random Sobol sequence")
def _qmc(space: SearchSpace, seed: int, objectives: int = 1) -> Sampler:
    from autotune.samplers.optuna import qmc

    return qmc(space, seed, objectives)


BLIND = ("random", "grid")
"""Samplers that learn nothing, so that any number of objectives is the same to them."""


FORMER = {"surrogate": "bounds"}
"""Samplers by names that they do not have any more."""


def find_sampler(name: str) -> Any:
    """What makes a built-in sampler, by its name, or a plug-in, by its address; raises
    `DistirError` if there is none."""
    name = FORMER.get(name, name)
    if name in SAMPLERS:
        return SAMPLERS.get(name)
    return load_plugin(name, kind="sampler", group=SAMPLER_GROUP, known=SAMPLERS.names())


def load_sampler(
    spec: str | SamplerFactory,
    space: SearchSpace,
    seed: int,
    prospects: Prospects | None = None,
    objectives: int = 1,
) -> Sampler:
    """A sampler over `space`: a built-in one by name, a plug-in by its address, or a factory as
    it is. `prospects` are for those that take them. Raises `DistirError` if there are several
    objectives and it looks for one.
    """
    spec = FORMER.get(spec, spec) if isinstance(spec, str) else spec
    factory: Any = find_sampler(spec) if isinstance(spec, str) else spec
    if isinstance(spec, str) and spec in SAMPLERS:
        count = 1 if spec in BLIND else objectives
        known = _known(factory, prospects, count, f"the sampler {spec}")
        return factory(space, seed, **known)
    label = f"sampler {spec if isinstance(spec, str) else getattr(spec, '__name__', 'given')}"
    if not callable(factory):
        raise PluginError(f"{label} is {type(factory).__name__} {factory!r}; expected a callable")
    known = _known(factory, prospects, objectives, f"the {label}")
    sampler: Any = run_user_code(label, lambda: factory(space, seed, **known), PluginError)
    if not (hasattr(sampler, "ask") and hasattr(sampler, "tell")):
        kind = type(sampler).__name__
        raise PluginError(f"{label} made a {kind}; expected an object with `ask` and `tell`")
    return sampler


def _known(
    factory: Callable[..., object], prospects: Prospects | None, objectives: int, label: str
) -> dict[str, Any]:
    """The prospects and the number of objectives, for a factory that has parameters for them."""
    names = _parameters(factory)
    if objectives > 1 and "objectives" not in names:
        able = [each.name for each in SAMPLERS if "objectives" in _parameters(each.value)]
        raise DistirError(
            f"{label} handles a single objective; for several, use one of "
            f"{', '.join([*able, *BLIND])}"
        )
    told = {"prospects": prospects, "objectives": objectives}
    return {name: value for name, value in told.items() if name in names}


def _parameters(factory: Callable[..., object]) -> Collection[str]:
    try:
        return signature(factory).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return ()
