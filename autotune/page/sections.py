"""Sections of reports: the best plans, where their time and memory go, the space, the search, and
why the best plan wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from autotune.objectives.objective import Objective
from autotune.page import memory, search, space, time
from autotune.page.answers import LARGE
from autotune.page.contents import Block, Chart, Section, Table, Text
from autotune.page.why import out_of_reach, why_blocks
from autotune.problem import Problem
from autotune.reports.quantities import choice_heading, choice_value, heading, lost, shown
from autotune.reports.ranking import shown_choices
from autotune.reports.simulation import on_host
from autotune.study.trial import Trial
from distir.units import percent, short_bytes, short_seconds

if TYPE_CHECKING:
    from autotune.exhaustive.grid import Grid
    from autotune.exhaustive.landscape import Landscape
    from autotune.result import TuneResult
    from distir.plan import Plan
    from distir.simulation import SimulationResult, Simulator
    from distir.simulation.step import Step

OVERHEAD = "overhead"
"""The share of an iteration that is no action's."""
PLANS = 5
"""Best plans whose time is shown stage by stage."""
ROWS = 20
"""Best plans in the table."""


def stepping_simulator(problem: Problem) -> Simulator | None:
    """The simulator of a problem, where it can show steps."""
    simulator: Any = problem.simulator
    return cast("Simulator", simulator) if hasattr(simulator, "step") else None


def plan_sections(problem: Problem, objective: Objective, ranked: Sequence[Trial]) -> list[Section]:
    """The best plans, and where their time and memory go."""
    if not ranked:
        return []
    best = ranking(ranked, objective)
    simulator = stepping_simulator(problem)
    plans = {
        f"#{place} ": simulator.simulate(each.strategy)
        for place, each in enumerate(ranked[:PLANS], 1)
        if simulator is not None
    }
    return [
        Section("plans", "Best plans", [best]),
        *problem_sections(problem, plans, as_objective=objective.cheap),
    ]


def ranking(ranked: Sequence[Trial], objective: Objective) -> Table:
    """The best plans as a table."""
    trials = ranked[:ROWS]
    choices = shown_choices([trial.strategy for trial in trials])
    measured = trials[0].evaluation.metrics
    metrics = [name for name, _ in LARGE if name in measured and name != objective.metric]
    metrics = [objective.metric, *metrics]
    rows = [
        [
            str(place),
            *(choice_value(getattr(trial.strategy, name)) for name in choices),
            *(shown(name, trial.metric(name)) for name in metrics),
            _behind(trial, trials[0]),
        ]
        for place, trial in enumerate(trials, 1)
    ]
    head = ("#", *map(choice_heading, choices), *map(heading, metrics), "behind")
    return Table(head, rows, texts=0)


def _behind(trial: Trial, best: Trial) -> str:
    from autotune.objectives.costs import regret

    if trial.cost is None or best.cost is None:
        return "-"
    return lost(regret(trial.cost, best.cost))


def problem_sections(
    problem: Problem,
    plans: Mapping[str, SimulationResult],
    *,
    as_objective: bool,
    plan: Plan | None = None,
) -> list[Section]:
    """Time and memory of plans, by what stands before their labels; the first, which may be `plan`,
    is shown in detail. `as_objective`: whether the simulator is what they were judged by."""
    simulator = stepping_simulator(problem)
    if simulator is None or not plans:
        return []
    first = next(iter(plans.values()))
    step = simulator.step(first.strategy) if plan is None else simulator.step_plan(plan)
    return simulated_sections(plans, step, as_objective=as_objective)


def simulated_sections(
    plans: Mapping[str, SimulationResult], step: Step, *, as_objective: bool = True
) -> list[Section]:
    """Time and memory of plans, of which the first one takes this step."""
    results = {f"{name}{result.strategy.label}": result for name, result in plans.items()}
    first = next(iter(results.values()))
    notes: list[Block] = []
    if not as_objective:
        notes.append(
            Text(
                "As predicted by the simulator; the objective of this search takes its own "
                "measurements."
            )
        )
    bars = time.stage_bars(results)
    moved = time.links(step, first)
    seconds: list[Block] = [
        *notes,
        Chart(
            "bars",
            "Seconds of an iteration, stage by stage",
            bars,
            "Exposed times: the parts of a row add up to the iteration.",
            _bars_height(bars),
        ),
        _gantt(time.pipeline(step), first),
    ]
    if moved["rows"]:
        seconds += [
            Chart(
                "bars",
                "Communication of a device, by degree",
                moved,
                "Mean over ranks. Exposed: computation waits for it; hidden: computation goes on "
                "meanwhile.",
                _bars_height(moved),
            ),
            _links_table(moved),
        ]
    held = memory.holders(results)
    bytes_: list[Block] = [
        *notes,
        _held_over_the_step(memory.over_the_step(step, first), first),
        Chart("bars", "What holds the peak", held, _fullest(first), _bars_height(held)),
    ]
    return [Section("time", "Time", seconds), Section("memory", "Memory", bytes_)]


