"""Names that users may have in their code keep working after what they name is called otherwise."""

from __future__ import annotations

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("module", "former", "name"),
    [
        ("distir.cost", "CostProfile", "SoftwareStack"),
        ("distir.cost", "Level", "ClusterLevel"),
        ("distir.cost", "load_profile", "load_stack"),
        ("distir.cost", "profile_names", "stack_names"),
    ],
)
def test_a_former_name_means_what_the_new_one_means(module: str, former: str, name: str) -> None:
    package = import_module(module)
    assert getattr(package, former) is getattr(package, name)
    assert former not in package.__all__
