"""Nothing heavy is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("mlflow", "optuna", "sklearn", "scipy", "pandas", "matplotlib", "joblib", "onnx")
UNTIL_A_PLUG_IN_IS_THERE = "importlib.metadata"

SIMULATE = """
import distir
model = distir.load_model("gpt2-xs")
cluster = distir.load_cluster("dgx-a100", devices=2)
distir.simulate(model, distir.Strategy(dp=2), cluster, batch_size=2)
"""


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("code", ["import distir", SIMULATE, "import autotune.cli"])
def test_heavy_packages_are_not_loaded(code: str) -> None:
    listing = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "sys" in loaded
    assert loaded.isdisjoint((*HEAVY, UNTIL_A_PLUG_IN_IS_THERE)), sorted(loaded)


@pytest.mark.slow(seconds=1)
def test_what_comes_after_the_answer_is_not_loaded_before_it() -> None:
    """Neither what makes pages and files nor what executes plans holds up the first line."""
    later = {"autotune.page.reports", "autotune.page.render", "distir.execute.verify", "jinja2"}
    problem = "from autotune.problem import load_problem; load_problem('gpt2-xs', devices=2)"
    listing = f"import autotune.api; {problem}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "distir.simulation.simulator" in loaded
    assert loaded.isdisjoint((*HEAVY, *later)), sorted(loaded)
