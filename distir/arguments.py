"""Arguments of Python programs, held to what their annotations say: at the front door, in one line.

An annotation such as `int | Literal["least"] | None` is read as text, so that nothing is imported
for it. What is no plain kind of value, such as a name that stands for several, is left to those who
use the value.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from distir.errors import ArgumentError, shown

__all__ = ["Checked", "checked", "plain_value"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of values: whether a value is of it, and what is expected, as alternatives."""

    holds: Callable[[Any], bool]
    words: tuple[str, ...]
    taken: Callable[[Any], Any] = lambda value: value
    """The form in which a value of another form is taken for one of this kind."""


def _is_whole(value: object) -> bool:
    return type(value) is not bool and isinstance(value, Integral)


def _is_number(value: object) -> bool:
    return type(value) is not bool and isinstance(value, Real)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _as_list(value: object) -> object:
    """What can be gone through, such as a generator, as it is gone through once; texts and mappings
    are no lists."""
    is_other = isinstance(value, (Sequence, Mapping, bytearray))
    if is_other or not isinstance(value, Iterable):
        return cast("object", value)
    return tuple(cast("Iterable[object]", value))


_KINDS = {
    "int": _Kind(_is_whole, ("a whole number",)),
    "float": _Kind(_is_number, ("a number",)),
    "str": _Kind(lambda value: isinstance(value, str), ("a text",)),
    "Path": _Kind(lambda value: isinstance(value, os.PathLike), ("a path",)),
    "bool": _Kind(lambda value: type(value) is bool, ("True", "False")),
    "None": _Kind(lambda value: value is None, ("None",)),
    "Mapping": _Kind(lambda value: isinstance(value, Mapping), ("a mapping",)),
    "Sequence": _Kind(_is_list, ("a list",), _as_list),
}

_MAKERS = {
    "Cluster": "see load_cluster",
    "Device": "see load_device",
    "LoadedModel": "see load_model",
    "Objective": "see Problem.objective",
    "Problem": "see load_problem",
    "SearchSpace": "such as Problem.space",
    "SoftwareStack": "see load_stack",
    "Strategy": "such as Strategy(dp=2)",
    "Workload": "of a model by load_model and a batch_size",
}
"""Classes whose values programs hand in, by name, and where to look for how they are made."""


class Checked:
    """A dataclass whose fields are of the kinds that their annotations say.

    Raises `ArgumentError` for the first that is not.
    """

    def __post_init__(self) -> None:
        for name, kinds in _kinds_of_fields(type(self)):
            given = getattr(self, name)
            plain = _taken(name, plain_value(given), kinds)
            if plain is not given:
                object.__setattr__(self, name, plain)


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which raises `ArgumentError` for an argument that is not of a kind that its
    annotation says."""
    annotations: dict[str, Any] = function.__annotations__
    kinds = {name: _kinds(said) for name, said in annotations.items() if name != "return"}
    names = tuple(inspect.signature(function).parameters)
    known = {name: kinds[name] for name in names if kinds.get(name)}

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        beyond = ("",) * (len(args) - len(names))
        plain = [
            _taken(name, plain_value(value), known.get(name, ()))
            for name, value in zip((*names, *beyond), args, strict=False)
        ]
        named = {
            name: _taken(name, plain_value(value), known.get(name, ()))
            for name, value in kwargs.items()
        }
        return cast("Any", function)(*plain, **named)

    return called


def plain_value(value: object) -> object:
    """A number or path as Python has it, if it is one of another library: numbers of NumPy
    overflow, and not all that is like a path is one."""
    if type(value) in (bool, int, float, str) or value is None:
        return value
    if type(value).__module__ == "numpy" and not getattr(value, "shape", True):
        return cast("Any", value).item()
    if isinstance(value, os.PathLike) and not isinstance(value, Path):
        return Path(os.fsdecode(cast("os.PathLike[str]", value)))
    return value


def _taken(name: str, value: object, kinds: Sequence[_Kind]) -> object:
    """The value in the form of one of the kinds. Raises `ArgumentError` if it is of none."""
    if not kinds or any(kind.holds(value) for kind in kinds):
        return value
    for kind in kinds:
        if kind.holds(other := kind.taken(value)):
            return other
        value = other  # it may be gone through only once
    raise ArgumentError(f"{name} is {shown(value)}; expected {_listed(kinds)}")


def _listed(kinds: Sequence[_Kind]) -> str:
    *others, last = [words for kind in kinds for words in kind.words]
    return f"{', '.join(others)} or {last}" if others else last


@cache
def _kinds_of_fields(owner: type[Any]) -> tuple[tuple[str, tuple[_Kind, ...]], ...]:
    return tuple((each.name, _kinds(each.type)) for each in fields(owner))


@cache
def _kinds(annotation: object) -> tuple[_Kind, ...]:
    """The kinds that an annotation allows; none if it allows anything that has no plain kind, or is
    no text."""
    if not isinstance(annotation, str):
        return ()
    found = [_kind(part) for part in _alternatives(ast.parse(annotation, mode="eval").body)]
    known = [kind for kind in found if kind is not None]
    return tuple(known) if len(known) == len(found) else ()


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]


def _kind(node: ast.expr) -> _Kind | None:
    if isinstance(node, ast.Subscript):
        return _subscripted(ast.unparse(node.value), node.slice)
    name = ast.unparse(node)
    if name in _MAKERS:
        article = "an" if name[0] in "AEIOU" else "a"
        words = (f"{article} {name} ({_MAKERS[name]})",)
        return _Kind(lambda value: _is_instance(value, name), words)
    return _KINDS.get(name)


def _subscripted(name: str, inside: ast.expr) -> _Kind | None:
    """The kind of `Literal[…]`, and of `Sequence[…]` with what is in it; of others what they are
    without."""
    if name == "Literal":
        parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        texts = [ast.literal_eval(part) for part in parts]
        words = tuple(map(repr, texts))
        return _Kind(lambda value: isinstance(value, str) and value in texts, words)
    whole = _KINDS.get(name)
    items = _kinds(ast.unparse(inside)) if name == "Sequence" else ()
    if whole is None or not items:
        return whole

    def holds(value: object) -> bool:
        if not whole.holds(value):
            return False
        return all(any(kind.holds(each) for kind in items) for each in cast("Any", value))

    return _Kind(holds, (f"{whole.words[0]} (each {_listed(items)})",), whole.taken)


def _is_instance(value: object, name: str) -> bool:
    """Whether a class of this name is among those of a value: no import is needed to know."""
    return any(each.__name__ == name for each in type(value).__mro__)
