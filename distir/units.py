"""Numbers with units: parsed where they enter the program, formatted where they leave it.

Inside the code every quantity is a float in base units (bytes, seconds, FLOP, bytes per second,
FLOP per second) and its name says which. Decimal and binary prefixes are kept apart: `GB` is 1e9
bytes, `GiB` is 2^30 bytes, `Gbit/s` (as network links are sold) is 1e9 / 8 bytes per second.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

from distir.errors import DistirError, shown

__all__ = [
    "BYTES",
    "BYTES_PER_SECOND",
    "FLOPS",
    "FLOPS_PER_SECOND",
    "SECONDS",
    "WATTS",
    "Quantity",
    "Unit",
    "UnitError",
    "counted",
    "format_bytes",
    "format_bytes_per_second",
    "format_flops",
    "format_flops_per_second",
    "format_seconds",
    "parse_bytes",
    "parse_bytes_per_second",
    "parse_flops",
    "parse_flops_per_second",
    "parse_seconds",
    "percent",
    "short_bytes",
    "short_days",
    "short_number",
    "short_seconds",
    "unit_of",
]

_NUMBER_AND_UNIT = re.compile(
    r"((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([^\s0-9.]\S*)?"
)
"""No text matches in two ways, so that a long one is refused as soon as a short one."""

_DECIMAL = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"": 1.0, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


class UnitError(DistirError, ValueError):
    """A text is not a number with a unit of the expected kind."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A kind of quantity, with the units in which it is read and shown."""

    name: str
    """What error messages call it, with its article."""
    example: str
    """A text that parses."""
    factors: Mapping[str, float] = field(repr=False)
    """Base units per unit, for every unit that is understood."""
    shown: tuple[str, ...] = field(repr=False)
    """Units used for printing, smallest first."""

    def parse(self, text: str) -> float:
        """The value of a text such as "80 GiB" in base units.

        Raises `UnitError` if the text is not a number with a known unit of this quantity.
        """
        match = _NUMBER_AND_UNIT.fullmatch(text.strip())
        if match is None:
            sign = ": it is negative" if _NUMBER_AND_UNIT.fullmatch(text.strip()[1:]) else ""
            raise UnitError(f"{shown(text)} is not {self.name}{sign}; expected {self._expected()}")
        number, unit = match[1], match[2] or ""
        if unit not in self.factors:
            problem = f"has unit {shown(unit)}" if unit else "has no unit"
            raise UnitError(
                f"{shown(text)} is not {self.name}: it {problem}; expected {self._expected(unit)}"
            )
        # In decimal, so that 10 us is 1e-5 s exactly.
        return float(Decimal(number) * Decimal(repr(self.factors[unit])))

    def format(self, value: float, digits: int = 4) -> str:
        """A value in base units as text: `digits` significant digits, in the largest unit in which
        it is at least 1."""
        unit = self.shown[0]
        for candidate in self.shown:
            if abs(value) >= self.factors[candidate] * (1 - 0.5 * 10.0**-digits):
                unit = candidate
        if value == 0 or not math.isfinite(value):
            unit = self.shown[0] if value != 0 else self._base_unit()
        return f"{_plain(value / self.factors[unit], digits)} {unit}"

    def _base_unit(self) -> str:
        return next(unit for unit, factor in self.factors.items() if factor == 1.0)

    def _expected(self, unit: str = "") -> str:
        alike = [known for known in self.factors if known.lower() == unit.lower()]
        near = difflib.get_close_matches(unit, self.factors, n=3, cutoff=0.5) if unit else []
        units = ", ".join(alike or near or self.shown)
        return f"a number with a unit ({units}), such as {self.example!r}"


def _plain(number: float, digits: int) -> str:
    """A number with `digits` significant digits; with an exponent only from a million on."""
    text = f"{number:.{digits}g}"
    return f"{number:.0f}" if "e+" in text and abs(number) < 1e6 else text


def _prefixed(unit: str, *prefixes: Mapping[str, float], scale: float = 1.0) -> dict[str, float]:
    return {p + unit: factor * scale for table in prefixes for p, factor in table.items()}


