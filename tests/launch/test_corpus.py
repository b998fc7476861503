"""Argument sets that Megatron-LM itself tests are read, in three shapes, or refused in a line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.launch.read import Stated, read_launch
from distir.errors import DistirError
from tests.conftest import SHARED

CORPUS = SHARED / "launch-corpus" / "megatron_arguments.json"

Arguments = Mapping[str, Any]


@cache
def corpus() -> Mapping[str, Arguments]:
    if not CORPUS.is_file():
        pytest.skip("needs the corpus beside the project")
    return json.loads(CORPUS.read_text("utf-8"))


def words(arguments: Arguments) -> Iterator[str]:
    for name, given in arguments.items():
        yield name
        text = str(given)
        if given is not True:
            yield from text.strip("[]").split() if text.startswith("[") else [text]


def quoted(word: str) -> str:
    return f'"{word}"' if "$" in word else shlex.quote(word)


def as_yaml(arguments: Arguments) -> tuple[str, str]:
    return "model_config.yaml", yaml.safe_dump({"MODEL_ARGS": dict(arguments)})


def as_array(arguments: Arguments) -> tuple[str, str]:
    lines = "\n".join(f"    {quoted(word)}" for word in words(arguments))
    return "run.sh", f'ARGS=(\n{lines}\n)\ntorchrun pretrain_gpt.py "${{ARGS[@]}}"\n'


def as_line(arguments: Arguments) -> tuple[str, str]:
    return "command.txt", f"python pretrain_gpt.py {' '.join(map(quoted, words(arguments)))}\n"


def read_as(shape: Any, arguments: Arguments, folder: Path) -> Any:
    """What is read of arguments in a shape: facts, or the line that refuses them."""
    name, text = shape(arguments)
    (folder / name).write_text(text)
    try:
        reading = read_launch(folder / name, Stated(devices=8))
    except DistirError as error:
        line = str(error).replace(str(folder / name), "FILE")
        assert "\n" not in line
        return line
    return dict(reading.facts), reading.strategy


@pytest.mark.slow(seconds=11)
def test_all_shapes_say_the_same(tmp_path: Path) -> None:
    read = refused = 0
    for name, arguments in corpus().items():
        found = read_as(as_yaml, arguments, tmp_path)
        assert read_as(as_array, arguments, tmp_path) == found, name
        assert read_as(as_line, arguments, tmp_path) == found, name
        read += not isinstance(found, str)
        refused += isinstance(found, str)
    assert read + refused == len(corpus())
    assert read > 3 * refused


@pytest.mark.slow(seconds=4)
def test_what_is_refused_names_an_option(tmp_path: Path) -> None:
    lines = {
        read_as(as_line, arguments, tmp_path)
        for arguments in corpus().values()
        if isinstance(read_as(as_line, arguments, tmp_path), str)
    }
    assert all("--" in line for line in lines), lines
