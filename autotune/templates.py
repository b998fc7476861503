"""HTML from templates, and the files that it is made of, which lie in `assets`."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_QUANTITY = re.compile(r"(?<=±) |(?<=\d) (?=%|(?:[KMGT]i?)?B(?:/s)?\b|[mu]?s\b)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


def rendered(template: str, **values: Any) -> str:
    """A template, filled in; what is filled in stays text."""
    return _template(template).render(**values)


@cache
def asset(name: str) -> str:
    """The text of a file in `assets`."""
    from importlib.resources import files

    return files("autotune").joinpath("assets", name).read_text("utf-8")


@cache
def _template(name: str) -> Any:
    return _environment().from_string(asset(name))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_quantities_whole,
    )
    made.filters["options_whole"] = _options_whole
    return made


def _quantities_whole(value: Any) -> Any:
    """A text in which no line ends between a number and its unit."""
    return _QUANTITY.sub("\N{NO-BREAK SPACE}", value) if type(value) is str else value


def _options_whole(text: str) -> Any:
    """A text with options of commands as code, in which no line ends."""
    from markupsafe import Markup, escape

    return Markup(_OPTION.sub(r"<code>\g<0></code>", str(escape(_quantities_whole(text)))))


__all__ = ["asset", "rendered"]
