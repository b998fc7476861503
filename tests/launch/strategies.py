"""Random strategies that a target can state, and what launches them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from autotune.launch import Target
from autotune.launch.facts import Launch, launch_of
from autotune.launch.priced import restricted
from autotune.launch.read import Reading, Stated, read_launch
from autotune.problem import Problem, load_problem
from distir.strategy import Strategy
from distir.transforms.recompute import RECOMPUTE

MODELS = ("llama3.2-1b", "gpt2", "mixtral-8x7b", "deepseek-v2-lite", "qwen3-0.6b")
LLAMAS = ("llama3.2-1b", "qwen2.5-0.5b")
MODELS_OF = {"nanotron": LLAMAS}
"""Models of frameworks that do not have all of them."""
DEVICES = (1, 2, 8, 16)


@lru_cache(maxsize=64)
def stateable(target: Target, model: str, devices: int, batch: int = 48, **options: Any) -> Problem:
    """A problem whose space is everything that a target can state."""
    problem = load_problem(
        model,
        "hgx-h100",
        devices=devices,
        batch_size=batch,
        sequence_length=1024,
        space={
            "extends": "full",
            "placement": "all",
            "recompute": RECOMPUTE.names(),
            "recompute_layers": [0, 1, 3],
            "expert_order": "all",
            "etp": "all",
            "offload": "all",
        },
        **options,
    )
    return restricted(problem, target)


@st.composite
def stated_strategies(draw: st.DrawFn, target: Target) -> tuple[Problem, Strategy]:
    """A problem and a strategy of it that a target can state."""
    models = MODELS_OF.get(target.name, MODELS)
    problem = stateable(target, draw(st.sampled_from(models)), draw(st.sampled_from(DEVICES)))
    space = problem.space
    return problem, space.at(draw(st.integers(0, space.count() - 1)))


def random_launches(target: Target, models: tuple[str, ...], count: int) -> Iterator[Launch]:
    """Launches of random strategies that a target can state, over models and devices in turn. The
    same ones each time."""
    rng = random.Random(0)
    problems = itertools.cycle(itertools.product(models, DEVICES))
    launches = (
        launch_with(problem, problem.space.sample(rng))
        for model, devices in problems
        for problem in [stateable(target, model, devices)]
    )
    yield from itertools.islice(filter(whole_layers, launches), count)


def whole_layers(launch: Launch) -> bool:
    """Whether no stage begins inside a layer, as where a first layer is of a kind of its own: such
    plans are refused when they are written."""
    return launch.strategy.pp == 1 or launch.facts.get("cuts") is not None


def launch_with(problem: Problem, strategy: Strategy) -> Launch:
    """The launch of a strategy."""
    simulator: Any = problem.simulator
    return launch_of(problem, strategy, simulator.plan(strategy))


def written(target: Target, launch: Launch, folder: Path) -> None:
    """Writes the files of a launch."""
    files = target.write(launch, target.table.write(launch.facts)).files
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def read_back(target: Target, launch: Launch, folder: Path, **stated: Any) -> Reading:
    """What is read of the files of a launch."""
    written(target, launch, folder)
    return read_launch(folder, Stated(target=target.name, **stated))
