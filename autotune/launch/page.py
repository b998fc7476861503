"""The report, as a page, of what a file of a framework states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.launch.report import better_line, change_line, run_line
from autotune.page.contents import Block, Page, Section, Table, Text
from autotune.page.reports import Told, plan_page

if TYPE_CHECKING:
    from autotune.launch.better import Better
    from autotune.launch.read import Reading
    from autotune.problem import Problem


def read_page(
    problem: Problem,
    reading: Reading,
    simulated: Any,
    as_run: Any,
    found: Sequence[Better] | None,
    told: Told,
) -> Page:
    """The plan that a file states, and what would be better as the framework runs it; `as_run` has
    the result of the plan then, and what is otherwise."""
    page = plan_page(problem, simulated, told)
    blocks: list[Block] = []
    if found is not None:
        blocks.append(Text(run_line(problem, reading.target, as_run) + "."))
    for each in found or ():
        blocks.append(Text(better_line(problem, as_run[0], each) + ":"))
        changes = [[change_line(name, now, then)] for name, (now, then) in each.changes.items()]
        changes += [[f"needs {note.what}: {note.reason}"] for note in each.needed]
        blocks.append(Table(("",), changes))
    if found is not None and not found:
        blocks.append(
            Text(
                f"Of the strategies that {reading.target.name} can state, none was found that is "
                "better."
            )
        )
    left_out = [[note.what, str(note.value), note.reason] for note in reading.not_modelled]
    sections = [Section("better", "What would be better", blocks)] if blocks else []
    sections += page.sections
    if left_out:
        table = Table(("option", "value", "why"), left_out, texts=3)
        sections.append(Section("left-out", "Not simulated", [table]))
    lead = (f"{reading.path} is for {reading.target.label}.", *page.lead)
    return replace(page, lead=lead, sections=sections)
