"""A space that streams by: what is kept depends neither on chunks nor on processes."""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import load_problem
from autotune.exhaustive.chunks import (
    FIRST_AT_ONCE,
    MOST,
    MOST_AT_ONCE,
    MOST_HALVED,
    MOST_PROGRAMS,
    QUICK_SECONDS,
    Chunk,
    chunks_here,
    size_after,
    stretches,
)
from autotune.exhaustive.collect import Collector, second_metric
from autotune.exhaustive.grid import Grid, evaluate_grid, grid_of
from autotune.jobs import chunks_in_processes
from autotune.objectives import Evaluation, Objective
from autotune.objectives.columns import Evaluations
from autotune.page.compact import grid_in_short
from autotune.page.reports import grid_page, study_page
from autotune.rendering import as_text
from autotune.reports.grid import grid_report
from autotune.search import Search
from autotune.solving import solve
from autotune.statement import Goal
from autotune.study.trial import Trial, best_of_layouts, closest_of, pareto_front, ranked
from autotune.tables.columns import Coded, TableColumn
from autotune.tables.csv_text import header, lines
from autotune.tables.files import table_file
from autotune.testing import ToySimulator, toy_problem
from distir.errors import DistirError
from distir.plan import Planner
from distir.strategy import Strategy
from distir.workload import Workload
from search_spaces.columns import SpaceColumns


def evaluation(kind: int, cost: float, memory: float) -> Evaluation:
    if kind == 0:
        return Evaluation.failure("broken" if cost > 2 else "lost")
    metrics = {"seconds": cost, "peak_memory_bytes": memory}
    if kind == 1:
        return Evaluation(metrics, feasible=False, reason="too large", violation=memory)
    return Evaluation(metrics)


few = st.integers(0, 4).map(float)
evaluations = st.lists(st.builds(evaluation, st.integers(0, 5), few, few), max_size=40)


def trials_of(objective: Objective, found: Sequence[Evaluation]) -> list[Trial]:
    return [
        Trial(number, Strategy(dp=1 + number % 3, tp=1 + number), each, objective.cost(each))
        for number, each in enumerate(found)
    ]


def cut(trials: Sequence[Trial], borders: Sequence[int]) -> Iterator[Chunk]:
    bounds = sorted({0, len(trials), *(border for border in borders if border < len(trials))})
    for begin, end in itertools.pairwise(bounds):
        part = trials[begin:end]
        costs = np.array([math.nan if each.cost is None else each.cost for each in part])
        found = Evaluations.of([each.evaluation for each in part])
        yield Chunk(np.arange(begin, end), [each.strategy for each in part], found, costs, 0.0, 0.0)


@given(evaluations, st.lists(st.integers(1, 40)), st.integers(1, 12))
def test_what_is_kept_is_what_sorting_everything_keeps(
    found: list[Evaluation], borders: list[int], top: int
) -> None:
    objective = Objective("toy", lambda strategy: 0.0, metric="seconds")
    trials = trials_of(objective, found)
    kept = Collector(objective, top)
    for chunk in cut(trials, borders):
        kept.add(chunk)
    assert kept.evaluated == len(trials)
    assert kept.feasible == len(ranked(trials))
    assert list(kept.ranked) == ranked(trials)[:top]
    assert list(kept.front) == pareto_front(trials)
    assert list(kept.layouts) == best_of_layouts(trials)
    assert kept.closest == closest_of(trials)
    assert kept.best == next(iter(ranked(trials)), None)
    assert sorted(kept.costs) == [trial.cost for trial in ranked(trials)]
    assert kept.failures.total() == sum(trial.failed for trial in trials)
    best = math.inf
    for trial in kept.improvements:
        assert trial.cost is not None
        assert trial.cost < best
        best = trial.cost
    assert not kept.costs or best == min(kept.costs)


def test_memory_is_weighed_against_time() -> None:
    assert second_metric("peak_memory_bytes") == "iteration_seconds"
    assert second_metric("mfu") == "peak_memory_bytes"


