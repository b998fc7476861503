"""Renderables as text, as HTML, and on the terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from distir.errors import DistirError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

WIDTH = 120
"""Columns of a report that is not shown on a terminal."""


def console(**options: Any) -> Console:
    """A console for reports: as wide as the terminal; where there is none, as wide as $COLUMNS
    says, or wide enough."""
    from rich.console import Console

    class Terminal(Console):
        """A console that leaves a closed stdout to whoever runs the command."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    made = Terminal(highlight=False, **options)
    is_stated = "width" in options or os.environ.get("COLUMNS", "").isdigit()
    if not made.is_terminal and not is_stated:
        made.width = max(made.width, WIDTH)
    return made


def plain_table(title: str | None = None) -> Table:
    """A table with a rule below its head, two columns of space between its own."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))


@dataclass(frozen=True, slots=True)
class FirstFitting:
    """The first of several forms of one thing that is no wider than the terminal, otherwise the
    last."""

    forms: Sequence[RenderableType]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        ample = options.update_width(1000)
        widths = (console.measure(form, options=ample).maximum for form in self.forms)
        fitting = (
            form for form, w in zip(self.forms, widths, strict=True) if w <= options.max_width
        )
        yield next(fitting, self.forms[-1])


def broken_at(text: str, separator: str, width: int) -> str:
    """The text in lines of at most `width` characters that end after separators."""
    lines = [""]
    for word in text.split(separator):
        part = f"{lines[-1]}{separator}{word}" if lines[-1] else word
        if lines[-1] and len(part) > width:
            lines[-1] += separator
            lines.append(word)
        else:
            lines[-1] = part
    return "\n".join(lines)


class Pictured(Protocol):
    """What notebooks show of a result: by itself in short, and figure by figure."""

    def in_short(self) -> str: ...
    def time(self) -> Any: ...
    def memory(self) -> Any: ...
    def space(self) -> Any: ...
    def search(self) -> Any: ...
    def why(self) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What shows itself: on a terminal, as text, and in a notebook."""

    report: Callable[[Any], RenderableType] = field(repr=False, compare=False)
    """What is shown. It is handed in: results know no reports."""
    figures: Callable[[Any], Pictured] | None = field(default=None, repr=False, compare=False)
    """What notebooks show. It is handed in, too."""

    def __rich__(self) -> RenderableType:
        return self.report(self)

    def __str__(self) -> str:
        return as_text(self)

    @property
    def plot(self) -> Pictured:
        """The figures of the report, for notebooks: `plot.time()`, `plot.space()`, …

        Raises `DistirError` if there are none for such a result.
        """
        if self.figures is None:
            raise DistirError(f"a {type(self).__name__} has no figures")
        return self.figures(self)

    def _repr_html_(self) -> str:
        return as_html(self) if self.figures is None else self.plot.in_short()


def as_text(renderable: RenderableType) -> str:
    """Plain text without colours."""
    file = io.StringIO()
    console(file=file, width=WIDTH, color_system=None).print(renderable, crop=False)
    return file.getvalue()


def as_html(renderable: RenderableType) -> str:
    """HTML for a notebook."""
    recorded = console(file=io.StringIO(), record=True, width=WIDTH)
    recorded.print(renderable)
    return recorded.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
