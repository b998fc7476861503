"""The command line: what it prints, writes and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autotune.problem
from autotune.cli import COMMANDS, main
from autotune.problem import Problem
from autotune.testing import ToySimulator, ToyWorkload, toy_problem

HEAVY = ("numpy", "onnx", "optuna", "mlflow", "sklearn", "pandas", "rich")


@pytest.fixture(autouse=True)
def toy_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every model is the toy; files go to a folder of their own."""

    def load(
        model: str, cluster: str, *, devices: int = 16, batch_size: int = 256, **options: Any
    ) -> Problem:
        workload = ToyWorkload(batch_size=batch_size, mode=options["mode"])
        memory = 1e9 if cluster == "tiny" else 40e9
        return toy_problem(ToySimulator(workload, devices, memory_bytes=memory))

    monkeypatch.setattr(autotune.problem, "load_problem", load)
    monkeypatch.chdir(tmp_path)


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of an error."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, autotune.cli\n"
        "try:\n    autotune.cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"sys.exit(','.join(name for name in {HEAVY!r} if name in sys.modules) or 0)"
    )
    root = Path(autotune.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"imported {done.stderr}"
    assert "python -m autotune run --model gpt2" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_subcommand_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_run_reports_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--model", "toy", "--no-tracking"]) == 0
    out = capsys.readouterr().out
    assert "Best: dp" in out
    assert "in the grid of 142" in out


def test_run_writes_json_alone_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json_of(capsys, "run", "--model", "toy", "--no-tracking", "--trials", "7")
    assert len(plain["trials"]) == 7
    assert plain["mlflow"] is None
    assert plain["grid"]["evaluated"] == plain["space_size"] == 142


def test_run_writes_json_to_a_file_beside_the_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["run", "--model", "toy", "--no-tracking", "--json", "found.json"]) == 0
    assert "Best: dp" in capsys.readouterr().out
    assert json.loads((tmp_path / "found.json").read_text())["objective"] == "throughput"


def test_run_records_in_mlflow_by_default(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    arguments = ("run", "--model", "toy", "--trials", "5", "--no-compare-grid")
    plain = json_of(capsys, *arguments, "--experiment", "mine")
    assert plain["mlflow"]["experiment"] == "mine"
    assert plain["mlflow"]["tracking_uri"] == "sqlite:///mlflow.db"
    assert plain["mlflow"]["run_id"]
    assert (tmp_path / "mlflow.db").exists()


def test_what_a_plugin_prints_stays_out_of_the_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "chatty.py").write_text("def cost(strategy):\n    print('hello')\n    return 1\n")
    arguments = ("run", "--model", "toy", "--no-tracking", "--objective", "chatty.py:cost")
    plain = json_of(capsys, *arguments, "--trials", "3")
    assert plain["grid"] is None
    assert plain["best"]["metrics"] == {"value": 1.0}


def test_simulate_breaks_a_strategy_down(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("simulate", "--model", "toy", "--dp", "2", "--pp", "4", "--microbatches", "32")
    plain = json_of(capsys, *arguments, "--trace", "trace.json")
    assert plain["devices"] == 8
    assert plain["feasible"] is True
    assert set(plain) >= {"strategy", "feasible", "reason", "metrics", "stages"}
    assert len(plain["stages"]) == 4
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert main(list(arguments)) == 0
    assert "Seconds per stage" in capsys.readouterr().out


def test_simulate_of_a_plan_that_does_not_fit_is_an_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = json_of(capsys, "simulate", "--model", "toy", "--cluster", "tiny")
    assert plain["feasible"] is False
    assert "stage 0 needs" in plain["reason"]
    assert plain["metrics"]["iteration_seconds"] > 0


def test_simulate_of_a_plan_that_cannot_exist_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    simulate = ("simulate", "--model", "toy")
    assert "heads (12) does not divide by tp = 8" in refused(capsys, *simulate, "--tp", "8")
    line = refused(capsys, *simulate, "--dp", "4", "--devices", "16")
    assert "= 4, but there are 16 devices; dp = 16 or tp = 4 or pp = 4 would do" in line
    assert "at most 12 would do" in refused(capsys, *simulate, "--pp", "13")
    line = refused(capsys, *simulate, "--dp", "3", "--batch-size", "16")
    assert "the batch (16) does not divide by dp = 3" in line


def test_the_default_batch_of_simulate_fits_the_strategy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("simulate", "--model", "toy", "--dp", "3", "--microbatches", "7")
    assert json_of(capsys, *arguments)["batch_size"] % 21 == 0


def test_grid_ranks_everything(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json_of(capsys, "grid", "--model", "toy")
    assert set(plain) >= {"space_size", "evaluated", "feasible", "seconds", "ranked"}
    assert len(plain["ranked"]) == plain["feasible"] < plain["evaluated"]
    rates = [each["metrics"]["throughput_samples_per_second"] for each in plain["ranked"]]
    assert rates == sorted(rates, reverse=True)
    assert len(json_of(capsys, "grid", "--model", "toy", "--top", "3")["ranked"]) == 3
    assert main(["grid", "--model", "toy", "--cluster", "tiny"]) == 0
    assert "Nothing fits." in capsys.readouterr().out


def test_compare_ranks_samplers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("compare", "--model", "toy", "--samplers", "random,reinforce", "--seeds", "2")
    plain = json_of(capsys, *arguments, "--trials", "142")
    assert [each["sampler"] for each in plain["samplers"]] == ["random", "reinforce"]
    assert all(each["found"] == each["close"] == 2 for each in plain["samplers"])


@pytest.mark.parametrize("command", ["clusters", "samplers", "objectives", "schedules", "models"])
def test_lists_have_a_line_on_each(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    entries = json_of(capsys, command)
    assert entries
    assert all(entry["name"] and entry["summary"] for entry in entries)
    assert main([command]) == 0
    assert entries[0]["name"] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--objective", "throughputt"), "unknown objective 'throughputt'; did you mean: through"),
        (("--objective", "nowhere:cost"), "objective module 'nowhere' cannot be imported"),
        (("--sampler", "tpee"), "unknown sampler 'tpee'; did you mean: tpe"),
        (("--json", "no/such/folder.json"), "there is no folder"),
        (("--batch-size", "5", "--devices", "13"), "no strategy uses exactly 13 devices"),
    ],
)
def test_bad_input_gets_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(capsys, "run", "--model", "toy", "--no-tracking", *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "--model", "toy", "--trials", "0"),
        ("run", "--model", "toy", "--trial-timeout", "soon"),
        ("simulate", "--model", "toy", "--dp", "-1"),
        ("fly",),
        (),
    ],
)
def test_bad_usage_exits_with_two(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
