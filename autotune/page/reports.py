"""Which sections the report of each command has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from autotune.objectives.objective import Objective
from autotune.objectives.simulator import needed_bytes
from autotune.page import memory, search, space, time
from autotune.page.assumed import assumed_blocks
from autotune.page.contents import Block, Chart, Code, Fact, Page, Section, Table, Text
from autotune.page.front import front_sections
from autotune.page.why import out_of_reach, why_blocks
from autotune.problem import Problem
from autotune.reports.advice import advice, closest_line, conclusions, without_best
from autotune.reports.breakdown import breakdown
from autotune.reports.quantities import (
    choice_heading,
    choice_value,
    described,
    heading,
    lost,
    shown,
)
from autotune.reports.ranking import shown_choices
from autotune.reports.simulation import on_host
from autotune.reports.study import comparison_lines, search_lines
from autotune.study.trial import Trial
from distir.metrics import (
    find_metric,
    iteration_seconds,
    mfu,
    peak_memory_bytes,
    reserved_memory_bytes,
    throughput_samples_per_second,
)
from distir.units import counted, percent, short_bytes, short_days, short_seconds

if TYPE_CHECKING:
    from autotune.exhaustive.certificate import Certificate
    from autotune.exhaustive.grid import Grid
    from autotune.exhaustive.landscape import Landscape
    from autotune.questions.compare import Comparison
    from autotune.result import TuneResult
    from distir.cost import Band
    from distir.plan import Plan
    from distir.simulation import SimulationResult, Simulator
    from distir.simulation.step import Step
    from distir.strategy import Strategy

OVERHEAD = "overhead"
"""The share of an iteration that is no action's."""
PLANS = 5
"""Best plans whose time is shown stage by stage."""
ROWS = 20
"""Best plans in the table."""
FEW = 5
"""Plans in the short form of a result."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a command knows beside its result."""

    command: str | None = None
    """The command line."""
    launch: str | None = None
    """What starts the best plan, where it was written for a framework."""


def study_page(result: TuneResult, told: Told | None = None) -> Page:
    """The report of a search."""
    told = told or Told()
    problem, objective, best = result.problem, result.objective, result.best
    lead: list[str] = []
    sections: list[Section] = []
    if best is None:
        answer, lines = _nothing(result)
        lead += lines
    else:
        answer = _best_sentence(problem, objective, best)
        lead += [*comparison_lines(result, best), *_to_measure(result)]
        if told.launch is not None:
            ready = [Text("The best plan is started by:"), Code(told.launch)]
            sections.append(Section("launch", "Launch", ready))
    if result.error is not None:
        lead.append(f"The search ended early: {result.error}.")
    lead += [*search_lines(result), *problem.notes]
    sections += front_sections(result)
    sections += plan_sections(problem, objective, result.ranked)
    sections += [*space_sections(result), *search_sections(result), *why_sections(result)]
    said = {
        "objective": f"{objective.name}, {'maximized' if objective.maximize else 'minimized'}",
        "sampler": f"{result.sampler}, seed {result.seed}, {counted(len(result.trials), 'trial')}",
    }
    sections.append(_assumed(problem, said, told))
    return Page(
        title=problem.title,
        answer=answer,
        good=best is not None,
        facts=_facts(problem, objective, best) if best is not None else (),
        lead=lead,
        sections=sections,
    )


def search_sections(result: TuneResult) -> list[Section]:
    """How the search went, where it found something."""
    curve = search.search_of(result)
    if curve is None or len(result.trials) < 2:
        return []
    if not any(curve["tried"]):
        same = Text("Every trial that fits is as good as the best.")
        return [Section("search", "The search", [same])]
    return [Section("search", "The search", [_search_chart(curve)])]


def why_sections(result: TuneResult) -> list[Section]:
    """Why the best plan wins, where a simulator stands behind the objective."""
    problem, best = result.problem, result.best
    if best is None or not result.objective.cheap or _simulator(problem) is None:
        return []
    blocks = why_blocks(problem, best.strategy, result.layouts)
    if result.grid is not None:
        reach = result.grid.landscape.out_of_reach
        missing = out_of_reach(reach, best, problem.memory_bytes)
        blocks += [missing] if missing is not None else []
    return [Section("why", "Why this plan", blocks)]


