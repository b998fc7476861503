"""What a message says to state by `--set` can be stated, and then the message is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.launch import TARGETS, LaunchError, Target
from tests.launch.strategies import random_launches, read_back

NAMES = [entry.name for entry in TARGETS]
MODEL = "llama3.2-1b"
LEFT_OPEN = ("auto", "$(a command)", None)
"""Values that say nothing; None: the option is not there."""
TOLD = re.compile(r"state it with --set ([^ =]+)=VALUE")


def left_open(
    target: Target, folder: Path
) -> Iterator[tuple[dict[str, Any], dict[str, Any], str, Any]]:
    """Options of launches, what is known beside them, and an option of them to leave open."""
    for launch in random_launches(target, (MODEL,), 4):
        options = dict(read_back(target, launch, folder, model=MODEL).options)
        known: dict[str, Any] = {"devices": launch.facts["devices"], "model_given": MODEL}
        target.table.read(options, known)
        for option in options:
            for value in LEFT_OPEN:
                yield options, known, option, value


def told(target: Target, options: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """What is said where options cannot be read; nothing if they can be."""
    try:
        target.table.read(options, known)
    except LaunchError as error:
        return str(error)
    return ""


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_advised_can_be_stated_and_helps(name: str, tmp_path: Path) -> None:
    target = TARGETS.get(name)
    advised: set[str] = set()
    for options, known, option, value in left_open(target, tmp_path):
        changed = {n: g for n, g in options.items() if n != option}
        changed |= {} if value is None else {option: value}
        message = told(target, changed, known)
        if (found := TOLD.search(message)) is None:
            continue
        stated = [n for n in (found[1], f"--{found[1]}") if n in target.table.options]
        assert stated == [option], f"{option} = {value}: {message}"
        assert not told(target, changed | {option: options[option]}, known)
        advised.add(option)
    assert advised
