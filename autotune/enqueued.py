"""Plans that a user wants tried first: as they are stated, or from a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from distir.errors import DistirError, StrategyError, shown
from distir.files import read_text
from distir.strategy import Strategy
from distir.yaml_text import read_yaml
from search_spaces import SearchSpace

Stated: TypeAlias = "Strategy | Mapping[str, Any]"
"""A strategy, or some of its choices by name; the others are as usual."""

LISTS = (".yaml", ".yml", ".json")
TABLES = (".csv",)


def enqueued(plans: Iterable[Stated], space: SearchSpace) -> list[Strategy]:
    """The plans as strategies, each once. Raises `DistirError` if one is not in the space."""
    found = dict.fromkeys(map(_strategy, plans))
    for strategy in found:
        if reason := space.explain(strategy):
            raise DistirError(
                f"the plan {strategy.label}, to be tried first, is impossible: {reason}"
            )
    return list(found)


def _strategy(plan: object) -> Strategy:
    if isinstance(plan, Strategy):
        return plan
    if not isinstance(plan, Mapping):
        raise DistirError(
            f"a plan to be tried first is {shown(plan)}; expected a Strategy, or choices by name, "
            'such as {"dp": 2, "tp": 8}'
        )
    return Strategy.from_dict(cast("Mapping[str, Any]", plan))


def plans_in(path: str) -> list[dict[str, Any]] | None:
    """The plans that a file states: a list of mappings in YAML or JSON, or a table with a column
    per choice, such as `autotune grid` writes. None if it is neither by its name.

    Raises `DistirError` if it cannot be read.
    """
    suffix = Path(path).suffix.lower()
    if suffix in LISTS:
        return _listed(path)
    return _rows(path) if suffix in TABLES else None


def _listed(path: str) -> list[dict[str, Any]]:
    read = read_yaml(path, StrategyError)
    plans = cast("list[Any]", read if isinstance(read, list) else [read])
    for number, plan in enumerate(plans, 1):
        if not isinstance(plan, dict):
            raise StrategyError(
                f"{path} has the plan {shown(plan)}; expected a list of choices by name, such as "
                "- {dp: 2, tp: 8}"
            )
        _check(path, number, cast("Mapping[Any, Any]", plan))
    return [{str(name): value for name, value in plan.items()} for plan in plans]


def _check(path: str, number: int, plan: Mapping[Any, Any]) -> None:
    """Raises `StrategyError` if an entry of a list is no strategy."""
    try:
        Strategy.from_dict({str(name): value for name, value in plan.items()})
    except DistirError as error:
        raise StrategyError(f"{path}, plan {number}: {error}") from error


def _rows(path: str) -> list[dict[str, Any]]:
    kinds: dict[str, type[Any]] = {name: type(v) for name, v in Strategy().to_dict().items()}
    reader = csv.DictReader(io.StringIO(read_text(path, StrategyError)))
    known = [name for name in reader.fieldnames or () if name in kinds]
    if not known:
        raise StrategyError(
            f"{path} has none of the columns {', '.join(kinds)}; expected a table of plans"
        )
    try:
        return [
            {name: _cell(f"{path}, plan {number}", kinds[name], row[name]) for name in known}
            for number, row in enumerate(reader, 1)
        ]
    except csv.Error as error:
        raise StrategyError(f"{path} is not a table: {error}") from error


def _cell(path: str, kind: type[Any], text: str | None) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[str(text).lower()]
        return kind(text or "")
    except (KeyError, ValueError) as error:
        raise StrategyError(f"{path} has {shown(text)}; expected {kind.__name__}") from error
