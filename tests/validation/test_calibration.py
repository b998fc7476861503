"""`autotune calibrate`: constants that made the runs are found again, and what the runs cannot tell
is refused. The runs are made by the simulator itself."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.calibration import Constant, calibrate, known_constants, stack_text
from autotune.calibration.fit import Fitted, fit, fit_linear, row_weights
from autotune.calibration.folds import halves, leave_sources_out, pinning_source
from autotune.calibration.pricing import price
from autotune.cli import main
from autotune.cli.calibrate import UNTIMED
from autotune.validation import Case
from autotune.validation.cases import COPY
from distir.cost import load_stack
from distir.errors import DistirError
from tests.validation.rows import case, write_csv

TRUE = {"product_efficiency": 0.6, "eager_launch_seconds": 30e-6}
"""Both at least a standard deviation away from what is believed before."""

NODE = {"num_gpus": "8", "dp": "8", "tp": "1", "pp": "1", "vocab": "1024"}
LARGE = {"hidden": "4096", "heads": "32", "ffn_hidden": "16384", "seq_len": "1024"}
RUNS = [
    {
        **NODE,
        **size,
        "source_group": group,
        "global_batch": str(8 * micro),
        "micro_batch": str(micro),
    }
    for group in ("here", "there")
    for size in (LARGE, {})
    for micro in (1, 2, 4)
]


@pytest.fixture(scope="module")
def made() -> list[Case]:
    """Runs on one node that took as long as the simulator says with the true constants."""
    priced, _ = price([case(**run, id=f"run-{number}") for number, run in enumerate(RUNS)])
    assert len(priced) == len(RUNS)
    return [
        replace(row.case, measured=replace(row.case.measured, seconds=row.seconds(TRUE)))
        for row in priced
    ]


def constants(*names: str) -> list[Constant]:
    return [each for each in known_constants() if each.name in names]


def test_constants_that_made_the_runs_are_found_again(made: list[Case]) -> None:
    found = calibrate(made, constants(*TRUE))
    for each in found.constants:
        assert each.fitted
        assert each.value == pytest.approx(TRUE[each.name], rel=0.05)
        assert each.interval is not None
        assert each.interval[0] < TRUE[each.name] < each.interval[1]
        assert each.pinned_by is None
        assert sum(each.told_by.values()) == pytest.approx(1.0, abs=0.05)
    assert found.mean_mape < 0.03
    assert found.mean_unseen_mape < 0.05


def test_a_source_that_was_left_out_is_predicted_by_the_other(made: list[Case]) -> None:
    found = calibrate(made, constants(*TRUE))
    for source in found.sources.values():
        assert source.unseen_mape >= source.mape - 0.01
        assert source.rows == len(RUNS) / 2


@pytest.mark.parametrize("quicker", [0.7, 0.9])
def test_runs_quicker_than_any_efficiency_allows_are_fitted_at_its_limit(
    made: list[Case], quicker: float, tmp_path: Path
) -> None:
    """What is reported and written is what the fit was made with, and no fraction is above 1."""
    priced, _ = price(made)
    best = {"product_efficiency": 0.98}
    rows = [
        replace(row.case, measured=replace(row.case.measured, seconds=quicker * row.seconds(best)))
        for row in priced
    ]
    found = calibrate(rows, constants("product_efficiency"))
    (constant,) = found.constants
    assert constant.fitted
    assert constant.value == pytest.approx(0.98)
    assert constant.interval is not None
    assert constant.without_sources is not None
    assert max(*constant.interval, *constant.without_sources) <= 0.98 + 1e-9
    assert found.residuals == pytest.approx(-math.log(quicker))
    path = tmp_path / "lab.toml"
    path.write_text(stack_text(found, load_stack("megatron"), "lab", "runs.csv"))
    assert load_stack(path).product_efficiency == 0.98


def test_the_others_make_the_best_of_a_constant_at_its_limit() -> None:
    """As if it were not to be fitted."""
    jacobian = np.array([[1.0, 0.5], [0.2, 1.0], [0.6, 0.6], [1.0, 0.0]])
    residuals, weights, spreads = np.full(4, -0.3), np.ones(4), np.ones(2)
    limits = np.array([-np.inf, -np.inf]), np.array([0.05, np.inf])
    start = np.zeros(2)
    found = fit_linear(start, residuals, jacobian, weights, spreads, limits)
    assert fit_linear(start, residuals, jacobian, weights, spreads)[0] > 0.05
    assert found[0] == 0.05
    left = residuals + jacobian[:, 0] * 0.05
    alone = fit_linear(start[1:], left, jacobian[:, 1:], weights, spreads[1:])
    assert found[1] == pytest.approx(alone[0], abs=1e-5)


def test_what_the_rows_cannot_tell_is_kept(made: list[Case]) -> None:
    """All runs are on one node: nothing crosses the network."""
    found = calibrate(made, constants("product_efficiency", "network_link_efficiency"))
    by_name = {each.name: each for each in found.constants}
    network = by_name["network_link_efficiency"]
    assert not network.fitted
    assert network.value == network.prior
    assert network.interval is None
    assert network.identified == pytest.approx(0.0, abs=1e-6)
    assert by_name["product_efficiency"].fitted


def test_nothing_to_tell_is_an_error(made: list[Case]) -> None:
    with pytest.raises(DistirError, match="network_link_efficiency"):
        calibrate(made, constants("network_link_efficiency"))
    with pytest.raises(DistirError, match="nothing to fit to"):
        calibrate([], constants("product_efficiency"))


def test_the_written_stack_costs_as_fitted(made: list[Case], tmp_path: Path) -> None:
    found = calibrate(made, constants(*TRUE))
    path = tmp_path / "lab.toml"
    path.write_text(stack_text(found, load_stack("megatron"), "lab", "runs.csv"))
    stack = load_stack(path)
    assert stack.name == "lab"
    assert stack.dispatch == load_stack("megatron").dispatch
    for each in found.constants:
        assert getattr(stack, each.name) == pytest.approx(each.value, rel=5e-3)
    assert stack.memory_efficiency == load_stack("megatron").memory_efficiency


def test_the_written_stack_is_read_whatever_its_runs_are_called(
    made: list[Case], tmp_path: Path
) -> None:
    """Names of files and sources are a user's: quotes, backslashes and characters beyond ASCII."""
    odd = 'a "b" \\ \U0001f600 \x7f'
    found = calibrate(made, constants(*TRUE))
    found = replace(
        found, constants=tuple(replace(each, pinned_by=odd) for each in found.constants)
    )
    path = tmp_path / "lab.toml"
    path.write_text(stack_text(found, load_stack("megatron"), odd, odd), encoding="utf-8")
    stack = load_stack(path)
    assert stack.name == odd
    assert stack.sources["product_efficiency"].endswith(f"pinned by {odd}")


