"""Files of nested options: tables in tables as flat options, `optimizer.zero_stage`, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

MOST_DEPTH = 20
"""Tables in tables, beyond which a file is no file of options."""


def flattened(table: Mapping[str, Any]) -> dict[str, Any]:
    """The options of nested tables by their path, with dots between."""
    return dict(_flattened(table, "", 0))


def _flattened(table: Mapping[str, Any], path: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, given in table.items():
        if isinstance(given, dict) and given and depth < MOST_DEPTH:
            yield from _flattened(cast("Mapping[str, Any]", given), f"{path}{name}.", depth + 1)
        else:
            yield f"{path}{name}", given


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flattened`."""
    made: dict[str, Any] = {}
    for path, given in options.items():
        *tables, name = path.split(".")
        inner = made
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[name] = given
    return made


def as_yaml(options: Mapping[str, Any], comment: str) -> str:
    """A YAML file of options, after a comment."""
    import yaml

    body = yaml.safe_dump(nested(options), sort_keys=False, default_flow_style=False, width=100)
    return "".join(f"# {line}\n" for line in comment.splitlines()) + body


def as_json(options: Mapping[str, Any]) -> str:
    """A JSON file of options."""
    return json.dumps(nested(options), indent=2) + "\n"
