"""Which sections the report of each command has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.objectives.objective import Objective
from autotune.page import search
from autotune.page.answers import (
    best_sentence,
    facts_of,
    metric_facts,
    to_measure,
    without_plan,
)
from autotune.page.assumed import assumed_blocks
from autotune.page.contents import Block, Code, Page, Section, Table, Text
from autotune.page.front import front_sections
from autotune.page.sections import (
    grid_space_sections,
    grid_why_sections,
    plan_sections,
    problem_sections,
    search_chart,
    search_sections,
    simulated_sections,
    space_sections,
    stepping_simulator,
    study_why_sections,
    why_sections,
)
from autotune.problem import Problem
from autotune.reports.advice import conclusions, without_best
from autotune.reports.breakdown import breakdown
from autotune.reports.quantities import described
from autotune.reports.study import comparison_lines, search_lines, setbacks
from distir.units import counted, percent

if TYPE_CHECKING:
    from autotune.exhaustive.certificate import Certificate
    from autotune.exhaustive.grid import Grid
    from autotune.questions.compare import Comparison
    from autotune.result import TuneResult
    from distir.plan import Plan
    from distir.simulation import SimulationResult
    from distir.strategy import Strategy


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
        answer, lines = without_plan(result)
        lead += lines
    else:
        answer = best_sentence(problem, objective, best)
        lead += [*comparison_lines(result, best), *to_measure(result)]
        if objective.cheap:
            lead += conclusions(breakdown(problem, best.strategy))
        if told.launch is not None:
            ready = [Text("Start the best plan with:"), Code(told.launch)]
            sections.append(Section("launch", "Launch", ready))
    if result.error is not None:
        lead.append(f"The search ended early: {result.error}.")
    lead += [*search_lines(result), *problem.notes]
    sections += front_sections(result)
    sections += plan_sections(problem, objective, result.ranked)
    sections += [*space_sections(result), *search_sections(result), *study_why_sections(result)]
    said = {
        "objective": f"{objective.name}, {'maximized' if objective.maximize else 'minimized'}",
        "sampler": f"{result.sampler}, seed {result.seed}, {counted(len(result.trials), 'trial')}",
    }
    sections.append(_assumed(problem, said, told))
    return Page(
        title=problem.title,
        answer=answer,
        good=best is not None,
        facts=facts_of(problem, objective, best),
        lead=lead,
        sections=sections,
    )


def grid_page(problem: Problem, objective: Objective, grid: Grid, told: Told | None = None) -> Page:
    """The report of an exhaustive evaluation."""
    told = told or Told()
    best = grid.best
    stopped = "" if grid.complete else ", interrupted"
    evaluated = (
        f"{problem.of_space(grid.space_size)}; evaluated "
        f"{grid.evaluated:,} in {grid.seconds:.2f} s{stopped}; {grid.feasible:,} feasible."
    )
    lead = [evaluated]
    if best is not None:
        answer = best_sentence(problem, objective, best)
    else:
        answer, said = without_best(problem, objective, grid)
        lead += said
    lead += setbacks(grid.evaluated, grid.infeasible, grid.failures)
    sections = plan_sections(problem, objective, grid.ranked)
    sections += grid_space_sections(problem, grid)
    sections += grid_why_sections(problem, objective, grid)
    sections.append(_assumed(problem, {"objective": objective.name}, told))
    facts = facts_of(problem, objective, best)
    return Page(problem.title, answer, best is not None, facts, lead, sections)


def certificate_page(
    problem: Problem, objective: Objective, certificate: Certificate, told: Told | None = None
) -> Page:
    """The report of a certified search."""
    told = told or Told()
    best = certificate.best
    evaluated = (
        f"{problem.of_space(certificate.space_size)}; evaluated "
        f"{certificate.evaluated:,}{certificate.rest}, in {certificate.seconds:.2f} s."
    )
    ruled_out = [f"{count:,} {reason}." for reason, count in certificate.ruled_out.items()]
    lead = [evaluated, *ruled_out]
    if best is not None:
        answer = best_sentence(problem, objective, best)
        proved = "That is proved to be the best." if certificate.proved else "Not proved yet."
        lead.append(proved)
    else:
        answer, said = without_best(problem, objective, certificate)
        lead += said
    sections = plan_sections(problem, objective, certificate.ranked)
    sections += why_sections(problem, objective, best, certificate.layouts)
    sections.append(_assumed(problem, {"objective": objective.name}, told))
    facts = facts_of(problem, objective, best)
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
    lead = [*problem.notes, *conclusions(breakdown(problem, result.strategy))]
    fits = "fits" if result.feasible else f"does not fit: {result.reason}"
    answer = f"{described(result.strategy)}: {fits}."
    plans: dict[str, SimulationResult] = {"": result}
    simulator = stepping_simulator(problem)
    if other is not None and simulator is not None:
        plans["against "] = simulator.simulate(other)
    sections = problem_sections(problem, plans, as_objective=True, plan=plan)
    sections.append(_assumed(problem, {}, told))
    facts = metric_facts(problem.memory_bytes, result.metrics, result.band)
    return Page(problem.title, answer, result.feasible, facts, lead, sections)


def simulation_page(result: SimulationResult) -> Page:
    """One simulated plan by itself: a result that knows its step, and nothing of a problem."""
    fits = "fits" if result.feasible else f"does not fit: {result.reason}"
    answer = f"{described(result.strategy)}: {fits}."
    step = None if result.make_step is None else result.make_step()
    sections = [] if step is None else simulated_sections({"": result}, step)
    facts = metric_facts(result.memory_limit_bytes, result.metrics, result.band)
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
        f"{first.sampler} loses least compared with the best of {grid.space_size:,} strategies: "
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
    blocks: list[Block] = [search_chart(found), Table(head, rows)]
    sections = [Section("search", "Samplers against exhaustive search", blocks)]
    best = grid.best
    sections += grid_space_sections(problem, grid)
    said = {"samplers": ", ".join(curves), "seeds": str(first.seeds)}
    sections.append(_assumed(problem, said, told))
    facts = facts_of(problem, comparison.objective, best)
    return Page(problem.title, answer, True, facts, (), sections)


def _assumed(problem: Problem, said: Mapping[str, str], told: Told) -> Section:
    return Section("assumed", "What was assumed", assumed_blocks(problem, said, told.command))


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else percent(fraction)


__all__ = [
    "Told",
    "certificate_page",
    "comparison_page",
    "grid_page",
    "plan_page",
    "simulation_page",
    "study_page",
]