def study_in_short(result: TuneResult) -> dict[str, Any]:
    """A search in short, for a notebook: the answer, a few sentences, where the time of the best
    plans goes, and the plans."""
    problem, objective, best = result.problem, result.objective, result.best
    lines = search_lines(result)
    bars: dict[str, Any] = {"parts": [], "rows": []}
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    if best is None:
        answer, more = _nothing(result)
        lines = [*more, *lines]
    else:
        answer = _best_sentence(problem, objective, best)
        lines = [*comparison_lines(result, best), *lines]
        table = ranking(result.ranked[:FEW], objective)
        rows, head = table.rows, table.head
        if objective.cheap:
            plans = {each.label: breakdown(problem, each.strategy) for each in result.ranked[:FEW]}
            bars = time.plan_bars({name: plan.seconds for name, plan in plans.items()})
    facts = _facts(problem, objective, best) if best is not None else []
    return _short(problem.title, answer, facts, lines, bars, head, rows)


def plan_in_short(page: Page) -> dict[str, Any]:
    """One simulated plan in short, for a notebook."""
    bars = next((dict(chart.data) for chart in page.charts if chart.draw == "bars"), None)
    return _short(
        page.title, page.answer, page.facts, page.lead, bars or {"parts": [], "rows": []}, (), ()
    )


def in_short(page: Page, grid: Grid) -> dict[str, Any]:
    """A page in short, with what was found of a space."""
    lines = [f"{grid.space_size:,} strategies, evaluated in {grid.seconds:.2f} s."]
    tables = [each for s in page.sections for each in s.blocks if isinstance(each, Table)]
    head, rows = (tables[0].head, tables[0].rows) if tables else ((), ())
    nothing: dict[str, Any] = {"parts": [], "rows": []}
    return _short(page.title, page.answer, page.facts, lines, nothing, head, rows)


