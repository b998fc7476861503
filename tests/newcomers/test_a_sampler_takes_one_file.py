"""Whoever has a sampler of their own writes one file; the command line finds it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.newcomers.packages import Package, autotune

pytestmark = pytest.mark.slow(seconds=1)  # each starts processes

FIRST_LAST = '''
"""Looks at a space from both ends."""


class FirstLast:
    """The first strategy, the last, the second, the last but one, …"""

    def __init__(self, space, seed):
        count = space.count()
        self.space = space
        self.left = [i // 2 if i % 2 == 0 else count - 1 - i // 2 for i in range(count)]

    def ask(self):
        return self.space.at(self.left.pop(0)) if self.left else None

    def tell(self, strategy, cost, violation=0.0):
        """Learns nothing."""
'''

PROBLEM = ["--model", "gpt2", "--devices", "8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    points = {"autotune.samplers": {"first-last": "their_sampler:FirstLast"}}
    package = Package("their_sampler", FIRST_LAST, points)
    return package.write(tmp_path_factory.mktemp("sampler"))


def test_a_sampler_of_ones_own_is_listed_with_the_others(folder: Path) -> None:
    shown = autotune(folder, "samplers")
    assert shown.index("tpe") < shown.index("first-last")


def tried(folder: Path, sampler: str) -> list[dict[str, Any]]:
    """The strategies that a search of four trials tries, in order."""
    asked = ["run", *PROBLEM, "--no-tracking", "--sampler", sampler, "--trials", "4"]
    return [
        each["strategy"] for each in json.loads(autotune(folder, *asked, "--json", "-"))["trials"]
    ]


def test_a_sampler_of_ones_own_says_what_is_tried(folder: Path) -> None:
    autotune(folder, "grid", *PROBLEM, "--table", "all.csv")
    with (folder / "all.csv").open(encoding="utf-8") as file:
        every = list(csv.DictReader(file))
    names = ("dp", "tp", "pp", "microbatches", "schedule")
    found = [tuple(str(each[name]) for name in names) for each in tried(folder, "first-last")]
    assert found == [tuple(every[i][name] for name in names) for i in (0, -1, 1, -2)]


def test_a_file_that_nobody_installed_is_named_by_its_path(folder: Path) -> None:
    assert tried(folder, "their_sampler.py:FirstLast") == tried(folder, "first-last")


def test_a_sampler_of_ones_own_is_compared_with_the_others(folder: Path) -> None:
    asked = ["compare", *PROBLEM, "--samplers", "random,first-last"]
    assert "first-last" in autotune(folder, *asked, "--trials", "10")