@pytest.mark.parametrize("at_once", [True, False])
def test_chunks_cover_the_space_once(at_once: bool) -> None:
    problem = toy_problem()
    simulated = problem.objective("throughput")
    objective = simulated if at_once else problem.objective(problem.simulate)
    chunks = list(chunks_here(problem.space, objective))
    numbers = [int(number) for chunk in chunks for number in chunk.numbers]
    assert sorted(numbers) == list(range(problem.space.count()))
    for chunk in chunks:
        assert list(chunk.strategies) == [problem.space.at(int(n)) for n in chunk.numbers]


@given(st.lists(st.integers(1, 10**6), max_size=40))
def test_stretches_follow_each_other(sizes: list[int]) -> None:
    borders = np.cumsum(sizes, dtype=np.int64)
    parts = list(stretches(borders))
    assert [first for first, _ in parts] == list(accumulate((n for _, n in parts), initial=0))[:-1]
    assert sum(size for _, size in parts) == sum(sizes)
    assert all(0 < size <= MOST_AT_ONCE for _, size in parts)
    if sum(sizes) > MOST_HALVED:
        assert parts[0][1] <= FIRST_AT_ONCE


@given(st.lists(st.integers(100, 1000), min_size=3, max_size=32))
def test_a_small_space_is_two_halves(sizes: list[int]) -> None:
    (_, first), (_, second) = stretches(np.cumsum(sizes, dtype=np.int64))
    assert abs(first - second) <= max(sizes)


