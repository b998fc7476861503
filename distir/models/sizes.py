"""Which sizes a model may have."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from distir.errors import ImportModelError, shown
from distir.limits import MOST_LAYERS, MOST_ROWS, MOST_TOKENS, MOST_WIDTH

_MOST: Mapping[str, int] = {
    "layers": MOST_LAYERS,
    "vocabulary": MOST_ROWS,
    "classes": MOST_ROWS,
    "sequence_length": MOST_TOKENS,
}
"""The largest number by field; of all other fields, `MOST_WIDTH`."""


def check_sizes(config: Any, label: str, *, needed: Collection[str] = ()) -> None:
    """Raises `ImportModelError` if a whole number of a configuration is negative or larger than
    anyone has (`distir.limits`), if one of the fields `needed` is 0, or if another number is not
    finite. `label` says in the message whose configuration it is."""
    for field in fields(config):
        value = getattr(config, field.name)
        least, most = int(field.name in needed), _MOST.get(field.name, MOST_WIDTH)
        if type(value) is int and not least <= value <= most:
            raise ImportModelError(
                f"{label}: {field.name} is {shown(value)}; expected at least {least}, "
                f"at most {most:,}"
            )
        if type(value) is float and not math.isfinite(value):
            raise ImportModelError(f"{label}: {field.name} is {value}; expected a finite number")
