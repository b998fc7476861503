"""A tracked study has files that say all of it again: report, plan, space, launch."""

from __future__ import annotations

import gzip
import json
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
import yaml

from autotune import TuneResult, load_problem, solve, tune
from autotune.api import Search
from autotune.testing import toy_problem
from autotune.trackers import study_files
from autotune.trackers.study_files import FILES, StudyFile, Written, files_of
from distir.errors import DistirError
from distir.plan_text import load_plan
from search_spaces import searched

PAGES = Path(__file__).parents[2] / "docs"


@cache
def result() -> TuneResult:
    problem = load_problem("mlp-2x8", "dgx-a100", devices=4, batch_size=16, space="small")
    return tune(problem, trials=4)


@cache
def made() -> dict[str, str | bytes]:
    launch = {"launch.sh": "echo", "more/config.yaml": "a: 1"}
    return dict(files_of(Written(result(), "autotune run", launch, "bash launch.sh")))


@pytest.mark.slow(seconds=4)
def test_a_study_has_every_listed_file_and_no_other() -> None:
    several = Search(objectives="throughput,memory", sampler="random", trials=4)
    names = {*made(), *dict(files_of(Written(solve(toy_problem(), several))))}
    for file in FILES:
        assert any(fnmatch(name, file.name) for name in names), file.name
    for name in names:
        assert any(fnmatch(name, file.name) for file in FILES), name


@pytest.mark.slow(seconds=4)
def test_the_space_the_plan_and_the_trace_of_a_study_are_read_back(tmp_path: Path) -> None:
    problem, best = result().problem, result().best
    assert best is not None
    assert problem.changed is not None
    stated = yaml.safe_load(made()["space.yaml"])
    assert list(problem.changed(space=stated).space.enumerate()) == list(problem.space.enumerate())
    plan = tmp_path / "best.plan"
    plan.write_text(str(made()["best.plan"]), "utf-8")
    assert load_plan(plan).strategy == best.strategy
    trace = made()["best.trace.json.gz"]
    assert isinstance(trace, bytes)
    assert json.loads(gzip.decompress(trace))["traceEvents"]


@pytest.mark.slow(seconds=4)
def test_what_starts_a_plan_and_what_found_it_are_in_the_report() -> None:
    assert "bash launch.sh" in str(made()["report.html"])
    assert made()["command.sh"] == "autotune run\n"
    assert made()["launch/more/config.yaml"] == "a: 1"
    assert "data-draw" in str(made()["plots/memory.html"])


@pytest.mark.slow(seconds=2)
def test_a_study_without_plans_command_and_launch_goes_without_their_files() -> None:
    found = solve(toy_problem(), Search(trials=4, compare_grid=False))
    names = dict(files_of(Written(found)))
    assert {"report.html", "report.txt", "space.yaml"} <= names.keys()
    assert not {"command.sh", "best.plan"} & names.keys()
    assert not [name for name in names if name.startswith("launch/")]


@pytest.mark.slow(seconds=4)
def test_a_file_that_cannot_be_made_says_why_and_the_others_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_written: Written) -> study_files.Contents:
        raise DistirError("the disk is full of stars")

    broken = StudyFile("maps/*", "maps", fail)
    monkeypatch.setattr(study_files, "FILES", (broken, *FILES))
    names = dict(files_of(Written(result(), "autotune run")))
    assert names["maps/all.error.txt"] == "maps: the disk is full of stars\n"
    assert "report.html" in names


def test_the_manual_lists_the_files() -> None:
    page = (PAGES / "howto" / "tracking.md").read_text("utf-8")
    for file in FILES:
        assert f"| `{file.name}` | {file.what} |" in page


@pytest.mark.parametrize("source", ["small", "standard", "full", "stated"])
def test_a_space_is_read_from_what_it_says_of_itself(source: str) -> None:
    stated = {
        "extends": "standard", "tp": [1, 2], "microbatch_size": [1, 4], "chunks": "long",
        "schedule": ["1f1b", "zb-h1"], "recompute": "none",
    }  # fmt: skip
    space = searched(stated if source == "stated" else source)
    back = searched(yaml.safe_load(space.to_yaml()))
    names = {*back.values, *space.values}
    assert {name: back.allowed(name) for name in names} == {
        name: space.allowed(name) for name in names
    }
