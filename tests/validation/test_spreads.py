"""The band's deviations are found again from residuals that were made with them."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from autotune.calibration.spreads import RowResidual, coverage, spreads_of
from autotune.validation import Case
from tests.validation.rows import case

SOURCES = [f"source {number}" for number in range(60)]
LAYOUTS: list[dict[str, str]] = [
    {"dp": "8", "tp": "1"},
    {"dp": "4", "tp": "2"},
    {"dp": "2", "tp": "4"},
]


def rows_of(source: str) -> list[list[Case]]:
    """By layout: plans of one problem that differ in the size of microbatches alone."""
    return [
        [
            case(id=f"{source} {at} {micro}", source_group=source, micro_batch=micro, **layout)
            for micro in ("1", "2", "4")
        ]
        for at, layout in enumerate(LAYOUTS)
    ]


def drawn(shared: float, layout: float, plan: float, seed: int = 0) -> list[RowResidual]:
    """Residuals with these deviations, normally distributed."""
    chance = random.Random(seed)
    found: list[RowResidual] = []
    for source in SOURCES:
        of_source = chance.gauss(0.0, shared)
        for cases in rows_of(source):
            of_layout = chance.gauss(0.0, layout)
            found += [
                RowResidual(each, of_source + of_layout + chance.gauss(0.0, plan)) for each in cases
            ]
    return found


def test_deviations_are_found_again() -> None:
    band = spreads_of(drawn(0.08, 0.06, 0.03), ())
    assert band.source == pytest.approx(0.08, rel=0.3)
    assert band.layout == pytest.approx(math.hypot(0.06, 0.03 / math.sqrt(3)), rel=0.2)
    assert band.repeat == pytest.approx(0.03, rel=0.2)
    # Of a normal distribution, which this is: one and two deviations.
    assert band.width == pytest.approx(1.0, rel=0.2)
    assert band.width95 == pytest.approx(2.0, rel=0.2)
    assert band.model == 0.0


def test_the_mean_of_sources_has_the_shares_within_the_widths() -> None:
    residuals = drawn(0.1, 0.02, 0.05, seed=1)
    band = spreads_of(residuals, ())
    for wide, share in ((False, 0.68), (True, 0.95)):
        inside = coverage(residuals, band, wide=wide)
        assert set(inside) == set(SOURCES)
        assert sum(inside.values()) / len(inside) == pytest.approx(share, abs=0.01)


def test_sources_count_alike_whatever_their_rows() -> None:
    """A source with ten times the rows of the others does not move what sources share."""
    own = [RowResidual(case(id=str(at), source_group="a"), 0.2) for at in range(100)]
    other = [RowResidual(case(id=str(at), source_group="b"), -0.1) for at in range(3)]
    assert spreads_of([*own, *other], ()).source == pytest.approx(math.sqrt((0.04 + 0.01) / 2))


def test_sources_that_doubt_themselves_tell_nothing() -> None:
    own = [RowResidual(case(id=str(at)), 0.1) for at in range(4)]
    doubts = [replace(each, case=replace(each.case, stated_spread=0.4), value=2.0) for each in own]
    assert spreads_of([*own, *doubts], ()) == spreads_of(own, ())


def test_mixtures_lie_within_their_own_band() -> None:
    dense = drawn(0.05, 0.02, 0.02)
    experts = {"gated_mlp": "yes", "kv_heads": "2", "num_experts": "8", "moe_topk": "2", "ep": "4"}
    chance = random.Random(2)
    mixtures = [
        RowResidual(case(id=str(at), source_group="mixtures", **experts), chance.gauss(0.0, 0.3))
        for at in range(200)
    ]
    band = spreads_of(dense, mixtures)
    # Two deviations are a factor of exp(0.6), which is 82 % more.
    assert 0.3 <= band.model <= 1.2 * math.expm1(0.6) / 2
    assert replace(band, model=0.0) == spreads_of(dense, ())
    assert coverage(mixtures, band, wide=False)["mixtures"] >= 0.68
    assert coverage(mixtures, band, wide=True)["mixtures"] >= 0.95


def mixtures_of(notes: str, deviation: float, seed: int) -> list[RowResidual]:
    experts = {"gated_mlp": "yes", "kv_heads": "2", "num_experts": "8", "moe_topk": "2", "ep": "4"}
    chance = random.Random(seed)
    return [
        RowResidual(
            case(id=f"{notes} {at}", source_group="mixtures", notes=notes, **experts),
            chance.gauss(0.0, deviation),
        )
        for at in range(200)
    ]


def test_mixtures_that_say_nothing_of_their_dispatcher_have_a_band_of_their_own() -> None:
    dense = drawn(0.05, 0.02, 0.02)
    told, silent = mixtures_of("dispatcher deepep", 0.1, 3), mixtures_of("", 0.4, 4)
    band = spreads_of(dense, [*told, *silent])
    assert band.dispatcher > 2 * band.model > 0
    for rows in (told, silent):
        for wide, share in ((False, 0.68), (True, 0.95)):
            inside = coverage(rows, band, wide=wide)["mixtures"]
            assert inside >= share - 0.01
    assert coverage(told, band, wide=False)["mixtures"] < 0.9


def test_sources_of_two_rows_hardly_tell_what_mixtures_add() -> None:
    """A source with ten rows or more counts as ten, one of two rows as two."""
    dense = drawn(0.05, 0.02, 0.02)
    many = mixtures_of("dispatcher deepep", 0.3, 6)
    few = [
        replace(each, value=0.0, case=replace(each.case, row=own))
        for each in many[:2]
        for own in (
            replace(each.case.row, values={**each.case.row.values, "source_group": name})
            for name in ("a", "b")
        )
    ]
    alone, beside = spreads_of(dense, many).model, spreads_of(dense, [*many, *few]).model
    assert 0.7 * alone < beside < alone


def test_rows_that_do_not_say_their_software_have_a_band_of_their_own() -> None:
    dense = drawn(0.05, 0.02, 0.02)
    chance = random.Random(5)
    unknown = [
        RowResidual(replace(each.case, software_known=False), chance.gauss(0.0, 0.3))
        for each in dense
    ]
    band = spreads_of(dense, (), unknown)
    assert replace(band, software=0.0) == spreads_of(dense, ())
    near, far = (list(coverage(unknown, band, wide=wide).values()) for wide in (False, True))
    assert sum(near) / len(near) >= 0.68 - 0.01
    assert sum(far) / len(far) >= 0.95 - 0.01
