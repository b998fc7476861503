"""What a text of a program may name: op classes, and records that are attributes of ops.

An op class is registered where it is defined, and so is known once its module is imported. A name
that is not known yet has distir's own ops imported (the front door says where they are), and what
packages offer in the entry-point group `distir.ops`, each under the name of an op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from distir.ir.core import Op
from distir.registry import Registry

OPS: Registry[type[Op]] = Registry("op", group="distir.ops")
"""Op classes by the name that texts and messages have for them."""

ATTRIBUTE_RECORDS: Registry[type[Any]] = Registry("attribute record")
"""Dataclasses, other than ops, that attributes of ops may be made of."""

OpClassType = TypeVar("OpClassType", bound=type[Op])
RecordClassType = TypeVar("RecordClassType", bound=type[Any])


def register_op(name: str) -> Callable[[OpClassType], OpClassType]:
    """Registers an op class under its name. Outermost decorator: `slots=True` makes a new class."""

    def decorate(cls: OpClassType) -> OpClassType:
        cls.name = name
        OPS.add(name, cls, (cls.__doc__ or "").strip().split("\n")[0])
        return cls

    return decorate


def attribute_record(cls: RecordClassType) -> RecordClassType:
    """Registers a dataclass under its own name, so that ops which have it among their attributes
    can be written and read. Outermost decorator: `slots=True` makes a new class."""
    ATTRIBUTE_RECORDS.add(cls.__name__, cls)
    return cls
