"""How reasons and advice name choices and their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence


def product(degrees: Mapping[str, int]) -> str:
    """`dp x tp = 2 x 4 = 8`."""
    values = " x ".join(str(degree) for degree in degrees.values())
    total = f" = {math.prod(degrees.values())}" if len(degrees) > 1 else ""
    return f"{' x '.join(degrees)} = {values}{total}"


def would_do(values: Mapping[str, Sequence[object]]) -> str:
    """`tp = 1, 2, 4 or pp at most 12 would do`, of the values that each choice could have."""
    return f"{' or '.join(_named(name, some) for name, some in values.items())} would do"


def _named(name: str, values: Sequence[object]) -> str:
    if len(values) > 3 and list(values) == list(range(1, len(values) + 1)):
        return f"{name} at most {len(values)}"
    return f"{name} = {listed(values)}"


def listed(values: Iterable[object], most: int = 16) -> str:
    """`values` separated by commas; long lists are shortened in the middle."""
    words = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    if len(words) > most:
        words = [*words[: most - 2], "…", words[-1]]
    return ", ".join(words)


__all__ = ["listed", "product", "would_do"]