BYTES = Quantity(
    "an amount of memory",
    "80 GiB",
    {**_prefixed("B", _DECIMAL, _BINARY), "kB": 1e3},
    ("B", "KiB", "MiB", "GiB", "TiB", "PiB"),
)
SECONDS = Quantity(
    "a time",
    "5 us",
    {
        "s": 1.0,
        "ms": 1e-3,
        "us": 1e-6,
        "µs": 1e-6,
        "μs": 1e-6,
        "ns": 1e-9,
        "min": 60.0,
        "h": 3600.0,
    },
    ("ns", "us", "ms", "s"),
)
FLOPS = Quantity(
    "a number of floating-point operations",
    "2.5 TFLOP",
    _prefixed("FLOP", _DECIMAL),
    tuple(prefix + "FLOP" for prefix in _DECIMAL),
)
FLOPS_PER_SECOND = Quantity(
    "a rate of floating-point operations",
    "312 TFLOP/s",
    _prefixed("FLOP/s", _DECIMAL),
    tuple(prefix + "FLOP/s" for prefix in _DECIMAL),
)
BYTES_PER_SECOND = Quantity(
    "a bandwidth",
    "600 GB/s",
    {
        **_prefixed("B/s", _DECIMAL, _BINARY),
        **_prefixed("bit/s", _DECIMAL, scale=1 / 8),
        **_prefixed("b/s", _DECIMAL, scale=1 / 8),
    },
    tuple(prefix + "B/s" for prefix in _DECIMAL),
)

WATTS = Quantity(
    "a power", "700 W", {"mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6}, ("mW", "W", "kW", "MW")
)

parse_bytes = BYTES.parse
parse_seconds = SECONDS.parse
parse_flops = FLOPS.parse
parse_flops_per_second = FLOPS_PER_SECOND.parse
parse_bytes_per_second = BYTES_PER_SECOND.parse
format_bytes = BYTES.format
format_seconds = SECONDS.format
format_flops = FLOPS.format
format_flops_per_second = FLOPS_PER_SECOND.format
format_bytes_per_second = BYTES_PER_SECOND.format

Unit: TypeAlias = Callable[[float], str]
"""Writes a number for people to read among others: about three digits, its unit behind them."""


def short_seconds(seconds: float) -> str:
    """`0.105` as `105 ms`, `37614` as `37,614 s`."""
    if 999.5 <= abs(seconds) < _LONG:
        return f"{short_number(seconds)} s"
    return format_seconds(seconds, digits=3)


def short_days(seconds: float) -> str:
    """`86400` as `1 d`, what is less than a day in hours, minutes or seconds."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{short_number(seconds / length)} {unit}"
    return short_seconds(seconds)


def counted(count: int, what: str, plural: str = "s") -> str:
    """`1 chunk`, `2 chunks`, `3,000 strategies`."""
    several = f"{what[:-1]}ies" if what.endswith("y") else f"{what}{plural}"
    return f"{count:,} {what if count == 1 else several}"


def short_bytes(size: float) -> str:
    """`2 ** 30` as `1 GiB`."""
    return format_bytes(size, digits=3)


_LONG = 1e15
"""From here on numbers are written with an exponent: more digits are not read, and not exact."""


def percent(fraction: float) -> str:
    """`0.0123` as `1.2 %`."""
    value = 100 * fraction
    return f"{value:.1f} %" if abs(value) < _LONG else f"{value:.3g} %"


def short_number(value: float) -> str:
    """`2437.3` as `2,437`, `1.2345` as `1.23`, `1e307` as `1e+307`."""
    return f"{value:,.0f}" if 100 <= abs(value) < _LONG else f"{value:.3g}"


_BY_ENDING: Mapping[str, Unit] = {
    "_seconds": short_seconds,
    "_bytes": short_bytes,
    "_fraction": percent,
}


def unit_of(name: str) -> Unit:
    """The unit that the name of a quantity ends in; a plain number if it ends in none."""
    endings = (unit for ending, unit in _BY_ENDING.items() if name.endswith(ending))
    return next(endings, short_number)
