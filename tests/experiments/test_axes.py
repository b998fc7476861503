"""The experiment on generated axis lists says how soon they are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.axes import cases
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


@pytest.mark.slow(seconds=4)
def test_cases_go_on_where_they_ended_and_leave_out_what_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cases, "MODELS", ("mlp-3x64",))
    asked = ["--trials", "4", "--record", str(tmp_path / "record"), "--json", "-"]
    assert cases.main(["--cases", "1", *asked]) == 0
    assert cases.main(["--cases", "2", *asked]) == 0
    told = capsys.readouterr().out
    summary = json.loads(told[told.rindex('{\n  "cases"') :])
    assert summary["compared"] == 2
    assert summary["worse"] == summary["wrong_numbers"] == 0
    assert [each["seed"] for each in summary["found"]] == [0, 1]
    monkeypatch.setattr(cases, "CASE_SECONDS", 0.001)
    assert "left_out" in cases.case(2, 4)
