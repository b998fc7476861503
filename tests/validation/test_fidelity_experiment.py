"""The experiment that ships constants: what it draws and what it rewrites."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.validation.words import read_toml_data
from experiments.fidelity.__main__ import HERE, drawn
from experiments.fidelity.origins import CODE, origins, reason_in_code
from experiments.fidelity.ship import COST, replaced, rounded_up
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


def test_every_number_rests_on_something_that_the_report_says() -> None:
    constants = read_toml_data(COST / "constants.toml")
    sources = constants.pop("sources")
    assert set(constants) == set(sources)
    assert all(len(said) > 8 for said in sources.values())
    text = "\n".join(origins())
    for name in constants:
        assert f"| {name} |" in text
    for file, name in CODE:
        assert reason_in_code(file, name)[1] in text


def test_the_report_has_every_number_of_today() -> None:
    """The tables of the report that is there are those of the files."""
    report = (HERE / "report.md").read_text(encoding="utf-8")
    assert "\n".join(origins()).strip() in report


def test_a_number_without_a_text_is_an_error() -> None:
    with pytest.raises(KeyError, match="STEP_LENGTHS"):
        reason_in_code("autotune/calibration/fit.py", "STEP_LENGTHS")


@given(st.floats(1, 1e13))
def test_known_sizes_are_never_rounded_down(size: float) -> None:
    assert size <= rounded_up(size) * (1 + 1e-12) <= size * 1.02 + 1
