"""Files for published recipes stay what they are, byte for byte, and say the recipe."""

from __future__ import annotations

import pytest

from autotune.launch import TARGETS
from autotune.launch.read import Stated, read_launch
from tests.launch.golden import CASES, FOLDER, golden, made
from tests.launch.recipes import RECIPES


@pytest.mark.parametrize(("name", "target"), CASES)
def test_a_published_recipe_is_written_as_before(name: str, target: str) -> None:
    assert made(name, target) == golden(name, target), "make launch-golden writes them again"


@pytest.mark.parametrize(("name", "target"), CASES)
def test_a_golden_file_is_read_as_the_recipe(name: str, target: str) -> None:
    recipe = RECIPES[name]
    model = None
    if not TARGETS.get(target).states_model:
        if not isinstance(recipe.model, str):
            pytest.skip("the files name a model that nobody else has")
        model = recipe.model
    reading = read_launch(FOLDER / name / target, Stated(model=model))
    assert reading.target.name == target
    assert reading.strategy == recipe.strategy
    assert reading.facts["batch_size"] == recipe.workload["batch_size"]
