"""The experiment that ships constants: what it draws and what it rewrites."""

from __future__ import annotations

import pytest

from experiments.fidelity.__main__ import drawn
from experiments.fidelity.ship import replaced
from tests.validation.rows import case

TEXT = 'launch = "9 us"\nother = 1\n\n[sources]\nlaunch = "a guess"\nother = "known"\n'


def test_a_value_and_its_source_are_rewritten_and_nothing_else() -> None:
    found = replaced(TEXT, "launch", '"7 us"', "fitted")
    assert found == TEXT.replace('"9 us"', '"7 us"').replace("a guess", "fitted")


def test_a_constant_that_is_not_there_stops_it() -> None:
    with pytest.raises(SystemExit, match="speed"):
        replaced(TEXT, "speed", "1", "fitted")


def test_rows_are_drawn_by_whole_groups() -> None:
    cases = [
        case(source_group=group, global_batch=str(batch), tp=tp, dp=str(8 // int(tp)))
        for group in ("many", "few")
        for batch in ((32, 64, 128) if group == "many" else (32,))
        for tp in ("1", "2", "4")
    ]
    found = drawn(cases, most=4, seed=0)
    of_many = [each for each in found if each.row.group == "many"]
    assert len(of_many) == 6  # two groups of three: the second exceeds four, and stays whole
    assert len({each.choice_group for each in of_many}) == 2
    assert [each for each in found if each.row.group == "few"] == cases[9:]
    assert drawn(cases, most=4, seed=0) == found
