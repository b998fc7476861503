"""HTML from templates, and the files that it is made of, which lie in `assets`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def rendered(template: str, **values: Any) -> str:
    """A template, filled in; what is filled in stays text."""
    return _template(template).render(**values)


@cache
def asset(name: str) -> str:
    """The text of a file in `assets`."""
    return files("autotune").joinpath("assets", name).read_text("utf-8")


@cache
def _template(name: str) -> Any:
    return _environment().from_string(asset(name))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


__all__ = ["asset", "rendered"]
