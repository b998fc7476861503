"""The command line: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autotune.problem
from autotune.cli import COMMANDS, main, make_parser
from autotune.problem import Problem
from autotune.questions.compare import Contest, contest
from autotune.testing import ToySimulator, ToyWorkload, toy_problem
from distir.strategy import Strategy
from tests.command_line import json_of, refused

HEAVY = ("numpy", "onnx", "optuna", "mlflow", "sklearn", "pandas", "rich")


@pytest.fixture(autouse=True)
def toy_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every model is the toy; files go to a folder of their own."""

    def load(
        model: str,
        cluster: str,
        *,
        devices: int = 16,
        batch_size: int = 256,
        space: str = "small",
        **options: Any,
    ) -> Problem:
        workload = ToyWorkload(batch_size=batch_size, mode=options["mode"])
        memory = 1e9 if cluster == "tiny" else 40e9
        return toy_problem(ToySimulator(workload, devices, memory_bytes=memory), space=space)

    monkeypatch.setattr(autotune.problem, "load_problem", load)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow(seconds=2)
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
    told = " ".join(capsys.readouterr().out.split())
    assert "--json" in told
    options = told.split(" --")
    assert max(option.count("(default") for option in options) <= 1  # each once
    assert not re.search(r"\(default: (None|False|True|==)", told)


@pytest.mark.not_quick
def test_run_reports_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--model", "toy", "--space", "small", "--no-tracking"]) == 0
    out = capsys.readouterr().out
    assert "Best: dp" in out
    assert "No other of the 134 strategies in the grid" in out


@pytest.mark.not_quick
def test_of_equal_plans_one_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    """Several plans are equally good, and trials meet another one first than the grid does."""
    asked = ("--model", "mlp-4x64", "--devices", "4", "--sampler", "random", "--trials", "60")
    assert main(["run", *asked, "--no-tracking"]) == 0
    assert capsys.readouterr().out.count("Best: dp") == 1


def test_run_writes_json_alone_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("run", "--model", "toy", "--space", "small", "--no-tracking", "--trials", "7")
    plain = json_of(capsys, *arguments)
    assert len(plain["trials"]) == 7
    assert plain["mlflow"] is None
    assert plain["grid"]["evaluated"] == plain["space_size"] == 134
    assert plain["best"] == plain["grid"]["best"]


@pytest.mark.slow(seconds=2)
def test_what_an_objective_writes_past_python_is_not_in_the_json(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import os, subprocess, sys\n"
        "def cost(strategy):\n"
        "    subprocess.run([sys.executable, '-c', 'print(1)'])\n"
        "    os.write(1, b'raw')\n"
        "    return strategy.tp\n"
    )
    options = "--model mlp-2x8 --devices 2 --batch-size 4 --trials 1 --no-tracking --json -"
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "run", "--objective", "loud.py:cost", *options.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert len(json.loads(done.stdout)["trials"]) == 1
    assert "raw" in done.stderr


@pytest.mark.slow(seconds=3)
def test_run_writes_json_to_a_file_beside_the_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["run", "--model", "toy", "--no-tracking", "--json", "found.json"]) == 0
    assert "Best: dp" in capsys.readouterr().out
    assert json.loads((tmp_path / "found.json").read_text())["objective"] == "throughput"


@pytest.mark.slow(seconds=3)
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


@pytest.mark.not_quick
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
    assert plain["strategy"]["micro_batch"] * 2 * 32 == plain["batch_size"]
    assert Strategy.from_dict(plain["strategy"]).pp == 4
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
    assert "heads (12) is not divisible by tp = 8" in refused(capsys, *simulate, "--tp", "8")
    line = refused(capsys, *simulate, "--dp", "4", "--devices", "16")
    assert "= 4, but there are 16 devices; dp = 16 or tp = 4 or pp = 4 would do" in line
    assert "at most 12 would do" in refused(capsys, *simulate, "--pp", "13")
    line = refused(capsys, *simulate, "--dp", "3", "--batch-size", "16")
    assert "the batch (16) is not divisible by dp = 3" in line


def test_the_default_batch_of_simulate_fits_the_strategy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("simulate", "--model", "toy", "--dp", "3", "--microbatches", "7")
    assert json_of(capsys, *arguments)["batch_size"] % 21 == 0


