"""What a report shows is what results say, and it is one file that loads nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from autotune import TuneResult, load_problem, tune
from autotune.cli import main
from autotune.exhaustive.certified import certify
from autotune.objectives import Evaluation
from autotune.page import memory, search, space, time
from autotune.page.contents import Chart, Page, Section, Table, Text
from autotune.page.render import page_html
from autotune.page.reports import (
    Told,
    plan_page,
    search_sections,
    space_sections,
    study_page,
)
from autotune.problem import Problem
from autotune.questions.usual import usual_plans
from autotune.study.trial import regret_curve
from autotune.templates import asset
from distir import Simulator, Strategy
from distir.limits import MOST_MICROBATCHES

pytestmark = pytest.mark.not_quick


@cache
def problem() -> Problem:
    return load_problem("gpt2", "dgx-a100", devices=8, batch_size=16)


@cache
def study() -> TuneResult:
    return tune(load_problem("gpt2", "dgx-a100", devices=4, batch_size=8), trials=20)


def simulator() -> Simulator:
    found: Any = problem().simulator
    return found


PLANS = (
    Strategy(dp=2, tp=2, pp=2, microbatches=4),
    Strategy(dp=8, zero=3),
    Strategy(pp=8, microbatches=8, schedule="zb-h1"),
    Strategy(dp=2, pp=4, microbatches=8, schedule="interleaved", chunks=2),
)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.label)
def test_the_parts_of_a_bar_add_up_to_the_iteration(plan: Strategy) -> None:
    result = simulator().simulate(plan)
    bars = time.stage_bars({"it": result})
    for row in bars["rows"]:
        assert sum(row["parts"].values()) == pytest.approx(result.metrics["iteration_seconds"])
    shown = {part["name"] for part in bars["parts"]}
    assert all(
        not seconds or name in shown
        for row in bars["rows"]
        for name, seconds in row["parts"].items()
    )


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.label)
def test_the_pipeline_has_every_action_and_message_of_the_step(plan: Strategy) -> None:
    step = simulator().step(plan)
    drawn = time.pipeline(step)
    assert len(drawn["actions"]) == drawn["all_actions"] == len(step.actions)
    assert len(drawn["messages"]) == len(step.messages)
    assert {row[0] for row in drawn["actions"]} == set(range(drawn["ranks"]))
    assert all(0 <= row[1] <= row[2] <= drawn["seconds"] for row in drawn["actions"])
    kinds = {row[3] for row in drawn["actions"]}
    assert kinds >= {"forward", "backward"}
    assert ("weight" in kinds) == (plan.schedule == "zb-h1")


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.label)
def test_the_fullest_line_reaches_the_peak(plan: Strategy) -> None:
    result, step = simulator().simulate(plan), simulator().step(plan)
    lines = memory.over_the_step(step, result)["lines"]
    most = max(value for line in lines for _, value in line["points"])
    assert most == pytest.approx(result.metrics["peak_memory_bytes"])
    assert all(sorted(line["points"], key=lambda p: p[0]) == line["points"] for line in lines)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.label)
def test_what_holds_the_peak_adds_up_to_what_is_needed(plan: Strategy) -> None:
    result = simulator().simulate(plan)
    rows = memory.holders({"it": result})["rows"]
    needed = result.metrics["peak_memory_bytes"] + result.metrics["reserved_memory_bytes"]
    assert max(sum(row["parts"].values()) for row in rows) == pytest.approx(needed)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.label)
def test_exposed_communication_is_that_of_the_result(plan: Strategy) -> None:
    result = simulator().simulate(plan)
    links = time.links(simulator().step(plan), result)
    exposed = sum(row["parts"]["exposed"] for row in links["rows"])
    fraction = result.metrics["communication_fraction"]
    assert exposed == pytest.approx(fraction * result.metrics["iteration_seconds"])
    assert all(part >= 0 for row in links["rows"] for part in row["parts"].values())
    assert all(each["count"] > 0 and each["bytes"] > 0 for each in links["kinds"])


@pytest.mark.slow(seconds=8)
def test_regret_never_grows_and_ends_with_that_of_the_search() -> None:
    result = study()
    assert result.best is not None
    assert result.best.cost is not None
    curve = regret_curve(result.trials, result.best.cost)
    known = [value for value in curve if value is not None]
    assert known == sorted(known, reverse=True)
    assert known[-1] == result.regret
    drawn = search.search_of(result)
    assert drawn is not None
    assert drawn["samplers"][0]["curves"] == [curve]


class Loads(HTMLParser):
    """Collects what a page would load, and whether its elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        wanted = [named.get("src"), named.get("href") if tag != "a" else None]
        self.loaded += [each for each in wanted if each]
        if tag not in ("meta", "br", "link", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_whole_and_loads_nothing() -> None:
    page = study_page(study(), Told("autotune run --model '</script>'"))
    found = page_html(page)
    parser = Loads()
    parser.feed(found)
    assert parser.loaded == []
    assert parser.open == []
    assert not re.search(r"@import|url\(", asset("page.css"))
    assert len(found) < 5e6
    assert {section.name for section in page.sections} >= {
        "plans", "time", "memory", "space", "search", "why", "assumed",
    }  # fmt: skip
    assert page.answer in found.replace("&#39;", "'").replace("\N{NO-BREAK SPACE}", " ")


def test_what_users_write_stays_text() -> None:
    evil = "</script><script>alert(1)</script>"
    chart = Chart("bars", evil, {"unit": "seconds", "rows": [{"label": evil, "parts": {}}]}, evil)
    page = Page(evil, evil, True, (), (evil,), [Section("a", evil, [Text(evil), chart])])
    assert "<script>alert" not in page_html(page)


def test_where_not_all_strategies_are_drawn_side_by_side_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def beside() -> Chart:
        (section,) = space_sections(study())
        (chart,) = (b for b in section.blocks if isinstance(b, Chart) and b.draw == "parallel")
        return chart

    whole = beside()
    known = whole.data["total"]
    assert len(whole.data["last"]["values"]) == known
    assert "are drawn" not in whole.caption
    monkeypatch.setattr(space, "MOST_LINES", 20)
    few = beside()
    drawn = len(few.data["last"]["values"])
    assert drawn <= 20
    assert min(few.data["last"]["values"]) == 0
    assert f"{drawn} of {known} are drawn" in few.caption


def test_no_line_ends_within_an_option_or_a_quantity() -> None:
    said = "It takes 3 ms (± 7.6 %) and 2 GiB in 4 stages; try --compare-grid or dp2-tp4."
    (line,) = re.findall("<p>(It.*)</p>", page_html(Page("", "It", True, (), (said,), ())))
    assert line == (
        "It takes 3\xa0ms (±\xa07.6\xa0%) and 2\xa0GiB in 4 stages; try "
        "<code>--compare-grid</code> or dp2-tp4."
    )


def test_plans_of_the_front_are_among_the_points_and_a_flat_search_is_told_in_words() -> None:
    best = study().best
    assert best is not None
    proof = certify(study().problem, study().objective, top=20)
    result = replace(study(), trials=[best, best], grid=None, proof=proof)
    (section,) = space_sections(result)
    (chart,) = (b for b in section.blocks if isinstance(b, Chart) and b.draw == "space")
    points = chart.data["points"]
    drawn = set(zip(points["seconds"], points["needed"], strict=True))
    assert len(chart.data["front"]) > 1
    for seconds, needed, _ in chart.data["front"]:
        assert (float(f"{seconds:.5g}"), round(needed)) in drawn
    (told,) = search_sections(result)
    assert [block.kind for block in told.blocks] == ["text"]


def test_numbers_that_json_cannot_say_are_left_open() -> None:
    chart = Chart("lines", "", {"a": [float("inf"), float("nan"), 1.0]})
    found = page_html(Page("", "", True, (), (), [Section("a", "", [chart])]))
    data = re.search(r'id="data">(.*?)</script>', found)
    assert data is not None
    assert json.loads(data[1]) == [{"a": [None, None, 1.0]}]


def test_constants_are_shown_with_their_sources() -> None:
    page = study_page(study())
    (assumed,) = (section for section in page.sections if section.name == "assumed")
    tables = [block for block in assumed.blocks if isinstance(block, Table)]
    rows = {row[0]: row for table in tables for row in table.rows if len(row) == 3}
    assert "NVIDIA" in rows["memory bytes"][2]
    sourced = [row for row in rows.values() if row[2]]
    assert len(sourced) > 30
    assert rows["InfiniBand HDR: size"][1] == "no limit"
    assert rows["host: all links bytes per second"][1] == "no limit"
    said = {row[1] for row in rows.values()}
    assert not said & {"None", "inf", "inf B/s"}


def test_usual_plans_have_no_more_microbatches_than_a_plan_may_have() -> None:
    there = load_problem("gpt2", "dgx-a100", devices=8, batch_size=2**23, space="small")
    found = usual_plans(there, 8)
    assert len(found) == 2
    assert max(plan.microbatches for plan in found.values()) <= MOST_MICROBATCHES


def test_a_page_draws_more_values_than_a_call_takes_arguments() -> None:
    script = asset("page.js")
    over_trials = ("curves, tried", "points.seconds", "usable)", "line.points", "found.trials")
    spread = re.findall(r"Math\.(?:max|min)\([^;\n]*\.\.\.[^;\n]*", script)
    assert not [call for call in spread if any(each in call for each in over_trials)]


@pytest.mark.slow(seconds=3)
def test_a_long_iteration_is_told_in_hours_too() -> None:
    there = load_problem("gpt2", "dgx-a100", devices=8, batch_size=2**23, space="small")
    found = tune(there, trials=1, compare_grid=False)
    page = study_page(found)
    (time,) = (fact for fact in page.facts if fact.name == "iteration")
    assert re.fullmatch(r"\d,\d{3} s", time.value)
    assert re.match(r"[\d.]+ h; two runs in three: \d,\d{3} s to \d,\d{3} s", time.detail)
    (assumed,) = (section for section in page.sections if section.name == "assumed")
    tables = [block for block in assumed.blocks if isinstance(block, Table)]
    rows = {row[0]: row[1] for table in tables for row in table.rows}
    assert rows["sampler"].endswith(", 1 trial")


@pytest.mark.parametrize("most", [4, 1500])
def test_pictures_of_a_long_step_end_with_what_they_draw_and_say_so(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MOST_ACTIONS", most)
    monkeypatch.setattr(time, "MOST_ACTIONS", most)
    there = load_problem("gpt2", "dgx-a100", devices=2, batch_size=8)
    found: Any = there.simulator
    page = plan_page(there, found.simulate(Strategy(pp=2, microbatches=8)))
    charts = [block for section in page.sections for block in section.blocks]
    drawn = {each.draw: each for each in charts if isinstance(each, Chart)}
    lines, pipeline = drawn["lines"], drawn["gantt"]
    ends = {
        "lines": max(line["points"][-1][0] for line in lines.data["lines"]),
        "gantt": max(action[2] for action in pipeline.data["actions"]),
    }
    for chart in (lines, pipeline):
        whole, axis = chart.data["seconds"], chart.data["drawn_seconds"]
        assert (axis == whole) == (most == 1500)
        assert axis == pytest.approx(ends[chart.draw]) or most == 1500
    cut = re.compile(r"The first 4 of (up to 16|32) actions.*, [\d.]+ ms of [\d.]+ ms\.")
    assert all(bool(cut.search(each.caption)) == (most == 4) for each in (lines, pipeline))


def test_a_plan_that_does_not_fit_says_so() -> None:
    there = load_problem("gpt3-13b", "dgx-a100", devices=1, batch_size=1)
    found: Any = there.simulator
    page = plan_page(there, found.simulate(Strategy()))
    assert not page.good
    assert "out of memory" in page.answer
    assert "times the capacity" in " ".join(fact.detail for fact in page.facts)


def test_a_number_that_is_no_rate_is_told_by_its_name() -> None:
    def cost(strategy: Strategy) -> float:
        return 1.0 / strategy.dp

    there = load_problem("mlp-2x8", "dgx-a100", devices=2, batch_size=4, space="small")
    found = tune(there, objective=cost, trials=2, compare_grid=False)
    assert "Its value is " in study_page(found).answer
    assert f"That gives {study().best.metric('throughput_samples_per_second'):,.0f} samples/s" in (  # type: ignore[union-attr]
        study_page(study()).answer
    )


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize(
    "command",
    [
        "run --model gpt2 --devices 4 --batch-size 8 --trials 10 --no-tracking",
        "grid --model gpt2 --devices 4 --batch-size 8",
        "grid --model gpt2 --devices 4 --batch-size 8 --certified",
        "simulate --model gpt2 --dp 2 --pp 2 --microbatches 4",
        "compare --model gpt2 --devices 4 --batch-size 8 --samplers random,qmc --seeds 2",
    ],
)
def test_commands_write_reports(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "--report", "report.html"]) == 0
    found = (tmp_path / "report.html").read_text("utf-8")
    assert f"autotune {command} --report report.html" in re.sub("</?code>", "", found)
    assert len(found) < 2e6


def test_an_interrupted_search_says_so_and_shows_what_there_is() -> None:
    missed = [
        replace(trial, evaluation=Evaluation(trial.evaluation.metrics, False, "too large", 0.5))
        for trial in study().trials
    ]
    broken_off = replace(study(), trials=missed, grid=None, proof=None, interrupted=True)
    page = study_page(broken_off)
    assert not page.good
    assert page.answer == "Interrupted before any plan that fits was found."
    assert "space" in {section.name for section in page.sections}
    assert page_html(page)


@pytest.mark.slow(seconds=3)
def test_an_objective_without_a_simulator_is_reported_by_what_it_measures() -> None:
    there = load_problem("gpt2", "dgx-a100", devices=4, batch_size=8)

    def dollars(strategy: Strategy) -> dict[str, float]:
        return {"dollars": 1.0 + strategy.tp, "watts": 300.0}

    result = tune(there, objective=dollars, trials=8, isolate=False)
    page = study_page(result)
    assert "dollars" in page.answer
    assert page.facts[0].name == "dollars"
    assert "why" not in {section.name for section in page.sections}
    said = [b.text for s in page.sections for b in s.blocks if isinstance(b, Text)]
    assert any("As predicted by the simulator" in text for text in said)
    assert "space" not in [chart.draw for chart in page.charts], "it gave no memory"
    assert page_html(page)


def test_a_space_of_one_strategy_has_a_report() -> None:
    one = {"extends": "small", "tp": [1], "pp": [1]}
    there = load_problem("gpt2", "dgx-a100", devices=1, batch_size=1, space=one)
    page = study_page(tune(there, trials=1, compare_grid=True))
    assert page.good
    assert {section.name for section in page.sections} == {
        "plans", "time", "memory", "why", "assumed",
    }  # fmt: skip
    assert page_html(page)


@pytest.mark.slow(seconds=4)
def test_several_objectives_have_a_front_in_which_nobody_beats_another() -> None:
    goals = "throughput,memory,mfu"
    result = tune("gpt2", devices=4, space="small", objectives=goals, trials=20)
    page = study_page(result)
    (section,) = [each for each in page.sections if each.name == "front"]
    charts = [each for each in section.blocks if isinstance(each, Chart)]
    (table,) = [each for each in section.blocks if isinstance(each, Table)]
    front = result.pareto
    assert front is not None
    assert len(table.rows) == len(front.plans)
    assert [each.data["axes"][1]["name"].split(" (")[0] for each in charts] == ["samples/s"] * 2
    for chart, metric in zip(charts, ("peak_memory_bytes", "mfu"), strict=True):
        shown = {(x, y) for x, y, _ in chart.data["front"]}
        assert shown == {
            (plan.metric(metric), plan.metric("throughput_samples_per_second"))
            for plan in front.plans
        }
        assert len(chart.data["trials"]) == len(result.ranked) - len(front.plans)
    memory_and_rate = charts[0].data["front"]
    for x, y, _ in memory_and_rate:
        assert not any(a < x and b > y for a, b, _ in memory_and_rate)
