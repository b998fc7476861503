"""Results show themselves in notebooks, and nothing fills a screen by its repr."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import distir
from autotune import TuneResult, compare_samplers, evaluate_grid, load_problem, tune
from autotune.page.notebook import Figures, plan_figures
from autotune.reports.quantities import described
from distir import Simulator, Strategy, Workload
from distir.errors import DistirError

SCREEN = 80 * 24
"""Characters of a terminal."""

PLAN = Strategy(dp=2, tp=2, pp=2, microbatches=4)


@cache
def study() -> TuneResult:
    problem = load_problem("gpt2", "dgx-a100", devices=2, batch_size=4)
    return tune(problem, trials=5, compare_grid=True)


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def shown_by(thing: Any) -> str:
    return thing._repr_html_()


def is_html(text: str) -> bool:
    parser = Balanced()
    parser.feed(text)
    return not parser.open and "<div" in text


@cache
def things() -> dict[str, Any]:
    model = distir.load_model("gpt2")
    cluster = distir.load_cluster("hgx-h100", devices=8)
    simulator = Simulator(Workload(model=model, batch_size=16), cluster)
    long = Strategy(pp=8, microbatches=16)
    return {
        "model": model,
        "function": model.function,
        "workload": simulator.workload,
        "program": simulator.workload.program,
        "cluster": cluster,
        "stack": simulator.cost.stack,
        "simulator": simulator,
        "cost": simulator.cost,
        "plan": simulator.plan(long),
        "stage": simulator.plan(long).stages[0],
        "block": simulator.plan(long).stages[0].programs[0],
        "schedule": simulator.plan(long).schedule,
        "step": simulator.step(long),
        "result": simulator.simulate(long),
        "table": simulator.simulate_many([PLAN, long]),
        "problem": study().problem,
        "study": study(),
        "grid": study().grid,
        "landscape": getattr(study().grid, "landscape", None),
        "trial": study().trials[0],
        "figures": study().plot,
        "figure": study().plot.space(),
        "section": study().plot.space().section,
        "chart": study().plot.space().charts[0],
        "page": study().plot.space().page,
    }


@pytest.mark.parametrize("name", list(things()))
def test_no_repr_is_longer_than_a_screen(name: str) -> None:
    thing = things()[name]
    assert thing is not None
    assert len(repr(thing)) <= SCREEN


def test_results_show_themselves_in_short() -> None:
    result = study()
    assert result.best is not None
    shown = shown_by(result)
    assert is_html(shown)
    assert "samples/s" in shown
    assert len(shown) < 50_000
    assert result.grid is not None
    of_grid = shown_by(result.grid)
    assert is_html(of_grid)
    assert f"Best: {described(result.best.strategy)}" in of_grid
    simulated: Any = things()["result"]
    of_plan = shown_by(simulated)
    assert is_html(of_plan)
    assert of_plan.count(">stage ") == 16


def test_figures_have_data_and_a_page_of_their_own(tmp_path: Path) -> None:
    plot: Any = study().plot
    assert isinstance(plot, Figures)
    for figure in (plot.time(), plot.memory(), plot.space(), plot.search()):
        assert figure.charts
        assert all(chart.data for chart in figure.charts)
    figure = plot.search()
    figure.save(str(tmp_path / "search.html"))
    assert figure.charts[0].title in (tmp_path / "search.html").read_text("utf-8")
    framed = shown_by(figure)
    assert framed.startswith("<iframe")
    assert framed.count("<") == 2, "the page inside is an attribute"


@pytest.mark.not_quick
def test_a_grid_and_a_simulated_plan_have_figures() -> None:
    of_grid: Any = study().grid.plot  # type: ignore[union-attr]
    assert is_html(shown_by(of_grid))
    for name in ("time", "memory", "space", "why"):
        assert getattr(of_grid, name)().section.blocks, name
    of_plan: Any = things()["result"].plot
    assert is_html(shown_by(of_plan))
    for figure in (of_plan.time(), of_plan.memory()):
        assert figure.charts
        assert all(chart.data for chart in figure.charts)
    with pytest.raises(DistirError, match="nothing to show for why; expected one of time, memory"):
        of_plan.why()


@pytest.mark.not_quick
def test_the_grid_of_a_problem_has_figures_and_that_of_a_space_says_how_to_have_them() -> None:
    problem = study().problem
    objective = problem.objective("throughput")
    of_problem, of_space = (evaluate_grid(it, objective) for it in (problem, problem.space))
    assert of_problem.plot.space().charts
    with pytest.raises(DistirError, match=r"evaluate_grid\(problem, objective\)"):
        _ = of_space.plot
    assert shown_by(of_space)


def test_results_are_sent_elsewhere_without_their_simulator() -> None:
    result: Any = things()["result"]
    sent = pickle.loads(pickle.dumps(result))
    assert sent == result
    assert len(pickle.dumps(result)) < 50_000
    with pytest.raises(DistirError, match="no figures"):
        _ = sent.plot


def sent(found: TuneResult) -> TuneResult:
    return pickle.loads(pickle.dumps(found))


def copied(found: TuneResult) -> TuneResult:
    return copy.deepcopy(found)


@pytest.mark.parametrize("again", [sent, copied])
def test_what_a_search_found_can_be_sent_elsewhere_and_copied(
    again: Callable[[TuneResult], TuneResult],
) -> None:
    found = study()
    other = again(found)
    assert other.to_dict() == found.to_dict()
    assert found.best is not None
    best = found.best.strategy
    assert other.problem.simulate(best) == found.problem.simulate(best)
    assert is_html(shown_by(other))
    assert other.plot.space().charts


def test_what_a_stored_study_found_is_sent_without_its_storage(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/studies.db"
    found = tune("mlp-4x64", devices=2, trials=2, storage=storage, study="first")
    other = sent(found)
    assert other.to_dict() == found.to_dict()
    assert len(other.study.trials) == len(found.study.trials)


@pytest.mark.slow(seconds=4)
def test_a_comparison_has_figures_too() -> None:
    found = compare_samplers(study().problem, samplers=("random", "qmc"), seeds=2, trials=5)
    assert is_html(shown_by(found))
    assert found.plot.search().charts
    with pytest.raises(DistirError, match="nothing to show for why"):
        found.plot.why()


def test_one_plan_has_figures_of_its_time_and_memory(tmp_path: Path) -> None:
    figures = plan_figures(load_problem("gpt2", "dgx-a100", devices=8, batch_size=16), PLAN)
    kinds = {name: [chart.draw for chart in getattr(figures, name)().charts] for name in SECTIONS}
    assert "gantt" in kinds["time"]
    assert "lines" in kinds["memory"]
    assert is_html(shown_by(figures))
    figures.time().save(str(tmp_path / "time.html"))
    assert "The pipeline" in (tmp_path / "time.html").read_text("utf-8")
    with pytest.raises(DistirError, match="expected one of time, memory"):
        figures.space()


SECTIONS = ("time", "memory")
