"""The experiment on generated axis lists says how soon they are found."""

from __future__ import annotations

import json

import pytest

from experiments.axes.__main__ import main


@pytest.mark.not_quick
def test_a_plan_as_fast_as_the_named_ones_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["mlp-3x64", "--seeds", "3", "--evaluations", "40", "--samplers", "uct", "--json", "-"]
    assert main(asked) == 0
    (told,) = json.loads(capsys.readouterr().out).values()
    assert told["best_verified"]
    assert told["plans"] > told["plans_that_fit"] >= told["plans_as_fast_as_named"] > 0
    assert told["gain"] >= 0
    assert told["samplers"]["uct"]["reached"] == 3
    assert told["samplers"]["uct"]["evaluations_most"] <= 40