def _short(
    title: str,
    answer: str,
    facts: Sequence[Fact],
    lines: Sequence[str],
    bars: Mapping[str, Any],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> dict[str, Any]:
    """What the template of the short form takes. Bars are scaled to the longest."""
    longest = max((sum(row["parts"].values()) for row in bars["rows"]), default=0.0) or 1.0
    names = [part["name"] for part in bars["parts"]]
    drawn = [
        {
            "label": row["label"],
            "total": short_seconds(sum(row["parts"].values())),
            "percents": {n: round(100 * row["parts"].get(n, 0.0) / longest, 2) for n in names},
            "shown": {name: short_seconds(row["parts"].get(name, 0.0)) for name in names},
        }
        for row in bars["rows"]
    ]
    return {
        "title": title,
        "answer": answer,
        "facts": [(fact.name, fact.value, fact.detail) for fact in facts],
        "lines": list(lines),
        "bars": {"parts": bars["parts"], "rows": drawn},
        "head": head,
        "rows": rows,
    }


def grid_page(problem: Problem, objective: Objective, grid: Grid, told: Told | None = None) -> Page:
    """The report of an exhaustive evaluation."""
    told = told or Told()
    best = grid.best
    stopped = "" if grid.complete else ", interrupted"
    evaluated = (
        f"{grid.space_size:,} valid strategies in the space {problem.space_name}; evaluated "
        f"{grid.evaluated:,} in {grid.seconds:.2f} s{stopped}; {grid.feasible:,} feasible."
    )
    lead = [evaluated]
    if best is not None:
        answer = _best_sentence(problem, objective, best)
    else:
        answer, said = without_best(problem, objective, grid)
        lead += said
    sections = plan_sections(problem, objective, grid.ranked)
    sections += grid_space_sections(problem, grid)
    sections += grid_why_sections(problem, objective, grid)
    sections.append(_assumed(problem, {"objective": objective.name}, told))
    facts = _facts(problem, objective, best) if best is not None else ()
    return Page(problem.title, answer, best is not None, facts, lead, sections)


def grid_space_sections(problem: Problem, grid: Grid) -> list[Section]:
    """What a space looks like of which every strategy was evaluated."""
    cost = None if grid.best is None else grid.best.cost
    return _landscape_sections(problem, grid.landscape, grid.best, cost)


def grid_why_sections(problem: Problem, objective: Objective, grid: Grid) -> list[Section]:
    """Why the best plan of a space wins, where a simulator stands behind the objective."""
    best = grid.best
    if best is None or not objective.cheap or _simulator(problem) is None:
        return []
    blocks = why_blocks(problem, best.strategy, grid.layouts)
    missing = out_of_reach(grid.landscape.out_of_reach, best, problem.memory_bytes)
    return [Section("why", "Why this plan", [*blocks, *([missing] if missing else [])])]


def grid_in_short(problem: Problem, objective: Objective, grid: Grid) -> dict[str, Any]:
    """A grid in short, for a notebook: the answer and the best plans."""
    best = grid.best
    evaluated = f"{grid.evaluated:,} of {grid.space_size:,} strategies evaluated"
    lines = [f"{evaluated} in {grid.seconds:.2f} s; {grid.feasible:,} are feasible."]
    nothing: dict[str, Any] = {"parts": [], "rows": []}
    if best is None:
        return _short(problem.title, "Nothing fits.", (), lines, nothing, (), ())
    table = ranking(grid.ranked[:FEW], objective)
    answer, facts = _best_sentence(problem, objective, best), _facts(problem, objective, best)
    return _short(problem.title, answer, facts, lines, nothing, table.head, table.rows)


def certificate_page(
    problem: Problem, objective: Objective, certificate: Certificate, told: Told | None = None
) -> Page:
    """The report of a certified search."""
    told = told or Told()
    best = certificate.best
    evaluated = (
        f"{certificate.space_size:,} valid strategies in the space {problem.space_name}; evaluated "
        f"{certificate.evaluated:,}{certificate.rest}, in {certificate.seconds:.2f} s."
    )
    ruled_out = [f"{count:,} {reason}." for reason, count in certificate.ruled_out.items()]
    lead = [evaluated, *ruled_out]
    if best is not None:
        answer = _best_sentence(problem, objective, best)
        proved = "That is proved to be the best." if certificate.proved else "Not proved yet."
        lead.append(proved)
    else:
        answer, said = without_best(problem, objective, certificate)
        lead += said
    sections = plan_sections(problem, objective, certificate.ranked)
    if best is not None and objective.cheap and _simulator(problem) is not None:
        blocks = why_blocks(problem, best.strategy, certificate.layouts)
        sections.append(Section("why", "Why this plan", blocks))
    sections.append(_assumed(problem, {"objective": objective.name}, told))
    facts = _facts(problem, objective, best) if best is not None else ()
    return Page(problem.title, answer, best is not None, facts, lead, sections)


def plan_page(
    problem: Problem,
    result: SimulationResult,
    told: Told | None = None,
    plan: Plan | None = None,
    other: Strategy | None = None,
) -> Page:
    """The report of one simulated plan: of its strategy, or `plan` where that is cut or scheduled
    by itself. `other` is shown beside it."""
    told = told or Told()
    lead = [*problem.notes, *conclusions(problem, breakdown(problem, result.strategy))]
    fits = "fits" if result.feasible else f"does not fit: {result.reason}"
    answer = f"{described(result.strategy)}: {fits}."
    plans: dict[str, SimulationResult] = {"": result}
    simulator = _simulator(problem)
    if other is not None and simulator is not None:
        plans["against "] = simulator.simulate(other)
    sections = _simulated_sections(problem, plans, as_objective=True, plan=plan)
    sections.append(_assumed(problem, {}, told))
    facts = _metric_facts(problem.memory_bytes, result.metrics, result.band)
    return Page(problem.title, answer, result.feasible, facts, lead, sections)


def simulation_page(result: SimulationResult) -> Page:
    """One simulated plan by itself: a result that knows its step, and nothing of a problem."""
    fits = "fits" if result.feasible else f"does not fit: {result.reason}"
    answer = f"{described(result.strategy)}: {fits}."
    step = None if result.make_step is None else result.make_step()
    sections = [] if step is None else simulated_sections({"": result}, step)
    facts = _metric_facts(result.memory_limit_bytes, result.metrics, result.band)
    return Page(result.strategy.label, answer, result.feasible, facts, (), sections)


def comparison_page(comparison: Comparison, told: Told | None = None) -> Page:
    """The report of samplers against exhaustive search."""
    told = told or Told()
    problem, grid = comparison.problem, comparison.grid
    order = sorted(
        comparison.standings, key=lambda each: (each.mean_regret is None, each.mean_regret or 0.0)
    )
    first = order[0]
    answer = (
        f"{first.sampler} loses least against the best of {grid.space_size:,} strategies: "
        f"{_percent(first.mean_regret)} on average over {first.seeds} seeds of "
        f"{comparison.trials} trials."
    )
    curves = {each.sampler: each.curves for each in order}
    head = ("sampler", "best found", "within 1 %", "mean regret", "worst", "trials to 1 %", "s")
    rows = [
        [
            each.sampler,
            f"{each.found} of {each.seeds}",
            f"{each.close} of {each.seeds}",
            _percent(each.mean_regret),
            _percent(each.worst_regret),
            "-" if each.median_trials_to_close is None else f"{each.median_trials_to_close:g}",
            f"{each.seconds:.2f}",
        ]
        for each in order
    ]
    found = search.searches(curves, exhaustive=True)
    blocks: list[Block] = [_search_chart(found), Table(head, rows)]
    sections = [Section("search", "Samplers against exhaustive search", blocks)]
    best = grid.best
    sections += grid_space_sections(problem, grid)
    said = {"samplers": ", ".join(curves), "seeds": str(first.seeds)}
    sections.append(_assumed(problem, said, told))
    facts = _facts(problem, comparison.objective, best) if best is not None else ()
    return Page(problem.title, answer, True, facts, (), sections)


# --- the answer -----------------------------------------------------------------------------------


def _best_sentence(problem: Problem, objective: Objective, best: Trial) -> str:
    """The answer: the plan, what it reaches, how sure that is, and how much memory is left."""
    metrics, band = best.evaluation.metrics, problem.band
    metric = objective.metric
    named, value = heading(metric), shown(metric, best.metric(metric))
    # A rate has its unit for a name.
    reached = f"That gives {value} {named}" if "/" in named else f"Its {named} is {value}"
    known = find_metric(metric) if objective.cheap else None
    if band is not None and known is not None and known.timed:
        reached += f" (± {percent(band.relative)})"
    sentence = f"Best: {described(best.strategy)}. {reached}"
    if peak_memory_bytes.name in metrics:
        room = problem.memory_bytes - needed_bytes(metrics)
        sentence += f", with {short_bytes(room)} of {short_bytes(problem.memory_bytes)} to spare"
    return f"{sentence}."


def _nothing(result: TuneResult) -> tuple[str, list[str]]:
    """The answer where there is no plan, and what can be said all the same."""
    said = result.said_without_best
    if result.interrupted:
        return said, [*closest_line(result.closest)]
    if result.closest is None:
        return said, []
    return said, [*advice(result.problem, result.objective, result.closest)]


def _to_measure(result: TuneResult) -> list[str]:
    """Which plans to measure where simulated ones are too close to call."""
    if not result.as_good or result.best is None:
        return []
    rivals = [each for each in result.layouts if each.strategy != result.best.strategy]
    band, metric = result.problem.band, result.objective.metric
    first = result.best.metric(metric)
    close = [
        each.label
        for each in rivals
        if band is not None
        and first
        and (value := each.metric(metric))
        and not band.separates(first, value)
    ]
    if not close:
        return ["All of them have the layout of the best."]
    return [
        f"To decide, measure the best against the best of other layouts: {', '.join(close[:4])}."
    ]


def _facts(problem: Problem, objective: Objective, best: Trial) -> list[Fact]:
    band = problem.band if objective.cheap else None
    found = _metric_facts(problem.memory_bytes, best.evaluation.metrics, band)
    if objective.metric in [name for name, _ in _LARGE]:
        return found
    value = shown(objective.metric, best.metric(objective.metric))
    return [Fact(heading(objective.metric), value, "the objective"), *found]


_LONG_SECONDS = 600.0
"""From here on an iteration is also told in minutes, hours or days."""
_LARGE = (
    (throughput_samples_per_second.name, "samples per second"),
    (iteration_seconds.name, "iteration"),
    (peak_memory_bytes.name, "memory of a device"),
    (mfu.name, "MFU"),
)


def _metric_facts(
    memory_bytes: float, metrics: Mapping[str, float], band: Band | None
) -> list[Fact]:
    """What is shown large, of devices with so much memory."""
    found: list[Fact] = []
    for name, label in _LARGE:
        value = metrics.get(name)
        if value is None:
            continue
        said, detail = shown(name, value), ""
        if name == peak_memory_bytes.name:
            needed = needed_bytes(metrics)
            said = f"{short_bytes(needed)} of {short_bytes(memory_bytes)}"
            detail = _room(needed / memory_bytes)
            if reserve := metrics.get(reserved_memory_bytes.name):
                detail += f"; {short_bytes(value)} in tensors, {short_bytes(reserve)} reserve"
        elif name == iteration_seconds.name and band is not None:
            least, most = band.interval(value)
            detail = f"two runs in three: {short_seconds(least)} to {short_seconds(most)}"
        elif name == throughput_samples_per_second.name and band is not None:
            detail = f"± {percent(band.relative)}"
        if name == iteration_seconds.name and value >= _LONG_SECONDS:
            detail = f"{short_days(value)}; {detail}" if detail else short_days(value)
        found.append(Fact(label, said, detail))
    return found


def _room(filled: float) -> str:
    """How much is left, or too much, where this share of the memory is filled."""
    if filled <= 1:
        return f"{percent(1 - filled)} headroom"
    return f"{percent(filled - 1)} too much" if filled < 2 else f"{filled:.1f} times what there is"


# --- sections -------------------------------------------------------------------------------------


def _simulator(problem: Problem) -> Simulator | None:
    """The simulator of a problem, where it can show steps."""
    simulator: Any = problem.simulator
    return cast("Simulator", simulator) if hasattr(simulator, "step") else None


def plan_sections(problem: Problem, objective: Objective, ranked: Sequence[Trial]) -> list[Section]:
    """The best plans, and where their time and memory go."""
    if not ranked:
        return []
    best = ranking(ranked, objective)
    simulator = _simulator(problem)
    plans = {
        f"#{place} ": simulator.simulate(each.strategy)
        for place, each in enumerate(ranked[:PLANS], 1)
        if simulator is not None
    }
    return [
        Section("plans", "Best plans", [best]),
        *_simulated_sections(problem, plans, as_objective=objective.cheap),
    ]


def ranking(ranked: Sequence[Trial], objective: Objective) -> Table:
    """The best plans as a table."""
    trials = ranked[:ROWS]
    choices = shown_choices([trial.strategy for trial in trials])
    measured = trials[0].evaluation.metrics
    metrics = [name for name, _ in _LARGE if name in measured and name != objective.metric]
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


def _simulated_sections(
    problem: Problem,
    plans: Mapping[str, SimulationResult],
    *,
    as_objective: bool,
    plan: Plan | None = None,
) -> list[Section]:
    """Time and memory of plans, by what stands before their labels; the first, which may be `plan`,
    is shown in detail. `as_objective`: whether the simulator is what they were judged by."""
    simulator = _simulator(problem)
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
            Text("As the simulator predicts it; the objective of this search measures by itself.")
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
                "Mean over ranks. Exposed: computation waits; hidden: it goes on meanwhile.",
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
        caption += f" Each step has {short_seconds(overhead)} of overhead besides."
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
        f"{result.problem.space.count():,}. With --compare-grid all are evaluated: then what each "
        "choice matters is exact, too."
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
            "front, the best, importance and heat maps are of all."
        )
    exact: list[Block] = []
    if best is not None and len(landscape.choices) > 1:
        effects = space.effects(landscape, cost)
        exact = [
            Chart(
                "effects",
                "What each choice matters",
                effects,
                "Dots: how far the best strategy with this value is behind the best of all. "
                "Percentages: the share of the variance of the logarithm of the objective over all "
                "feasible strategies that the choice explains by itself. Exact, from the grid.",
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
        brushing = "Drag along an axis to keep only what passes there; click it to let go."
        drawn = _how_many(len(beside["last"]["values"]), beside["total"])
        blocks.append(
            Chart("parallel", "Strategies side by side", beside, f"{brushing}{drawn}", 400)
        )
    return Section("space", "The space", [*blocks, *exact])


def _how_many(drawn: int, known: int) -> str:
    """Which of the strategies are drawn, where that is not all of them."""
    if drawn == known:
        return ""
    return f" {drawn:,} of {known:,} are drawn: the best ones, and the others evenly."


def _search_chart(data: Mapping[str, Any]) -> Chart:
    caption = f"0 is the {data['zero']}."
    curves = [(each["label"], curve) for each in data["samplers"] for curve in each["curves"]]
    if len(curves) == 1 and 0.0 in curves[0][1]:
        label, curve = curves[0]
        caption += f" It was reached in trial {1 + curve.index(0.0)} ({label})."
    if len({len(curve) for _, curve in curves}) > 1:
        caption += " A dot is where a search ended before others did."
    return Chart("search", "Regret of the best so far, by trial", data, caption, 300)


def _assumed(problem: Problem, said: Mapping[str, str], told: Told) -> Section:
    return Section("assumed", "What was assumed", assumed_blocks(problem, said, told.command))


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else percent(fraction)


__all__ = [
    "Told",
    "certificate_page",
    "comparison_page",
    "grid_in_short",
    "grid_page",
    "grid_space_sections",
    "grid_why_sections",
    "in_short",
    "plan_in_short",
    "plan_page",
    "plan_sections",
    "ranking",
    "search_sections",
    "simulated_sections",
    "simulation_page",
    "space_sections",
    "study_in_short",
    "study_page",
    "why_sections",
]