def _bars_height(data: Mapping[str, Any]) -> int:
    return (62 if data.get("limits") else 44) + 30 * len(data["rows"])


def _held_over_the_step(data: Mapping[str, Any], result: SimulationResult) -> Chart:
    caption = f"Tensors on a device of each rank, {result.strategy.label}."
    if data["actions"] < data["all_actions"]:
        drawn, every = data["actions"], data["all_actions"]
        caption += f" The first {drawn:,} of up to {every:,} actions of a rank{_until(data)}."
    return Chart("lines", "What a device holds over one step", data, caption, 270)


def _gantt(data: Mapping[str, Any], result: SimulationResult) -> Chart:
    left_out = ""
    if len(data["actions"]) < data["all_actions"]:
        drawn, every = len(data["actions"]), data["all_actions"]
        left_out = f" The first {drawn:,} of {every:,} actions{_until(data)}."
    if len(data["messages"]) < data["all_messages"]:
        left_out += f" The first {len(data['messages']):,} of {data['all_messages']:,} messages."
    ranks = data["ranks"]
    lines = "; lines are messages" if data["messages"] else ""
    caption = f"{result.strategy.label}: one step, rank by rank{lines}.{left_out}"
    overhead = max(stage.seconds.get(OVERHEAD, 0.0) for stage in result.stages)
    if overhead:
        caption += f" In addition, each step has {short_seconds(overhead)} of overhead."
    return Chart("gantt", "The pipeline", data, caption, 74 + 26 * min(ranks, 40))


def _until(data: Mapping[str, Any]) -> str:
    return f", {short_seconds(data['drawn_seconds'])} of {short_seconds(data['seconds'])}"


def _links_table(moved: Mapping[str, Any]) -> Table:
    rows = [
        [
            each["along"],
            each["level"],
            each["op"],
            f"{each['count']:,.0f}" if each["count"] >= 1 else f"{each['count']:.2g}",
            short_bytes(each["bytes"]),
            short_seconds(each["seconds"]),
        ]
        for each in moved["kinds"]
    ]
    head = ("degree", "link level", "what", "count", "bytes", "seconds")
    return Table(head, rows, "Per device and step, mean over ranks", texts=3)


def _fullest(result: SimulationResult) -> str:
    fullest = max(result.stages, key=lambda stage: stage.peak_memory_bytes)
    held = sorted(fullest.memory.items(), key=lambda item: -item[1])
    name, size = held[0]
    share = size / fullest.peak_memory_bytes if fullest.peak_memory_bytes else 0.0
    what = choice_heading(name.removesuffix("_bytes"))
    return (
        f"Stage {fullest.stage} is fullest: {short_bytes(fullest.peak_memory_bytes)} in tensors, "
        f"{percent(share)} of it {what}. {on_host(result)}".strip()
    )


def space_sections(result: TuneResult) -> list[Section]:
    """What the space looks like, as far as it is known."""
    best = result.best
    cost = best.cost if best is not None else None
    if result.grid is not None:
        return _landscape_sections(result.problem, result.grid.landscape, best, cost)
    if len(result.trials) < 2:
        return []
    known = list({trial.strategy: trial for trial in (*result.trials, *result.ranked)}.values())
    points = space.points_of_trials(known, cost)
    front = space.pareto_front(result.ranked)
    proved = " and the best ones of the proof" if len(known) > len(result.trials) else ""
    note = (
        f"The {len(result.trials):,} strategies that were tried{proved}, {len(known):,} of "
        f"{result.problem.space.count():,}. With --compare-grid all of them are evaluated, and the "
        "effect of each choice is then exact, too."
    )
    return [_space_section(result.problem, points, front, best, note, [])]


