"""What a project says of itself in several places is the same everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import distir
from autotune.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def hooks() -> dict[str, dict[str, object]]:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    return {hook["id"]: hook for repo in yaml.safe_load(text)["repos"] for hook in repo["hooks"]}


def test_the_command_states_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"distir {distir.__version__}\n"


def test_the_newest_release_in_the_changelog_is_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", changelog, flags=re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    releases = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", h) for h in headings[1:]]
    assert all(releases), headings
    stated = [(release[1], release[2]) for release in releases if release]
    assert stated[0][0] == distir.__version__
    dates = [date for _, date in stated]
    assert dates == sorted(dates, reverse=True)


def test_the_version_is_written_once() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "distir/__init__.py"


def test_types_are_checked_before_a_commit_where_they_are_checked_at_all() -> None:
    pattern = str(hooks()["pyright"]["files"])
    for package in PROJECT["tool"]["pyright"]["include"]:
        assert re.search(pattern, f"{package}/module.py"), package
    assert not re.search(pattern, "examples/quickstart.py")


def test_workflows_run_the_oldest_and_the_newest_python_on_linux_and_macos() -> None:
    (ci,) = [yaml.safe_load(path.read_text()) for path in WORKFLOWS if path.stem == "ci"]
    matrix = ci["jobs"]["checks"]["strategy"]["matrix"]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos"}
    listed = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if ":: 3." in c]
    assert matrix["python"] == [listed[0], listed[-1]]
    assert PROJECT["project"]["requires-python"] == f">={listed[0]}"


def test_workflows_call_targets_and_scripts_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    commands = re.findall(r"- run: (\S+) ?(\S*)", "\n".join(p.read_text() for p in WORKFLOWS))
    assert commands
    for command, target in commands:
        assert target in targets if command == "make" else True, target
        if command.startswith(".ci/"):
            assert (ROOT / command).stat().st_mode & 0o100, command


def test_every_file_of_a_package_is_python_data_or_a_result() -> None:
    """What else lay in a package would go into wheels unseen. Parts of web pages have a folder."""
    listed = subprocess.run(
        [
            "git",
            "-C",
            str(ROOT),
            "ls-files",
            *PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"],
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("needs the checkout's git")
    files = [line for line in listed.stdout.splitlines() if "/assets/" not in line]
    data = {".py", ".toml", ".yaml", ".typed", ".md", ".json"}
    for line in files:
        results = {".csv", ".svg"} if line.startswith("experiments/") else set[str]()
        assert (Path(line).suffix or Path(line).name) in data | results, line
