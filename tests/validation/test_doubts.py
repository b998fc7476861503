"""Times that can hardly be seconds of a step are told, whatever the unit; nothing else is."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli import main
from autotune.validation import Timed, doubts_of
from distir.cost import load_stack
from tests.validation.rows import write_csv

MEASURED = Path(__file__).parents[2] / "examples" / "measurements.csv"


@given(st.lists(st.floats(0.11, 9.9), max_size=5))
def test_what_a_prediction_may_err_by_is_not_doubted(ratios: list[float]) -> None:
    assert doubts_of(Timed("a", ratio, 1.0) for ratio in ratios) == []


@pytest.mark.parametrize(
    ("factor", "unit", "advice"),
    [
        (1e6, "microseconds", "divide them by 1,000,000"),
        (1e3, "milliseconds", "divide them by 1,000"),
        (1 / 60, "minutes", "multiply them by 60"),
        (1 / 3600, "hours", "multiply them by 3,600"),
    ],
)
@pytest.mark.parametrize("error", [0.6, 1.0, 2.5])
def test_the_unit_is_told(factor: float, unit: str, advice: str, error: float) -> None:
    (said,) = doubts_of([Timed("a", 2 * factor * error, 2.0)])
    assert unit in said
    assert advice in said
    assert "tokens of one device" in said  # tokens of 60 devices look like minutes, too


def test_slow_and_fast_rows_are_told_apart() -> None:
    rows = [Timed("good", 1.0, 1.0), Timed("slow", 12.0, 1.0), Timed("fast", 0.004, 1.0)]
    slow, fast = doubts_of(rows)
    assert "1 of 3" in slow
    assert "(slow: measured 12 s, predicted 1 s)" in slow
    assert "global_batch" in slow
    assert "(fast: measured 4 ms, predicted 1 s)" in fast


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_commands_doubt_milliseconds_and_not_seconds(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--constants", "product_efficiency"] if command == "calibrate" else []
    in_ms = _in_milliseconds(tmp_path / "ms.csv")
    for path, expected in ((str(MEASURED), 0), (in_ms, 1)):
        plain = tmp_path / "told.json"
        assert main([command, path, *options, "--json", str(plain), "--quiet"]) == 0
        assert len(json.loads(plain.read_text(encoding="utf-8"))["doubts"]) == expected
        said = " ".join(capsys.readouterr().out.split())
        assert ("look like milliseconds" in said) == bool(expected)


def _in_milliseconds(path: Path) -> str:
    """Published runs whose times are stated a thousand times too long."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    times = ("iteration_time_s", "iter_time_derived_s")
    for row in rows:
        row.update({name: repr(1e3 * float(row[name])) for name in times if row[name]})
    return str(write_csv(path, *rows))


@pytest.mark.slow(seconds=3)
def test_a_stack_that_is_fitted_to_doubted_times_says_so(tmp_path: Path) -> None:
    path = _in_milliseconds(tmp_path / "ms.csv")
    stack = tmp_path / "own.toml"
    options = ["--constants", "product_efficiency", "--output", str(stack), "--quiet"]
    assert main(["calibrate", path, *options]) == 0
    (said,) = [line for line in stack.read_text("utf-8").splitlines() if line.startswith("# doubt")]
    assert "look like milliseconds" in said
    assert load_stack(str(stack)).name == "own"


@pytest.mark.slow(seconds=3)
def test_where_doubted_times_tell_nothing_the_error_says_that_they_are_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _in_milliseconds(tmp_path / "ms.csv")
    assert main(["calibrate", path, "--constants", "network_link_efficiency", "--quiet"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "tell none of the constants" in said
    assert "look like milliseconds" in said


def test_a_run_that_would_not_fit_as_assumed_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """13 billion parameters and Adam on devices of 80 GB: 208 GB each, if nothing is sharded."""
    large = {
        "num_layers": "40",
        "hidden": "5120",
        "heads": "40",
        "ffn_hidden": "20480",
        "dp": "16",
        "tp": "1",
        "pp": "1",
    }
    stated = {"zero_stage": "zero3", "recompute": "full"}
    path = write_csv(
        tmp_path / "runs.csv",
        {"id": "silent", **large},
        {"id": "stated", **large, **stated},
        {"id": "ended", **large, "iteration_time_s": "", "flags": "OOM"},
    )
    plain = tmp_path / "told.json"
    assert main(["validate", str(path), "--json", str(plain), "--quiet"]) == 0
    (said,) = (each for each in json.loads(plain.read_text("utf-8"))["doubts"] if "not fit" in each)
    assert said.startswith("1 row ran and would not fit as assumed (silent)")
    assert "state zero_stage and recompute" in " ".join(capsys.readouterr().out.split())