def _landscape_sections(
    problem: Problem,
    landscape: Landscape,
    best: Trial | None,
    cost: float | None,
) -> list[Section]:
    if landscape.seen < 2:
        return []  # one point has no space around it
    points = space.points_of_space(landscape, cost)
    shown_points = len(points["states"])
    note = f"All {landscape.seen:,} strategies."
    if shown_points < landscape.seen:
        note = (
            f"{shown_points:,} of {landscape.seen:,} strategies, drawn evenly at random; the "
            "front, the best, importance and heat maps take all of them into account."
        )
    exact: list[Block] = []
    if best is not None and len(landscape.choices) > 1:
        effects = space.effects(landscape, cost)
        exact = [
            Chart(
                "effects",
                "How much each choice matters",
                effects,
                "Dots: how far the best strategy with this value is behind the best of all. "
                "Percentages: the share of the variance of the log of the objective, over all "
                "feasible strategies, that the choice alone explains. Exact, from the grid.",
                56 + 30 * len(effects["rows"]),
            ),
            Chart(
                "heat",
                "Two choices together",
                space.heat_maps(landscape, cost),
                "How far the best strategy with both values is behind the best of all. Exact.",
                380,
            ),
        ]
    return [_space_section(problem, points, landscape.front, best, note, exact)]


def _space_section(
    problem: Problem,
    points: dict[str, Any],
    front: Sequence[Trial],
    best: Trial | None,
    note: str,
    exact: Sequence[Block],
) -> Section:
    blocks: list[Block] = [Text(note)]
    if any(value is not None for value in points["needed"]):
        blocks.append(
            Chart(
                "space",
                "Time against memory",
                space.time_and_memory(points, front, best, problem),
                "Every dot is a strategy."
                + (" On the line: nothing is both faster and smaller." if front else ""),
                420,
            )
        )
    beside = space.parallel(points)
    if len(points["choices"]) > 1 and beside["last"]["values"]:
        brushing = (
            "Drag along an axis to keep only the lines that pass there; click the axis to undo "
            "this."
        )
        drawn = _how_many(len(beside["last"]["values"]), beside["total"])
        blocks.append(
            Chart("parallel", "Strategies side by side", beside, f"{brushing}{drawn}", 400)
        )
    return Section("space", "The space", [*blocks, *exact])


def _how_many(drawn: int, known: int) -> str:
    """Which of the strategies are drawn, where that is not all of them."""
    if drawn == known:
        return ""
    return f" {drawn:,} of {known:,} are drawn: the best ones, and an even sample of the others."


def search_chart(data: Mapping[str, Any]) -> Chart:
    """Curves of searches (`search.searches`)."""
    caption = f"0 is the {data['zero']}."
    curves = [(each["label"], curve) for each in data["samplers"] for curve in each["curves"]]
    if len(curves) == 1 and 0.0 in curves[0][1]:
        label, curve = curves[0]
        caption += f" It was reached in trial {1 + curve.index(0.0)} ({label})."
    if len({len(curve) for _, curve in curves}) > 1:
        caption += " A dot marks a search that ended before the others."
    return Chart("search", "Regret of the best so far, by trial", data, caption, 300)


def search_sections(result: TuneResult) -> list[Section]:
    """How the search went, where it found something."""
    curve = search.search_of(result)
    if curve is None or len(result.trials) < 2:
        return []
    if not any(curve["tried"]):
        same = Text("Every trial that fits is as good as the best.")
        return [Section("search", "The search", [same])]
    return [Section("search", "The search", [search_chart(curve)])]


def why_sections(
    problem: Problem,
    objective: Objective,
    best: Trial | None,
    layouts: Sequence[Trial],
    landscape: Landscape | None = None,
) -> list[Section]:
    """Why the best plan wins against those of other layouts, where a simulator stands behind the
    objective; with the landscape of the whole space, what did not fit, too."""
    if best is None or not objective.cheap or stepping_simulator(problem) is None:
        return []
    blocks = why_blocks(problem, best.strategy, layouts)
    if landscape is not None:
        missing = out_of_reach(landscape.out_of_reach, best, problem.memory_bytes)
        blocks += [missing] if missing is not None else []
    return [Section("why", "Why this plan", blocks)]


def study_why_sections(result: TuneResult) -> list[Section]:
    """Why the best plan of a search wins."""
    landscape = None if result.grid is None else result.grid.landscape
    return why_sections(result.problem, result.objective, result.best, result.layouts, landscape)


def grid_why_sections(problem: Problem, objective: Objective, grid: Grid) -> list[Section]:
    """Why the best plan of a space wins of which every strategy was evaluated."""
    return why_sections(problem, objective, grid.best, grid.layouts, grid.landscape)


def grid_space_sections(problem: Problem, grid: Grid) -> list[Section]:
    """What a space looks like of which every strategy was evaluated."""
    cost = None if grid.best is None else grid.best.cost
    return _landscape_sections(problem, grid.landscape, grid.best, cost)


__all__ = [
    "grid_space_sections",
    "grid_why_sections",
    "plan_sections",
    "problem_sections",
    "ranking",
    "search_chart",
    "search_sections",
    "simulated_sections",
    "space_sections",
    "stepping_simulator",
    "study_why_sections",
    "why_sections",
]
