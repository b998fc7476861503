"""The figures of a report in a notebook: `result.plot.time()`, and a result in short."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from autotune.page.contents import Chart, Page, Section, Table
from autotune.templates import rendered
from distir.errors import DistirError

if TYPE_CHECKING:
    from autotune.exhaustive.grid import Grid
    from autotune.objectives import Objective
    from autotune.problem import Problem
    from autotune.questions.compare import Comparison
    from autotune.result import TuneResult
    from distir.strategy import Strategy

FRAME_MARGIN = 110
"""Pixels of a section around a chart and its caption."""
Sections = Callable[[], Sequence[Section]]


@dataclass(frozen=True)
class Figure:
    """A section of a report: shows itself in a notebook, and may be written to a file. `charts`
    have the data of its pictures."""

    title: str
    section: Section

    @property
    def charts(self) -> list[Chart]:
        """What is drawn, as plain data."""
        return [block for block in self.section.blocks if isinstance(block, Chart)]

    @property
    def page(self) -> Page:
        """A page of the section alone."""
        return Page(self.title, "", True, (), (), (self.section,))

    def save(self, path: str) -> None:
        """Writes the section to an HTML file, which needs no network."""
        from autotune.page.render import write_page

        write_page(self.page, path)

    def __repr__(self) -> str:
        return f"<Figure {self.section.title}: {', '.join(chart.title for chart in self.charts)}>"

    def _repr_html_(self) -> str:
        from autotune.page.render import page_html

        height = sum(chart.height + FRAME_MARGIN for chart in self.charts)
        height += sum(60 + 34 * len(b.rows) for b in self.section.blocks if isinstance(b, Table))
        return rendered("frame.html.jinja", page=page_html(self.page), height=height + FRAME_MARGIN)


@dataclass(frozen=True)
class Figures:
    """The figures of a result. `page` makes its whole report, `sections` parts of it by the names
    of the sections that are in them, without making the rest."""

    title: str
    sections: Mapping[str, Sections]
    short: Callable[[], Mapping[str, Any]]

    def in_short(self) -> str:
        """The result in short, as HTML."""
        return rendered("compact.html.jinja", **self.short())

    def _repr_html_(self) -> str:
        return self.in_short()

    def __repr__(self) -> str:
        return f"<Figures of {self.title}: {', '.join(self.sections)}>"

    def time(self) -> Figure:
        """Where the time of the best plans goes, and the pipeline of the best."""
        return self._figure("time")

    def memory(self) -> Figure:
        """What devices hold over a step of the best plan, and what holds the peak."""
        return self._figure("memory")

    def space(self) -> Figure:
        """Time against memory, strategies side by side, and what choices matter."""
        return self._figure("space")

    def search(self) -> Figure:
        """Regret by trial."""
        return self._figure("search")

    def why(self) -> Figure:
        """The best against others, and what would have to change for another one to win."""
        return self._figure("why")

    def _figure(self, name: str) -> Figure:
        made = self.sections.get(name, tuple)()
        found = next((section for section in made if section.name == name), None)
        if found is None:
            there = ", ".join(self.sections)
            raise DistirError(f"there is nothing to show for {name}; expected one of {there}")
        return Figure(self.title, found)


def study_figures(result: TuneResult) -> Figures:
    """The figures of a search."""
    from autotune.page import compact
    from autotune.page import sections as of

    sections: dict[str, Sections] = {
        "time": lambda: of.plan_sections(result.problem, result.objective, result.ranked),
        "space": lambda: of.space_sections(result),
        "search": lambda: of.search_sections(result),
        "why": lambda: of.study_why_sections(result),
    }
    sections["memory"] = sections["time"]
    return Figures(result.problem.title, sections, lambda: compact.study_in_short(result))


def plan_figures(problem: Problem, strategy: Strategy) -> Figures:
    """The figures of one simulated plan: `time` and `memory`."""
    from autotune.page import compact, reports

    simulator: Any = problem.simulator
    made = once(lambda: reports.plan_page(problem, simulator.simulate(strategy)))
    sections: dict[str, Sections] = {name: lambda: made().sections for name in ("time", "memory")}
    return Figures(problem.title, sections, lambda: compact.plan_in_short(made()))


def grid_figures(problem: Problem, objective: Objective, grid: Grid) -> Figures:
    """The figures of a space of which every strategy was evaluated."""
    from autotune.page import compact
    from autotune.page import sections as of

    sections: dict[str, Sections] = {
        "time": lambda: of.plan_sections(problem, objective, grid.ranked),
        "space": lambda: of.grid_space_sections(problem, grid),
        "why": lambda: of.grid_why_sections(problem, objective, grid),
    }
    sections["memory"] = sections["time"]
    short = partial(compact.grid_in_short, problem, objective, grid)
    return Figures(problem.title, sections, short)


def comparison_figures(comparison: Comparison) -> Figures:
    """The figures of a comparison of samplers."""
    from autotune.page import compact, reports

    made = once(lambda: reports.comparison_page(comparison))
    sections: dict[str, Sections] = {name: lambda: made().sections for name in ("search", "space")}
    return Figures(
        comparison.problem.title, sections, lambda: compact.page_in_short(made(), comparison.grid)
    )


def once(make: Callable[[], Page]) -> Callable[[], Page]:
    """A page that is made when it is first asked for, and kept."""
    return cache(make)


__all__ = [
    "Figure",
    "Figures",
    "comparison_figures",
    "grid_figures",
    "plan_figures",
    "study_figures",
]
