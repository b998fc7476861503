"""Products that made the runs are found again from what whole runs took."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from autotune.calibration import Priced, price, products_of_runs, with_products
from autotune.cli import main
from distir.cost import MeasuredProducts, load_products, load_stack
from distir.errors import DistirError
from tests.validation.rows import case, write_csv

LARGE = {"hidden": "2048", "heads": "16", "ffn_hidden": "8192", "seq_len": "1024", "tp": "1"}
RUNS = [
    {
        **LARGE,
        "id": f"run-{micro}-{dp}-{pp}",
        "micro_batch": str(micro),
        "dp": str(dp),
        "pp": str(pp),
        "num_gpus": str(dp * pp),
        "global_batch": "16",
        "num_layers": "4",
    }
    for micro in (1, 2)
    for dp, pp in ((2, 1), (4, 1), (1, 2), (2, 2))
]
FACTORS = {1: 1.4, 2: 0.8}
"""By samples of a microbatch: how much longer all products take than the cost model says."""


@cache
def rows() -> tuple[Priced, ...]:
    """Runs in which products of some sizes took longer, and of others less long."""
    planned, _ = price([case(**run) for run in RUNS])
    assert len(planned) == len(RUNS)
    return tuple(map(_measured, planned))


def _measured(row: Priced) -> Priced:
    plain = products_of_runs([_took(row, row.seconds({}))], {})
    factor = FACTORS[int(row.case.row.text("micro_batch"))]
    points = tuple(
        replace(
            point,
            seconds=point.seconds * factor,
            launch_seconds=(point.launch_seconds or 0.0) * factor,
        )
        for point in plain.points
    )
    return _took(row, with_products(row, replace(plain, points=points)).seconds({}))


def _took(row: Priced, seconds: float) -> Priced:
    """The run, had it taken so long."""
    measured = replace(row.case.measured, seconds=seconds)
    return replace(row, case=replace(row.case, measured=measured))


def off(row: Priced, products: MeasuredProducts | None) -> float:
    """How far the run's prediction is off with a table."""
    return with_products(row, products).seconds({}) / (row.case.measured.seconds or math.nan) - 1


def test_products_of_some_runs_predict_others_with_the_same_products() -> None:
    seen, unseen = rows()[::2], rows()[1::2]
    table = products_of_runs(seen, {})
    for row in unseen:
        assert abs(off(row, None)) > 0.08
        assert abs(off(row, table)) < 0.01


def test_runs_whose_products_are_not_in_the_table_are_predicted_as_without_it() -> None:
    of_one, of_two = (
        [row for row in rows() if row.case.row.text("micro_batch") == micro] for micro in "12"
    )
    longer, _ = price([case(**{**RUNS[0], "seq_len": "1536"})])
    table = products_of_runs(of_one, {})
    assert off(of_two[0], table) == pytest.approx(off(of_two[0], None), abs=0.02)
    assert off(longer[0], table) == off(longer[0], None)


@pytest.mark.parametrize("longer", [30.0, 1 / 30])
def test_products_take_at_most_four_times_what_the_cost_model_says(longer: float) -> None:
    """However far off runs are, as times in another unit are."""
    planned, _ = price([case(**run) for run in RUNS[:2]])
    right, wrong = (
        products_of_runs([_took(row, times * row.seconds({})) for row in planned], {})
        for times in (1.0, longer)
    )
    most = 4.0 if longer > 1 else 1 / 4.0
    for one, other in zip(right.points, wrong.points, strict=True):
        assert other.seconds / one.seconds == pytest.approx(most, rel=0.01)


def test_runs_on_two_kinds_of_devices_make_no_table() -> None:
    both, _ = price([case(), case(hardware="H100")])
    with pytest.raises(DistirError, match="one kind of device"):
        products_of_runs(both, {})


def test_calibrate_writes_a_table_and_a_stack_that_names_it(tmp_path: Path) -> None:
    runs = [
        {**run, "iteration_time_s": f"{row.case.measured.seconds}"}
        for run, row in zip(RUNS, rows(), strict=True)
    ]
    file = write_csv(tmp_path / "runs.csv", *runs)
    table, stack = tmp_path / "lab-products.toml", tmp_path / "lab.toml"
    arguments = ["--constants", "product_efficiency", "--products", str(table)]
    assert main(["calibrate", str(file), *arguments, "--output", str(stack), "--json", "-"]) == 0
    assert load_stack(stack).products == load_products(table)
    assert main(["validate", str(file), "--products", str(table), "--json", "-"]) == 0
