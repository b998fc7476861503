"""What is kept of a space does not depend on how it is cut into chunks, and is exact."""

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import Problem, load_problem
from autotune.exhaustive.chunks import Chunk, evaluated_chunk
from autotune.exhaustive.landscape import Landscape, mixed
from autotune.objectives.columns import Evaluations
from autotune.objectives.costs import regret
from autotune.objectives.simulator import needed_bytes
from autotune.page import space
from distir.strategies import Strategies
from search_spaces.columns import SpaceColumns

pytestmark = pytest.mark.not_quick


@cache
def problem() -> Problem:
    return load_problem("gpt2", "dgx-a100", devices=4, batch_size=8)


@cache
def everything() -> Chunk:
    objective, table = problem().objective("throughput"), SpaceColumns(problem().space)
    return evaluated_chunk(objective, *table.taken(0, problem().space.count()))


def pieces(*borders: int) -> list[Chunk]:
    whole = everything()
    found: list[Chunk] = []
    for first, end in pairwise([0, *borders, len(whole)]):
        which = np.arange(first, end)
        said = whole.evaluations
        evaluations = Evaluations(
            {name: column[which] for name, column in said.metrics.items()},
            said.feasible[which],
            said.failed[which],
            said.violation[which],
        )
        strategies = Strategies.of(whole.strategies).taken(which)
        numbers, costs = whole.numbers[which], whole.costs[which]
        found.append(Chunk(numbers, strategies, evaluations, costs, 0.0, 1.0))
    return found


def landscape(*borders: int, most_points: int = 10_000) -> Landscape:
    found = Landscape(most_points)
    for chunk in pieces(*borders):
        found.add(chunk)
    return found


@settings(max_examples=15)
@given(st.sets(st.integers(1, 100), max_size=4), st.sampled_from([7, 50, 10_000]))
def test_chunks_leave_no_trace(borders: set[int], most: int) -> None:
    whole, cut = landscape(most_points=most), landscape(*sorted(borders), most_points=most)
    assert whole.points.numbers.tolist() == cut.points.numbers.tolist()
    assert list(whole.points.strategies) == list(cut.points.strategies)
    assert {key: (c.count, c.feasible) for key, c in whole.cells.items()} == {
        key: (c.count, c.feasible) for key, c in cut.cells.items()
    }
    assert [trial.strategy for trial in whole.front] == [trial.strategy for trial in cut.front]
    assert [t.strategy for t in whole.out_of_reach] == [t.strategy for t in cut.out_of_reach]
    for choice in whole.choices:
        assert whole.explained(choice) == pytest.approx(cut.explained(choice))


def test_cells_and_pairs_are_those_of_all_strategies() -> None:
    found, (chunk,) = landscape(), pieces()
    rows = [(chunk.trial(at)) for at in range(len(chunk))]
    for first, second in combinations(found.choices, 2):
        for (one, other), cell in found.pairs[first, second].items():
            there = [
                row
                for row in rows
                if (getattr(row.strategy, first), getattr(row.strategy, second)) == (one, other)
            ]
            fitting = [row.cost for row in there if row.feasible and row.cost is not None]
            assert (cell.count, cell.feasible) == (len(there), len(fitting))
            assert not fitting or cell.best == min(fitting)


def test_a_choice_explains_a_share_of_the_variance() -> None:
    found = landscape()
    for choice in found.choices:
        assert 0 <= found.explained(choice) <= 1
        count = sum(s.count for (name, _), s in found.spreads.items() if name == choice)
        assert count == found.spread.count


def test_no_feasible_strategy_is_faster_and_smaller_than_one_of_the_front() -> None:
    found, (chunk,) = landscape(), pieces()
    trials = [chunk.trial(at) for at in range(len(chunk))]
    assert [trial.strategy for trial in found.front] == [
        trial.strategy for trial in space.pareto_front(trials)
    ]
    for one in found.front:
        for trial in trials:
            if trial.feasible:
                fast = trial.metric("iteration_seconds") or 0.0
                small = needed_bytes(trial.evaluation.metrics)
                assert not (
                    fast < (one.metric("iteration_seconds") or 0.0)
                    and small < needed_bytes(one.evaluation.metrics)
                )


def test_every_strategy_has_the_same_chance_to_be_drawn() -> None:
    numbers = np.arange(100_000)
    order = mixed(numbers)
    assert len(set(order.tolist())) == len(numbers)
    drawn = np.argsort(order)[:10_000]
    parts = np.bincount(drawn // 10_000, minlength=10)
    assert abs(parts - 1000).max() < 5 * np.sqrt(1000)


def test_heat_maps_have_the_best_of_all_where_nothing_is_behind() -> None:
    found, (chunk,) = landscape(), pieces()
    best = min(chunk.trial(at).cost or 0.0 for at in range(len(chunk)) if chunk.trial(at).feasible)
    for cells in space.heat_maps(found, best)["pairs"].values():
        behind = [cell[2] for cell in cells if cell[2] is not None]
        assert min(behind) == 0
        assert sum(cell[3] for cell in cells) == found.seen
    for row in space.effects(found, best)["rows"]:
        assert min(v["behind"] for v in row["values"] if v["behind"] is not None) == 0
        assert sum(value["count"] for value in row["values"]) == found.seen
    assert regret(best, best) == 0
