"""Whoever has a framework of their own writes one file; strategies are written for it and read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.newcomers.packages import Package, autotune, python

FRAMEWORK = '''
"""A framework that reads one line of words."""

from autotune.launch import Files, Table, Target, add_target
from autotune.launch.common import ONLY_TRAINING, accumulated, unsaid
from autotune.launch.limits import only
from autotune.launch.rows import value

ROWS = (
    value("dp", "replicas"),
    value("tp", "split", 1),
    accumulated("samples", "times"),
    unsaid("pp", 1, "no pipeline"),
    unsaid("mode", "training", "it trains"),
)


def write(launch, options):
    words = " ".join(f"{name}={given}" for name, given in options.items())
    return Files(f"tiny {words}", {"tiny.json": __import__("json").dumps(options)})


def read(source):
    table = source.table
    return dict(table) if table is not None and "replicas" in table else None


add_target(
    Target(
        name="tiny",
        version="1",
        summary="a framework with replicas and split layers",
        stack="fsdp-eager",
        table=Table(ROWS),
        limits=(ONLY_TRAINING, only("pp", (1,), "it has no pipeline", {"pp": 1})),
        write=write,
        read=read,
    )
)
'''

PLAN = ["--model", "gpt2", "--batch-size", "16", "--dp", "2", "--tp", "2", "--microbatches", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    points = {"autotune.targets": {"tiny": "tiny_framework"}}
    package = Package("tiny_framework", FRAMEWORK, points)
    return package.write(tmp_path_factory.mktemp("framework"))


@pytest.mark.slow(seconds=3)
def test_a_framework_of_ones_own_is_listed(folder: Path) -> None:
    listed = {each["name"]: each for each in json.loads(autotune(folder, "targets", "--json", "-"))}
    assert listed["tiny"]["states"] == ["dp", "tp", "pp", "microbatches"]


@pytest.mark.slow(seconds=6)
def test_strategies_are_written_for_it_and_read_back(folder: Path) -> None:
    launch = ["launch", *PLAN, "--target", "tiny", "--to", "out", "--json", "-"]
    plain = json.loads(autotune(folder, *launch))
    assert plain["command"] == "tiny replicas=2 split=2 samples=4 times=2"
    file = ["out/tiny.json", "--model", "gpt2", "--devices", "4", "--trials", "0"]
    read = json.loads(autotune(folder, "read", *file, "--json", "-"))
    assert read["strategy"] == plain["strategy"]
    assert read["simulated"]["metrics"] == plain["simulated"]["metrics"]


@pytest.mark.slow(seconds=3)
def test_what_it_has_no_option_for_is_refused(folder: Path) -> None:
    done = python(folder, "-m", "autotune", "launch", *PLAN, "--zero", "1", "--target", "tiny")
    assert done.returncode == 2
    assert "zero = 1 cannot be stated: tiny has no option for it; nearest: zero 0" in done.stderr