@given(st.lists(st.integers(1, FIRST_AT_ONCE // 2), max_size=500))
def test_stretches_end_where_programs_differ(sizes: list[int]) -> None:
    """As long as no program has more strategies than half of the smallest chunk wants."""
    borders = np.cumsum(sizes, dtype=np.int64)
    ends = [first + size for first, size in stretches(borders)]
    assert set(ends) <= set(borders.tolist())


@pytest.mark.parametrize("model", ["gpt2", "mixtral-8x7b"])
def test_programs_that_are_shared_are_in_one_chunk(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found out about blocks that kinds of program have in common is found out once."""
    for name in ("FIRST_AT_ONCE", "LEAST_AT_ONCE"):
        monkeypatch.setattr(f"autotune.exhaustive.chunks.{name}", 500)
    monkeypatch.setattr("autotune.exhaustive.chunks.MOST_HALVED", 0)
    problem = load_problem(model, devices=8, space="standard")
    assert isinstance(problem.workload, Workload)
    planner, table = Planner(problem.workload), SpaceColumns(problem.space)
    chunks = [table.taken(*stretch)[1] for stretch in stretches(table.borders)]
    assert len(chunks) > 2
    shared = [{planner.kind(each).sharing for each in chunk} for chunk in chunks]
    assert sum(map(len, shared)) == len({each for own in shared for each in own})


@given(st.lists(st.integers(1, 50), max_size=1000))
def test_stretches_have_few_programs(sizes: list[int]) -> None:
    borders = np.cumsum(sizes, dtype=np.int64)
    for first, size in stretches(borders):
        inside = (borders > first) & (borders <= first + size)
        assert inside.sum() <= MOST_PROGRAMS


def outcome(grid: Grid) -> object:
    def said(trial: Trial | None) -> object:
        return trial and (trial.number, trial.strategy, trial.cost, trial.evaluation)

    kept = (grid.ranked, grid.front, grid.layouts, grid.improvements)
    return (
        [[said(trial) for trial in trials] for trials in kept],
        (grid.evaluated, grid.feasible, dict(grid.failures), said(grid.closest)),
        grid.costs,
    )


def test_a_plugin_goes_the_same_way_strategy_by_strategy() -> None:
    problem = toy_problem()

    def fussy(strategy: Strategy) -> float:
        if strategy.tp == 2:
            raise ValueError("not two")
        return 1.0 / strategy.pp

    grid = evaluate_grid(problem.space, problem.objective(fussy))
    every = list(problem.space.enumerate())
    refused = sum(strategy.tp == 2 for strategy in every)
    assert grid.failures == {"ValueError: not two": refused}
    assert grid.feasible == len(every) - refused
    assert grid.best is not None
    assert grid.best.strategy.pp == max(strategy.pp for strategy in every if strategy.tp != 2)


def test_an_unknown_metric_fails_every_strategy_with_the_reason() -> None:
    problem = toy_problem()
    grid = evaluate_grid(problem.space, problem.objective(problem.simulate, metric="speed"))
    (reason,) = grid.failures
    assert "gave no metric 'speed'; it gave iteration_seconds" in reason
    assert grid.failed + (grid.evaluated - grid.failed - grid.feasible) == grid.evaluated


def test_a_metric_that_the_simulator_does_not_give_is_refused() -> None:
    problem = load_problem("mlp-2x8", devices=4)
    with pytest.raises(DistirError, match="unknown metric 'speed'"):
        problem.objective("throughput", metric="speed")
    assert not problem.objective("throughput", metric="iteration_seconds").maximize


def test_what_is_better_than_an_interrupted_grid_loses_nothing() -> None:
    problem = toy_problem()
    objective = problem.objective("throughput")
    grid = evaluate_grid(problem.space, objective)
    assert grid.best is not None
    assert grid.best.cost is not None
    others = [each for each in grid.ranked if each.cost != grid.best.cost]
    part = grid_of(others, objective)
    assert part.regret(grid.best) == 0.0
    assert part.rank(grid.best) == 1
    assert grid.regret(part.best) == pytest.approx(1 - (others[0].cost or 0.0) / grid.best.cost)


def test_an_interrupt_keeps_what_was_evaluated() -> None:
    problem = toy_problem()

    def stop(chunk: Chunk, best: Trial | None) -> None:
        if chunk.numbers[0] > 20:
            raise KeyboardInterrupt

    one_by_one = problem.objective(problem.simulate)
    grid = evaluate_grid(problem.space, one_by_one, watch=stop)
    assert not grid.complete
    assert 20 < grid.evaluated < grid.space_size
    assert grid.best is not None


# Processes


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_processes_find_what_one_finds(objective: str) -> None:
    problem = load_problem("mlp-2x8", devices=4, batch_size=16, space="full")
    alone = evaluate_grid(problem.space, problem.objective(objective))
    shared = problem.objective(objective)
    chunks = chunks_in_processes(problem, shared, Goal(objective=objective), jobs=2)
    assert outcome(evaluate_grid(problem.space, shared, chunks=chunks)) == outcome(alone)


def dear(strategy: Strategy) -> float:
    """What a user might say: neither smooth nor exact."""
    return (strategy.dp + strategy.microbatches**0.5) / 3 + strategy.zero


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("asked", ["throughput", dear])
def test_tables_are_the_same_to_the_last_bit_however_many_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Any
) -> None:
    monkeypatch.setattr("autotune.exhaustive.chunks.FIRST_AT_ONCE", 20)
    monkeypatch.setattr("autotune.exhaustive.chunks.LEAST_AT_ONCE", 20)
    problem = load_problem("mlp-2x8", devices=4, batch_size=16, space="full")
    assert len(list(stretches(SpaceColumns(problem.space).borders))) > 5

    def written(jobs: int) -> bytes:
        path, objective = tmp_path / f"{jobs}.csv", problem.objective(asked)
        chunks = (
            chunks_in_processes(problem, objective, Goal(objective=asked), jobs)
            if jobs > 1
            else None
        )
        with table_file(str(path), problem.batch_size) as append:
            evaluate_grid(
                problem.space, objective, chunks=chunks, watch=lambda chunk, best: append(chunk)
            )
        return path.read_bytes()

    alone = written(1)
    numbers = [int(row["number"]) for row in csv.DictReader(alone.decode().splitlines())]
    assert sorted(numbers) == list(range(problem.space.count()))
    assert written(2) == written(3) == alone


@pytest.mark.slow(seconds=2)
def test_a_time_limit_holds_in_processes_too() -> None:
    problem = load_problem("mlp-2x8", devices=4, batch_size=4)
    slow = next(each for each in problem.space.enumerate() if each.tp == 2)

    def cost(strategy: Strategy) -> float:
        if strategy == slow:
            time.sleep(60)
        return 1.0

    asked = Goal(objective=cost, trial_timeout=0.5)
    chunks = chunks_in_processes(problem, problem.objective(cost), asked, jobs=2)
    grid = evaluate_grid(problem.space, problem.objective(cost), chunks=chunks)
    assert grid.complete
    assert grid.failures == {"took longer than 0.5 s": 1}


@given(st.integers(1, MOST), st.floats(0.0, 10.0))
def test_chunks_of_slow_strategies_are_small(size: int, seconds: float) -> None:
    after = size_after(size, seconds)
    assert 1 <= after <= MOST
    assert after <= size if seconds >= QUICK_SECONDS else after >= size


@pytest.mark.slow(seconds=2)
def test_a_plugin_is_sent_to_processes() -> None:
    problem = load_problem("mlp-2x8", devices=2, batch_size=4)

    def cost(strategy: Strategy) -> dict[str, float]:
        return {"own": strategy.dp + 0.1 * strategy.microbatches}

    objective = problem.objective(cost)
    chunks = chunks_in_processes(problem, objective, Goal(objective=cost), jobs=2)
    grid = evaluate_grid(problem.space, objective, chunks=chunks)
    assert outcome(grid) == outcome(evaluate_grid(problem.space, problem.objective(cost)))
    assert objective.metric == "own"


@pytest.mark.slow(seconds=4)
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_that_is_killed_costs_a_second_try(tmp_path: Path) -> None:
    problem = load_problem("mlp-2x8", devices=4, batch_size=16)
    third = problem.space.at(3)

    def cost(strategy: Strategy) -> float:
        killed = tmp_path / "killed"
        if strategy == third and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return dear(strategy)

    asked = Goal(objective=cost, isolate=False)
    chunks = chunks_in_processes(problem, problem.objective(cost), asked, jobs=2)
    grid = evaluate_grid(problem.space, problem.objective(cost), chunks=chunks)
    assert (tmp_path / "killed").exists()
    assert outcome(grid) == outcome(evaluate_grid(problem.space, problem.objective(dear)))


@pytest.mark.slow(seconds=8)
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_chunk_that_kills_every_process_fails_and_the_others_do_not() -> None:
    problem = load_problem("mlp-2x8", devices=4, batch_size=16)
    fatal = problem.space.at(problem.space.count() // 2)

    def cost(strategy: Strategy) -> float:
        if strategy == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return dear(strategy)

    asked = Goal(objective=cost, isolate=False)
    chunks = chunks_in_processes(problem, problem.objective(cost), asked, jobs=2)
    grid = evaluate_grid(problem.space, problem.objective(cost), chunks=chunks)
    assert grid.complete
    assert grid.feasible == grid.evaluated - grid.failed
    assert 1 <= grid.failed < grid.evaluated
    assert all("its process died 4 times" in reason for reason in grid.failures)


def none_fits(strategy: Strategy) -> Evaluation:
    return Evaluation({"cost": 1.0}, feasible=False, reason="too large", violation=strategy.tp)


def all_fail(strategy: Strategy) -> Evaluation:
    raise ValueError("not today")


def half_fail(strategy: Strategy) -> Evaluation:
    return all_fail(strategy) if strategy.schedule == "gpipe" else none_fits(strategy)


@pytest.mark.parametrize(
    ("measure", "answer"),
    [
        (none_fits, "Nothing fits."),
        (all_fail, "No trial succeeded."),
        (half_fail, "None of the strategies that were tried to the end fits: {} of {}."),
    ],
)
def test_what_failed_is_not_said_not_to_fit(
    measure: Callable[[Strategy], Evaluation], answer: str
) -> None:
    """By the grid, its page, its notebook, a search of the whole space and its page."""
    problem = toy_problem()
    objective = problem.objective(measure, metric="cost", direction="minimize")
    grid = evaluate_grid(problem.space, objective)
    answer = answer.format(grid.infeasible, grid.evaluated)
    trials = problem.space.count()
    search = Search(objective=measure, metric="cost", isolate=False, trials=trials)
    result = solve(problem, search)
    assert {each.state for each in result.trials} <= {"failed", "infeasible"}
    assert answer in " ".join(as_text(grid_report(problem, objective, grid, 3)).split())
    assert answer in " ".join(str(result).split())
    for page in (grid_page(problem, objective, grid), study_page(result)):
        assert page.answer == answer
        assert any("trials failed: ValueError: not today" in each for each in page.lead) == (
            measure is not none_fits
        )
    assert grid_in_short(problem, objective, grid)["answer"] == answer
    assert answer in cast("Any", grid)._repr_html_()


@pytest.mark.parametrize("fits", [True, False])
def test_an_interrupted_grid_says_what_it_saw(fits: bool) -> None:
    problem = toy_problem(ToySimulator(memory_bytes=40e9 if fits else 1.0))

    def stop(chunk: Chunk, best: Trial | None) -> None:
        if chunk.numbers[0] > 20:
            raise KeyboardInterrupt

    objective = problem.objective(problem.simulate, metric="throughput_samples_per_second")
    grid = evaluate_grid(problem.space, objective, watch=stop)
    said = as_text(grid_report(problem, objective, grid, 3))
    assert f"evaluated {grid.evaluated} in" in said
    assert "interrupted" in said
    assert "Nothing fits" not in said
    assert ("Best 3" in said) == fits
    assert grid.to_dict(256)["interrupted"]


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray")])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")  # ray's own
def test_a_cluster_finds_the_same(backend: str, package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: pip install {package}")
    problem = load_problem("mlp-2x8", devices=4, batch_size=16)
    objective = problem.objective("throughput")
    chunks = chunks_in_processes(
        problem, objective, Goal(objective="throughput"), jobs=2, backend=backend
    )
    grid = evaluate_grid(problem.space, objective, chunks=chunks)
    alone = evaluate_grid(problem.space, problem.objective("throughput"))
    assert outcome(grid) == outcome(alone)


# Files


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_every_strategy_is_a_row(tmp_path: Path, suffix: str) -> None:
    problem = toy_problem()
    path = tmp_path / f"all{suffix}"

    def cost(strategy: Strategy) -> Evaluation:
        if strategy.tp == 1:
            raise ValueError("at first there is no metric")
        return Evaluation({"cost": 1.0}, feasible=strategy.pp == 1, reason="deep")

    with table_file(str(path), problem.batch_size) as append:
        evaluate_grid(problem.space, problem.objective(cost), watch=lambda c, best: append(c))
    if suffix == ".csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = parquet.read_table(path).to_pylist()
    strategies = list(problem.space.enumerate())
    assert [int(row["number"]) for row in rows] == list(range(len(strategies)))
    assert [int(row["dp"]) for row in rows] == [strategy.dp for strategy in strategies]
    assert all(
        int(row["micro_batch"]) * int(row["dp"]) * int(row["microbatches"]) == problem.batch_size
        for row in rows
    )
    states = {row["state"] for row in rows}
    assert states == {"failed", "infeasible", "feasible"}
    assert all((row["state"] == "failed") == (int(row["tp"]) == 1) for row in rows)
    assert all(float(row["cost"]) == 1.0 for row in rows if row["state"] != "failed")


words = st.text(st.sampled_from("ab,;\"\r\n '#1"), max_size=4)
cells = st.one_of(words, st.integers(), st.booleans(), st.none())


@given(st.data(), st.integers(0, 30))
def test_text_of_columns_is_what_csv_writes(data: st.DataObject, count: int) -> None:
    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return data.draw(st.lists(values, min_size=count, max_size=count))

    def coded() -> Coded:
        values = data.draw(st.lists(cells, min_size=1, max_size=5))
        return Coded(values, np.array(column(st.integers(0, len(values) - 1)), np.int16))

    table: dict[str, TableColumn] = {"number": np.array(column(st.integers(0, 2**60)), np.int64)}
    table |= {name: coded() for name in data.draw(st.lists(words, unique=True, max_size=5))}
    table["seconds"] = np.array(column(st.one_of(st.floats(), st.just(-0.0))), np.float64)
    table["last"] = coded()
    plain = [
        [each.values[code] for code in each.codes] if isinstance(each, Coded) else each.tolist()
        for each in table.values()
    ]
    expected = io.StringIO()
    csv.writer(expected).writerows([list(table), *zip(*plain, strict=True)])
    assert "".join([header(table), *lines(table)]) == expected.getvalue()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_without_rows_an_old_table_stays_as_it_is(tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    old, new = tmp_path / f"old{suffix}", tmp_path / f"new{suffix}"
    old.write_text("an earlier table")
    for path in (old, new):
        with table_file(str(path), 1):
            """Interrupted at once."""
    assert old.read_text() == "an earlier table"
    assert not new.exists()


def test_a_table_has_a_known_kind(tmp_path: Path) -> None:
    with pytest.raises(DistirError, match=r"ends in \.csv or \.parquet"):
        table_file(str(tmp_path / "all.xlsx"), 1).__enter__()
