"""The exit status of commands is what the page on the command line says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import distir
from autotune.cli import main
from distir.execute.verify import Verification

PAGE = Path(distir.__file__).parents[1] / "docs/reference/cli.md"

SMALL = ("--model", "mlp-4x64", "--devices", "2", "--space", "small")
LARGE = ("--model", "llama3-70b", "--cluster", "hgx-h100", "--devices", "2", "--space", "small")
PLAN = ("--model", "mlp-4x64", "--dp", "2")

FAILS = "def cost(strategy):\n    raise ValueError('no')\n"

STATUSES: dict[str, tuple[int, tuple[str, ...]]] = {
    "an answer": (0, ("grid", *SMALL)),
    "a plan does not fit": (0, ("simulate", *LARGE[:4], "--dp", "2")),
    "nothing fits": (0, ("grid", *LARGE)),
    "nothing fits, as is proved": (0, ("grid", *LARGE, "--certified")),
    "nothing fits of what was tried": (0, ("run", *LARGE, "--no-tracking", "--trials", "1")),
    "every trial failed": (1, ("grid", *SMALL, "--objective", "fails.py:cost")),
    "no size fits": (1, ("run", *LARGE, "--fit", "batch")),
    "wrong option": (2, ("grid", *SMALL, "--sort", "up")),
    "no such model": (2, ("simulate", "--model", "gpt22")),
    "no such strategy": (2, ("simulate", *PLAN, "--tp", "7")),
    "no strategy at all": (2, ("grid", *SMALL, "--batch-size", "1", "--devices", "13")),
    "no number of devices": (2, ("scale", *LARGE[:4], "--devices", "1:2", "--space", "small")),
}


def status(*arguments: str) -> int:
    """The exit status, also where argparse ends the program."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_the_page_has_a_row_for_every_status() -> None:
    rows = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == ["0", "1", "2", "130"]
    assert {expected for expected, _ in STATUSES.values()} | {130} == {int(row) for row in rows}


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("case", STATUSES)
def test_a_command_ends_with_its_status(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fails.py").write_text(FAILS)
    expected, arguments = STATUSES[case]
    assert status(*arguments) == expected
    captured = capsys.readouterr()
    assert (captured.out == "") == (expected == 2)


def test_numbers_that_differ_are_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("verify", *PLAN)
    assert status(*arguments) == 0
    monkeypatch.setattr(Verification, "passed", False)
    assert status(*arguments) == 1


def test_an_interrupt_is_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.cli.simulate.problem_with", interrupted)
    assert status("simulate", *PLAN) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(("model", "expected"), [("mlp-xs", 0), ("no-such-model", 2)])
def test_a_closed_stderr_loses_nothing(
    model: str,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert status("simulate", "--model", model, "--devices", "2", "--dp", "2") == expected
    assert ("iteration" in capsys.readouterr().out) == (expected == 0)


def test_a_closed_stdout_is_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdout", Closed())
    assert status("simulate", *PLAN) == 1
