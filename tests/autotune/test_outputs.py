"""What the command line writes: whole files, none of them an input, and nothing into a closed
stdout."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from tests.docs.fences import ROOT

SIMULATE = ("simulate", "--model", "mlp-4x64", "--dp", "2")
GRID = ("grid", "--model", "mlp-4x64", "--devices", "2")

CONFIG = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 64,
    "n_head": 4,
    "vocab_size": 100,
    "n_positions": 64,
}

DEVICE = """
name = "A"
memory = "80 GiB"
memory_bandwidth = "2039 GB/s"
peak = { fp32 = "19.5 TFLOP/s", bf16 = "312 TFLOP/s" }
"""

CLUSTER = """
name = "lab"
device = "device.toml"

[[levels]]
name = "Ethernet"
bandwidth = "25 Gbit/s"
latency = "14 us"
"""


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the current one, with files of every kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "device.toml").write_text(DEVICE)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    (tmp_path / "space.yaml").write_text("schedule: [1f1b, order.txt]\npp: 2")
    (tmp_path / "kept.db").write_text("kept")
    (tmp_path / "order.txt").write_text("0F0 0B0\n1F0 1B0\n")
    (tmp_path / "mine.py").write_text(
        "def model(batch_size=2, sequence_length=4):\n"
        "    from distir.models.zoo import find_model\n"
        "    return find_model('mlp-4x64')\n"
        "def cost(problem):\n    return lambda strategy: 1.0\n"
    )
    (tmp_path / "runs.csv").write_text(
        "hardware,num_gpus,num_layers,hidden,heads,seq_len,global_batch\nA100,8,2,64,4,64,8\n"
    )
    return tmp_path


def said(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status of a command line, and its stderr."""
    try:
        status = main(argv)
    except SystemExit as ended:
        status = int(ended.code or 0)
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "file"),
    [
        (("simulate", "--model", "model"), "model/config.json"),
        (("simulate", "--model", "model/config.json"), "model/config.json"),
        (("simulate", "--model", "mine.py:model"), "mine.py"),
        ((*SIMULATE, "--cluster", "cluster.toml"), "cluster.toml"),
        ((*SIMULATE, "--cluster", "cluster.toml"), "device.toml"),
        ((*SIMULATE, "--device", "device.toml"), "device.toml"),
        ((*SIMULATE, "--schedule", "order.txt"), "order.txt"),
        ((*GRID, "--space", "space.yaml"), "space.yaml"),
        ((*GRID, "--space", "space.yaml"), "order.txt"),
        ((*GRID, "--objective", "mine.py:cost"), "mine.py"),
        (("validate", "runs.csv"), "runs.csv"),
        (
            ("run", "--model", "mlp-4x64", "--devices", "2", "--tracking-uri", "sqlite:///kept.db"),
            "kept.db",
        ),
    ],
)
def test_an_input_is_no_output(
    argv: Sequence[str], file: str, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (inputs / file).read_bytes()
    status, error = said([*argv, "--json", file], capsys)
    assert status == 2
    assert "is read, so --json must not replace it" in error
    assert error.count("\n") == 1
    assert (inputs / file).read_bytes() == before


@pytest.mark.parametrize(
    ("argv", "first", "second"),
    [
        (SIMULATE, "--trace", "--json"),
        (GRID, "--table", "--json"),
        (("validate", "runs.csv"), "--plot", "--json"),
        (("calibrate", "runs.csv"), "--output", "--json"),
    ],
)
def test_two_outputs_are_not_one_file(
    argv: Sequence[str],
    first: str,
    second: str,
    inputs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = {"--plot": "same.svg", "--table": "same.csv"}.get(first, "same")
    status, error = said([*argv, first, name, second, f"./{name}"], capsys)
    assert (status, error) == (
        2,
        f"autotune: error: {first} and {second} name the same file, ./{name}\n",
    )


@pytest.mark.parametrize(
    "mistake",
    [
        ("--objective", "throughputt"),
        ("--model", "gtp2"),
        ("--space", "nowhere.yaml"),
        ("--stack", "nothing"),
        ("--no-such-option",),
        ("--top", "0"),
    ],
)
def test_a_mistake_leaves_old_files_alone(
    mistake: Sequence[str], inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = inputs / "old.csv"
    old.write_text("before")
    status, _ = said([*GRID, "--table", "old.csv", "--json", "old.json", *mistake], capsys)
    assert status == 2
    assert old.read_text() == "before"
    assert not (inputs / "old.json").exists()
    assert not list(inputs.glob(".*.part"))


@pytest.mark.slow(seconds=10)
def test_a_full_disk_is_a_line_after_the_answer_and_leaves_old_files_alone(inputs: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    options = [
        (GRID, ("--table", "--json", "--report")),
        (GRID, ("--table",)),
        (SIMULATE, ("--trace", "--plan", "--report", "--json")),
    ]
    names = {"--table": "old.csv", "--report": "old.html"}
    for argv, asked in options:
        files = {option: names.get(option, f"old{option}") for option in asked}
        for name in files.values():
            (inputs / name).write_text("" if name == "old--plan" else "before")
        before = {name: (inputs / name).read_text() for name in files.values()}
        named = [word for pair in files.items() for word in pair]
        ended = _run([*argv, *named], cwd=inputs, preexec_fn=small_files, stdout=subprocess.PIPE)
        assert ended.returncode == 2
        assert "iteration" in ended.stdout
        assert sorted(ended.stderr.splitlines()) == sorted(
            f"autotune: error: {name} cannot be written: File too large" for name in before
        )
        assert {name: (inputs / name).read_text() for name in before} == before
        assert not list(inputs.glob(".*.part"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("argv", "file"),
    [
        ((*GRID, "--table"), "full.csv"),
        ((*SIMULATE, "--report"), "full.html"),
        ((*SIMULATE, "--json", "-", "--trace"), "full.json"),
    ],
)
def test_an_answer_is_told_though_a_file_cannot_be_written(
    argv: Sequence[str], file: str, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (inputs / file).symlink_to("/dev/full")
    status = main([*argv, file])
    captured = capsys.readouterr()
    assert status == 2
    assert captured.err == f"autotune: error: {file} cannot be written: No space left on device\n"
    assert "iteration" in captured.out


@pytest.mark.not_quick
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "argv", [("models",), ("models", "--json", "-"), (*SIMULATE, "--json", "-", "--quiet")]
)
def test_a_full_stdout_is_one_line(argv: Sequence[str], tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = _run(argv, cwd=tmp_path, stdout=full)
    assert ended.returncode == 1
    assert ended.stderr == "autotune: error: stdout cannot be written: No space left on device\n"


@pytest.mark.parametrize("argv", [("models",), ("models", "--json", "-")])
def test_a_closed_pipe_is_one_line(argv: Sequence[str], tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = _run(argv, cwd=tmp_path, stdout=writing)
    finally:
        os.close(writing)
    assert ended.returncode == 1
    assert ended.stderr.startswith("autotune: error: stdout cannot be written: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow(seconds=2)
def test_a_result_is_written_though_nobody_reads_the_report(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        _run([*SIMULATE, "--json", "result.json"], cwd=tmp_path, stdout=writing)
    finally:
        os.close(writing)
    assert json.loads((tmp_path / "result.json").read_text())["feasible"]


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize("argv", [("run", "--trials", "1", "--no-tracking"), ("grid",)])
def test_a_page_is_written_though_nobody_reads_the_report(
    argv: Sequence[str], tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = _run([*argv, *GRID[1:], "--report", "page.html"], cwd=tmp_path, stdout=writing)
    finally:
        os.close(writing)
    assert ended.returncode == 1
    assert "stdout cannot be written" in ended.stderr
    assert "</html>" in (tmp_path / "page.html").read_text()


def test_an_option_without_a_value_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    status, error = said([*GRID, "--space=--"], capsys)
    assert status == 2
    assert "argument --space: expected a value, found '--'" in error


def _run(argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    settings: dict[str, Any] = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
        "timeout": 120,
        **options,
    }
    command = [sys.executable, "-m", "autotune", *argv]
    return subprocess.run(command, check=False, text=True, **settings)
