"""Every example runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs_as_it_stands(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


NAMED = re.findall(
    r"`autotune ([a-z]+ [^`]*examples/[^`]*)`", (ROOT / "README.md").read_text(encoding="utf-8")
)


def test_every_file_that_the_readme_names_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"[\w./-]+\.(?:onnx|csv|toml|yaml|sh|py)\b", text):
        assert (ROOT / name).exists(), name
    assert len(NAMED) >= 5


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize("line", NAMED)
def test_commands_of_the_readme_on_example_files_work(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = shlex.split(line)
    searched = ["--trials", "3", "--no-tracking"] if words[0] == "run" else []
    assert main([*words, *searched, "--quiet"]) == 0
