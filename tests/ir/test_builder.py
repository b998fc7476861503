"""A function is built of a list of outputs."""

from __future__ import annotations

from typing import Any, cast

import pytest

from distir import Builder
from distir.errors import ArgumentError


def test_one_value_is_no_list_of_outputs() -> None:
    builder = Builder("identity")
    value = builder.input("x", (2, 3))
    with pytest.raises(ArgumentError, match=r"expected a list of values: build\(\[value\]\)"):
        builder.build(cast("Any", value))
    assert builder.build([value]).outputs == (value,)