def test_the_command_writes_a_stack(
    made: list[Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [{**each.row.values, "iteration_time_s": repr(each.measured.seconds)} for each in made]
    file, stack = write_csv(tmp_path / "runs.csv", *runs), tmp_path / "lab.toml"
    arguments = ["calibrate", str(file), "--constants", "product_efficiency,eager_launch_seconds"]
    assert main([*arguments, "--hardware", "A100", "--output", str(stack), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["constants"]["product_efficiency"]["value"] == pytest.approx(0.6, rel=0.05)
    assert set(found["sources"]) == {"here", "there"}
    assert load_stack(stack).product_efficiency == pytest.approx(0.6, rel=0.05)


def test_rows_that_are_left_out_are_counted_by_reason(
    made: list[Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row that stands there twice counts once; one that differs in its name is another run."""
    runs = [{**each.row.values, "iteration_time_s": repr(each.measured.seconds)} for each in made]
    others = [
        runs[0],
        {**runs[1], "id": "again"},
        {**runs[2], "hardware": "abacus", "id": "other"},
        {
            **runs[3],
            "iteration_time_s": "",
            "peak_memory_gb": "3",
            "mem_unit": "GiB",
            "id": "memory",
        },
    ]
    file = write_csv(tmp_path / "runs.csv", *runs, *others)
    arguments = ["calibrate", str(file), "--constants", "product_efficiency", "--quiet"]
    assert main([*arguments, "--json", "-"]) == 0
    plain = json.loads(capsys.readouterr().out)
    excluded = plain["rows_excluded"]
    assert excluded[COPY] == excluded[UNTIMED] == 1
    assert sum(excluded.values()) == 3
    assert sum(each["rows"] for each in plain["sources"].values()) == len(runs) + 1
    assert main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"fitted to {len(runs) + 1} rows of 2 sources; 3 were left out" in said
    assert all(reason[:30] in said for reason in excluded)


def test_where_no_row_is_left_the_reasons_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_csv(tmp_path / "runs.csv", {"hardware": "abacus"}, {"hardware": "abacus"})
    assert main(["calibrate", str(file)]) == 2
    error = capsys.readouterr().err
    assert "nothing to fit: 1 x " in error
    assert COPY in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [["--hardware", "H100"], ["--source", "nowhere"], ["--constants", "speed_of_light"]],
)
def test_unknown_names_give_one_line(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_csv(tmp_path / "runs.csv", RUNS[0])
    assert main(["calibrate", str(file), *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- the regression ------------------------------------------------------------------------------


def linear(rows: int = 40, columns: int = 2) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    return chance.normal(size=(rows, columns)), chance.normal(size=columns) * 0.3


def test_a_linear_problem_is_solved_but_for_the_pull_of_the_prior() -> None:
    jacobian, true = linear()
    weights, spreads = np.ones(40), np.full(2, 10.0)

    def residuals(x: np.ndarray) -> np.ndarray:
        return jacobian @ (x - true)

    found = fit(residuals, lambda x, at: jacobian, weights, spreads, np.zeros(2))
    assert found.x == pytest.approx(true, abs=1e-3)


def test_few_outliers_hardly_move_the_fit() -> None:
    jacobian, true = linear()
    residuals = jacobian @ -true
    residuals[:4] += 3.0
    x = fit_linear(np.zeros(2), residuals, jacobian, np.ones(40), np.full(2, 10.0))
    assert x == pytest.approx(true, abs=0.05)


def test_without_rows_that_tell_the_prior_stays() -> None:
    spreads = np.array([0.1, 0.2])
    fitted = Fitted(np.zeros(2), np.zeros(3), np.zeros((3, 2)), np.ones(3), spreads)
    assert fitted.identified == pytest.approx([0.0, 0.0])


def test_sources_count_alike_however_many_rows_they_have() -> None:
    sources = ["many"] * 500 + ["some"] * 20 + ["few"] * 3
    weights = row_weights([case(source_group=source) for source in sources])
    assert weights[:500].sum() == pytest.approx(weights[500:520].sum())
    assert weights[520:].sum() == pytest.approx(3.0)


def test_a_row_counts_less_where_its_source_says_how_far_it_may_be_off() -> None:
    """40 % against what a good model leaves, 6 %."""
    doubtful = case(notes="SOURCE WARNS +/-40% run-to-run variation")
    sure, unsure = row_weights([case(), doubtful])
    assert doubtful.stated_spread == 0.4
    assert unsure / sure == pytest.approx(1 / (1 + (0.4 / 0.06) ** 2))


def test_a_source_that_alone_depends_on_a_constant_pins_it(made: list[Case]) -> None:
    sources = [each.row.group for each in made]
    jacobian = np.array([[1.0, float(source == "here")] for source in sources])
    count = len(sources)
    residuals = np.where(np.array(sources) == "here", 0.2, 0.0)
    x = fit_linear(np.zeros(2), residuals, jacobian, np.ones(count), np.ones(2))
    fitted = Fitted(x, residuals + jacobian @ x, jacobian, np.ones(count), np.ones(2))
    assert pinning_source(fitted, sources, 0) is None
    assert pinning_source(fitted, sources, 1) == "here"
    # Judged by its other half, the source is still understood; by its absence it would not be.
    unseen = leave_sources_out(fitted, made)
    own = np.array(sources) == "here"
    assert np.abs(unseen.residuals[own]).max() < 0.01


def test_halves_of_a_source_share_no_group(made: list[Case]) -> None:
    own = np.array([each.row.group == "here" for each in made])
    first, second = halves(made, own)
    assert not (first & second).any()
    assert ((first | second) == own).all()
    groups = [{made[i].choice_group for i in np.flatnonzero(part)} for part in (first, second)]
    assert groups[0].isdisjoint(groups[1])