def test_microbatches_are_stated_by_their_number_or_their_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = ("simulate", "--model", "toy", "--dp", "2", "--pp", "2")
    counted = json_of(capsys, *plan, "--batch-size", "24", "--microbatches", "4")
    assert json_of(capsys, *plan, "--batch-size", "24", "--microbatch-size", "3") == counted
    assert json_of(capsys, *plan, "--microbatches", "4", "--microbatch-size", "3") == counted
    sized = (*plan, "--batch-size", "24", "--microbatch-size")
    assert json_of(capsys, *sized, "3", "--microbatches", "4") == counted
    line = refused(capsys, *sized, "3", "--microbatches", "6")
    assert "microbatches = 6, but a batch of 24 in microbatches of 3 on dp = 2 is 4" in line
    line = refused(capsys, *sized, "5")
    assert "is not divisible by dp · microbatch_size = 2 · 5; try a batch of 30" in line


@pytest.mark.not_quick
def test_grid_ranks_everything(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json_of(capsys, "grid", "--model", "toy", "--space", "small")
    assert set(plain) >= {"space_size", "evaluated", "feasible", "seconds", "ranked"}
    assert len(plain["ranked"]) == plain["feasible"] < plain["evaluated"]
    rates = [each["metrics"]["throughput_samples_per_second"] for each in plain["ranked"]]
    assert rates == sorted(rates, reverse=True)
    assert len(json_of(capsys, "grid", "--model", "toy", "--top", "3")["ranked"]) == 3
    assert main(["grid", "--model", "toy", "--cluster", "tiny"]) == 0
    assert "Nothing fits." in capsys.readouterr().out


@pytest.mark.not_quick
def test_compare_ranks_samplers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("compare", "--model", "toy", "--samplers", "random,reinforce", "--seeds", "2")
    plain = json_of(capsys, *arguments, "--space", "small", "--trials", "134")
    assert [each["sampler"] for each in plain["samplers"]] == ["random", "reinforce"]
    assert all(each["found"] == each["close"] == 2 for each in plain["samplers"])


def test_an_interrupted_comparison_keeps_what_has_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def interrupted(*arguments: Any) -> Contest:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(arguments[4])
        return contest(*arguments)

    monkeypatch.setattr("autotune.questions.compare.contest", interrupted)
    options = ("--samplers", "random,qmc,tpe", "--seeds", "2", "--trials", "5", "--json", "-")
    assert main(["compare", "--model", "toy", "--space", "small", *options]) == 130
    plain = json.loads(capsys.readouterr().out)
    assert plain["interrupted"]
    assert [(each["sampler"], each["seeds"]) for each in plain["samplers"]] == [
        ("random", 2),
        ("qmc", 1),
    ]


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
        (("--objective", "mine.py"), "objective mine.py: the object in the file is not named"),
        (("--objective", "nowhere:cost"), "objective nowhere:cost: ModuleNotFoundError: No module"),
        (("--sampler", "tpee"), "unknown sampler 'tpee'; did you mean: tpe"),
        (("--json", "no/such/folder.json"), "there is no folder"),
        (
            ("--batch-size", "5", "--devices", "13"),
            "no strategy of the space standard uses exactly 13 devices",
        ),
    ],
)
def test_bad_input_gets_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(capsys, "run", "--model", "toy", "--no-tracking", *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--model", "toy", "--trials", "0"),
        ("run", "--model", "toy", "--trial-timeout", "soon"),
        ("simulate", "--model", "toy", "--dp", "-1"),
        ("fly",),
    ],
)
def test_bad_usage_exits_with_two(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "usage:" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--modle", "gpt2"), "unknown option --modle; did you mean --model?"),
        (("run", "gpt2"), "unexpected gpt2; did you mean --model gpt2?"),
        (("grid",), "--model is missing"),
        (
            ("run", "--model", "toy", "--trial", "3"),
            "unknown option --trial; did you mean --trials",
        ),
        (("run", "--model", "toy", "--batch=8"), "unknown option --batch"),
        (
            ("run", "--model", "toy", "--certified"),
            "unknown option --certified; it is an option of grid (",
        ),
        (
            ("run", "--model", "toy", "--dp=2"),
            "--dp; it is an option of simulate, launch, verify, execute, and others",
        ),
        (("run", "--model", "toy", "--mode", "trainin"), "did you mean training?"),
        (("simulat", "--model", "toy"), "unknown command simulat; did you mean simulate?"),
        (("run", "--model", "toy", "--report", "x.pdf"), "expected a name such as x.html, not"),
        (("--versio",), "unknown option --versio; did you mean --version?"),
    ],
)
def test_a_mistake_in_usage_is_named_with_what_was_meant(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_without_a_command_the_first_ones_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    lines = [line.strip() for line in said.splitlines() if line.startswith("  autotune ")]
    assert len(lines) == 3
    for line in lines:
        make_parser().parse_args(line.split()[1:])
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("autotune ru", {"run "}),
        ("autotune run --tria", {"--trials", "--trial-timeout"}),
        ("autotune run --mode inf", {"inference "}),
        ("autotune run --cluster hgx-h10", {"hgx-h100 "}),
        ("autotune simulate --schedule zb-h", {"zb-h1", "zb-h2"}),
    ],
)
def test_shells_are_told_what_may_come_next(line: str, expected: set[str], tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    root = Path(autotune.__file__).parent.parent
    subprocess.run(
        [sys.executable, "-m", "autotune"], cwd=root, env={**os.environ, **asked}, check=True
    )
    assert set(answer.read_text().split("\n")) >= expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_code_for_shells_names_the_command(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    assert "autotune" in capsys.readouterr().out


def test_simulate_takes_every_choice(capsys: pytest.CaptureFixture[str]) -> None:
    choices = "--dp 2 --tp 2 --cp 2 --pp 2 --microbatches 4 --schedule INTERLEAVED --zero 1"
    more = "--recompute Full --sequence-parallel"
    arguments = ("simulate", "--model", "toy", *choices.split(), *more.split())
    plain = json_of(capsys, *arguments)
    assert plain["strategy"] == {
        "dp": 2,
        "tp": 2,
        "cp": 2,
        "pp": 2,
        "microbatches": 4,
        "schedule": "interleaved",
        "chunks": 2,
        "zero": 1,
        "recompute": "full",
        "sequence_parallel": True,
    } | {name: plain["strategy"][name] for name in set(plain["strategy"]) - KNOWN}
    assert main(list(arguments)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "schedule interleaved, chunks 2, ZeRO 1, recompute full, sequence parallel" in out


KNOWN = set("dp tp cp pp microbatches schedule chunks zero recompute sequence_parallel".split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--sequence-parallel",), "sequence_parallel needs tp > 1"),
        (("--cp", "3"), "the sequence (1024) is not divisible by cp = 3; cp = 1, 2, 4"),
        (("--pp", "8", "--chunks", "2"), "pp x chunks = 8 x 2 asks for 16 stages"),
        (("--pp", "2", "--chunks", "2"), "1f1b has 1 chunk per rank, not 2"),
        (
            ("--pp", "2", "--schedule", "gpip"),
            "unknown schedule 'gpip'; did you mean: dualpipe, gpipe",
        ),
        (("--recompute", "some"), "unknown recomputation 'some'"),
        (("--recompute-every", "2"), "recompute is none"),
        (("--recompute", "auto", "--recompute-layers", "2"), "auto, which chooses layers itself"),
        (("--expert-order", "near"), "unknown expert_order 'near'; did you mean: nearest"),
        (("--expert-order", "nearest"), "ep is 1; expert_order = replicas would do"),
        (("--tp", "2", "--etp", "2"), "but ep is 1"),
        (("--recompute-layers", "2"), "recompute is none"),
        (
            ("--recompute", "full", "--recompute-every", "2", "--recompute-layers", "2"),
            "both state which layers recompute",
        ),
        (
            ("--dp", "2", "--keep-gathered", "parameters"),
            "that zero = 3 gathers, but zero is 0",
        ),
        (("--tp", "2", "--keep-gathered", "all"), "that zero = 3 gathers, but zero is 0"),
        (("--tp", "2", "--keep-gathered", "activations"), "sequence_parallel gathers, which is"),
        (("--keep-gathered", "some"), "unknown keep_gathered 'some'"),
        (("--mode", "inference", "--zero", "1"), "zero = 0 would do"),
        (("--mode", "inference", "--recompute", "full"), "inference has no backward pass"),
    ],
)
def test_wrong_combinations_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(capsys, "simulate", "--model", "toy", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--overwrite",), "--overwrite applies to --launch"),
        (("--search-all",), "--search-all applies to --launch"),
        (("--no-isolate",), "--no-isolate applies to plug-ins, and throughput is simulated"),
        (("--no-isolate", "--trial-timeout", "9s"), "--no-isolate rules that out"),
        (("--fit", "batch", "--sampler", "grid"), "so it has no use for --sampler"),
        (("--fit", "batch", "--trial-timeout", "9"), "so it has no use for --trial-timeout"),
        (("--fit", "batch", "--seed", "3"), "so it has no use for --seed"),
        (("--no-tracking", "--experiment", "mine"), "--experiment says where"),
        (("--no-tracking", "--tracking-uri", "sqlite:///x"), "--tracking-uri says where"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(capsys, "run", "--model", "toy", *arguments)


@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize("command", ["grid", "run", "compare"])
def test_the_space_is_chosen(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("zero: [0, 2]\ntp: 1\n")
    few = {"run": ("--no-tracking",), "compare": ("--samplers", "random", "--seeds", "1")}
    sizes: list[int] = []
    for space in ("small", "standard", "mine.yaml"):
        plain = json_of(capsys, command, "--model", "toy", "--space", space, *few.get(command, ()))
        assert plain["space"] == space
        sizes.append(plain["space_size"])
    assert sizes[0] == 134
    assert sizes[1] > 1000
    assert sizes[2] < 134
    line = refused(capsys, command, "--model", "toy", "--space", "smal")
    assert "unknown space 'smal'; did you mean: small" in line


@pytest.mark.not_quick
def test_grid_writes_every_strategy_to_a_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = json_of(capsys, "grid", "--model", "toy", "--table", "all.csv")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 1 + plain["evaluated"]
    assert plain["front"][0] == plain["ranked"][0]
    assert "ends in .csv or .parquet" in refused(
        capsys, "grid", "--model", "toy", "--table", "all.txt"
    )
    line = refused(capsys, "grid", "--model", "toy", "--table", "nowhere/all.csv")
    assert "there is no folder" in line


def test_a_table_shows_the_choices_that_vary(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["grid", "--model", "toy", "--space", "small", "--top", "5"]) == 0
    assert "ZeRO" not in capsys.readouterr().out
    assert main(["grid", "--model", "toy", "--space", "standard", "--top", "5"]) == 0
    assert "ZeRO" in capsys.readouterr().out


@pytest.mark.not_quick
def test_when_every_trial_fails_the_report_is_followed_by_a_line_and_status_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "failing.py").write_text("def cost(strategy):\n    raise ValueError('no')\n")
    arguments = ("--model", "toy", "--objective", "failing.py:cost")
    for command in (("run", "--no-tracking", "--trials", "3"), ("grid",)):
        assert main([command[0], *arguments, *command[1:]]) == 1
        captured = capsys.readouterr()
        assert "trials failed: ValueError: no" in captured.out
        assert captured.err.count("\n") == 1
        assert "trials failed; the most frequent reason: ValueError: no" in captured.err


SAMPLERS_THAT_FAIL = """
import random


class Weary:
    def __init__(self, space, seed):
        self.space, self.left = space, 3

    def ask(self):
        self.left -= 1
        return self.space.at(100 + self.left) if self.left >= 0 else self.tired()

    def tired(self):
        raise RuntimeError("enough")

    def tell(self, strategy, cost, violation=0.0):
        pass


class Vague(Weary):
    def tired(self):
        return "dp 16"


class Astray(Weary):
    def tired(self):
        from distir.strategy import Strategy
        return Strategy(dp=2)


def broken(space, seed):
    raise RuntimeError("at once")


def nothing(space, seed):
    return None
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Weary", "the sampler failed in `ask`: RuntimeError: enough (at "),
        ("Vague", "the sampler proposed a str; expected a Strategy or None"),
        ("Astray", "the sampler proposed dp2-tp1-pp1-m1-1f1b, which is not in the space: dp x tp"),
    ],
)
def test_a_sampler_that_fails_ends_the_study_and_nothing_found_is_lost(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "mine.py").write_text(SAMPLERS_THAT_FAIL)
    arguments = ("run", "--model", "toy", "--no-tracking", "--sampler", f"mine.py:{name}")
    assert main([*arguments, "--json", "found.json"]) == 1
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert "The search ended early: the sampler" in captured.out
    plain = json.loads((tmp_path / "found.json").read_text())
    assert len(plain["trials"]) == 3
    assert plain["best"]
    assert plain["error"].startswith("the sampler")


def test_a_sampler_that_cannot_be_made_is_bad_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(SAMPLERS_THAT_FAIL)
    run = ("run", "--model", "toy", "--no-tracking", "--sampler")
    assert "sampler mine.py:broken: RuntimeError: at once" in refused(
        capsys, *run, "mine.py:broken"
    )
    assert "made a NoneType; expected an object" in refused(capsys, *run, "mine.py:nothing")
    assert "is module <module" in refused(capsys, *run, "mine.py:random")


@pytest.mark.not_quick
def test_a_model_is_verified_as_the_software_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--stack", "megatron-2021", "--attention", "fused", "--gradient-precision", "fp32")
    assert main(["verify", "--model", "gpt2", "--tp", "2", *arguments]) == 0
    assert "The same numbers" in capsys.readouterr().out
