"""What the command line answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.cli import main


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The JSON of a command that ends well."""
    assert main([*arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of an error."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err
