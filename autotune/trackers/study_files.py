"""The files of a tracked study. `FILES` lists them all, each with the function that makes it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from distir.errors import DistirError

if TYPE_CHECKING:
    from autotune.page.contents import Page
    from autotune.result import TuneResult


@dataclass(frozen=True)
class Written:
    """A study that is over, with what its command knows beside the result."""

    result: TuneResult
    command: str | None = None
    """The command line."""
    launch: Mapping[str, str] = field(default_factory=dict[str, str])
    """The files with which a framework runs the best plan, by name, where they are asked for."""
    launch_command: str | None = None
    """What starts them."""

    @cached_property
    def page(self) -> Page:
        """The report with charts."""
        from autotune.page.reports import Told, study_page

        return study_page(self.result, Told(self.command, self.launch_command))


Contents = Mapping[str, str | bytes]
"""Files by name; a name may have folders."""


@dataclass(frozen=True, slots=True)
class StudyFile:
    """A file of a study, or the files of a folder."""

    name: str
    """`*` stands for what differs from study to study."""
    what: str
    make: Callable[[Written], Contents]
    """Nothing where the study has no such file."""


def files_of(written: Written) -> Iterator[tuple[str, str | bytes]]:
    """All files of a study by name. Where one cannot be made, there is a text that says why."""
    for file in FILES:
        try:
            yield from file.make(written).items()
        except DistirError as error:
            yield f"{file.name.replace('*', 'all')}.error.txt", f"{file.what}: {error}\n"


def _page(written: Written) -> Contents:
    from autotune.page.render import page_html

    return {"report.html": page_html(written.page)}


def _text(written: Written) -> Contents:
    from autotune.rendering import as_text
    from autotune.reports.study import study_report

    return {"report.txt": as_text(study_report(written.result))}


def _command(written: Written) -> Contents:
    return {} if written.command is None else {"command.sh": written.command + "\n"}


def _space(written: Written) -> Contents:
    problem = written.result.problem
    if problem.searched is None:
        return {}
    title = f"# {problem.space_name}: {problem.space.count():,} strategies for {problem.title}\n"
    return {"space.yaml": title + problem.searched.to_yaml()}


def _pareto(written: Written) -> Contents:
    front = written.result.to_dict()["pareto"]
    return {} if front is None else {"pareto.json": json.dumps(front, indent=2) + "\n"}


def _plan(written: Written) -> Contents:
    from distir.plan_text import format_plan

    made = _of_best(written, "plan")
    return {} if made is None else {"best.plan": format_plan(made)}


def _trace(written: Written) -> Contents:
    made = _of_best(written, "trace")
    if made is None:
        return {}
    return {"best.trace.json.gz": gzip.compress(json.dumps(made).encode(), 6, mtime=0)}


def _of_best(written: Written, what: str) -> Any:
    """What the simulator makes of the best strategy, if there are both."""
    best, made = written.result.best, getattr(written.result.problem.simulator, what, None)
    return None if best is None or made is None else made(best.strategy)


def _plots(written: Written) -> Contents:
    from autotune.page.contents import Chart
    from autotune.page.notebook import Figure
    from autotune.page.render import page_html

    charted = [
        section
        for section in written.page.sections
        if any(isinstance(block, Chart) for block in section.blocks)
    ]
    title = written.page.title
    return {f"plots/{each.name}.html": page_html(Figure(title, each).page) for each in charted}


def _launch(written: Written) -> Contents:
    return {f"launch/{name}": text for name, text in written.launch.items()}


FILES = (
    StudyFile("report.html", "the report with charts", _page),
    StudyFile("report.txt", "the report as a terminal shows it", _text),
    StudyFile("command.sh", "the command line", _command),
    StudyFile("space.yaml", "the space, as `--space` reads it", _space),
    StudyFile("pareto.json", "the Pareto front, where there are several objectives", _pareto),
    StudyFile("best.plan", "the best plan, as `--plan` reads it", _plan),
    StudyFile("best.trace.json.gz", "a step of the best plan, as ui.perfetto.dev reads it", _trace),
    StudyFile("plots/*.html", "the charts of the report, section by section", _plots),
    StudyFile("launch/*", "what `--launch` writes for a framework", _launch),
)
"""All files that are made when a study is over; the table of its trials grows beside them."""

__all__ = ["FILES", "StudyFile", "Written", "files_of"]
