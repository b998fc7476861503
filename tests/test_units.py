"""Quantities are read and written with their units."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir import units
from distir.errors import DistirError

KINDS = [units.BYTES, units.SECONDS, units.FLOPS, units.FLOPS_PER_SECOND, units.BYTES_PER_SECOND]


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bytes, "80 GiB", 80 * 2**30),
        (units.parse_bytes, "80GB", 80e9),
        (units.parse_bytes, "1.5e3 kB", 1.5e6),
        (units.parse_flops_per_second, "312 TFLOP/s", 312e12),
        (units.parse_flops, "2 GFLOP", 2e9),
        (units.parse_bytes_per_second, "600 GB/s", 600e9),
        (units.parse_bytes_per_second, "200 Gbit/s", 25e9),
        (units.parse_bytes_per_second, "400 Gb/s", 50e9),
        (units.parse_seconds, "5 us", 5e-6),
        (units.parse_seconds, "  3.4 µs ", 3.4e-6),
        (units.parse_seconds, ".5 ms", 5e-4),
    ],
)
def test_a_number_and_its_unit_give_base_units(
    parse: Callable[[str], float], text: str, value: float
) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (units.parse_bytes, "80", "has no unit"),
        (units.parse_bytes, "80 GHz", "has unit 'GHz'"),
        (units.parse_bytes, "600 GB/s", "not an amount of memory"),
        (units.parse_bytes_per_second, "80 GiB", "not a bandwidth"),
        (units.parse_flops_per_second, "312 TFLOPS", "TFLOP/s"),
        (units.parse_seconds, "-5 us", "such as '5 us'"),
        (units.parse_seconds, "soon", "not a time"),
        (units.parse_seconds, "", "not a time"),
        (units.parse_seconds, "nan s", "not a time"),
        (units.parse_bytes_per_second, "100 gb/s", "with a unit (GB/s, Gb/s)"),
    ],
)
def test_a_wrong_unit_is_one_line_that_says_what_is_expected(
    parse: Callable[[str], float], text: str, says: str
) -> None:
    with pytest.raises(units.UnitError) as caught:
        parse(text)
    assert says in str(caught.value)
    assert "expected a number with a unit" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, DistirError)


@pytest.mark.parametrize("text", ["1" * 50_000 + " x y", "1" * 9 + " " * 50_000 + "y z"])
def test_a_long_text_is_refused_as_a_short_one(text: str) -> None:
    with pytest.raises(units.UnitError, match="not an amount of memory"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.format_bytes(80 * 2**30), "80 GiB"),
        (units.format_bytes(0), "0 B"),
        (units.format_bytes(1023.99999), "1 KiB"),
        (units.format_bytes(1000), "1000 B"),
        (units.format_bytes(-3 * 2**20), "-3 MiB"),
        (units.format_seconds(0.0371), "37.1 ms"),
        (units.format_seconds(3.4e-6), "3.4 us"),
        (units.format_seconds(90), "90 s"),
        (units.format_seconds(0), "0 s"),
        (units.format_seconds(86400), "86400 s"),
        (units.format_flops_per_second(312e12), "312 TFLOP/s"),
        (units.format_bytes_per_second(25e9), "25 GB/s"),
        (units.format_flops(1.23456e12, 3), "1.23 TFLOP"),
        (units.short_seconds(37_613.6), "37,614 s"),
        (units.short_seconds(999.4), "999 s"),
        (units.short_seconds(999.7), "1,000 s"),
        (units.short_number(1_234_567.8), "1,234,568"),
        (units.short_number(-1e307), "-1e+307"),
        (units.percent(-0.5), "-50.0 %"),
        (units.percent(1e304), "1e+306 %"),
    ],
)
def test_the_unit_suits_the_value(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(value=st.floats(1e-9, 1e20))
def test_what_is_written_is_read_back(kind: units.Quantity, value: float) -> None:
    assert kind.parse(kind.format(value, 17)) == pytest.approx(value, rel=1e-12)
    assert kind.parse(kind.format(value)) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_an_example_that_parses_and_a_base_unit(kind: units.Quantity) -> None:
    assert kind.parse(kind.example) > 0
    assert 1.0 in kind.factors.values()
    assert "inf" in kind.format(math.inf)


def test_everything_named_in_all_is_there() -> None:
    assert all(hasattr(units, name) for name in units.__all__)
