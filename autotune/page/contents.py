"""What a page is made of. All of it is plain values, which JSON can say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

ChartKind: TypeAlias = Literal[
    "bars", "gantt", "lines", "space", "parallel", "heat", "effects", "search", "scatter", "front"
]
"""How data are drawn; `assets/page.js` has a function for each."""


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class Code:
    """Something to type."""

    text: str
    kind: Literal["code"] = "code"


@dataclass(frozen=True, slots=True)
class Table:
    """A table; of the columns all but the first `texts` are numbers, which stand to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]] = field(repr=False)
    caption: str = ""
    texts: int = 1
    folded: bool = False
    """Whether it is shown only when it is opened."""
    kind: Literal["table"] = "table"


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture: how it is drawn, of what, and in words what is to be seen."""

    draw: ChartKind
    title: str
    data: Mapping[str, Any] = field(repr=False)
    caption: str = ""
    height: int = 320
    """Pixels."""
    kind: Literal["chart"] = "chart"


Block: TypeAlias = Text | Code | Table | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """Part of a page, with a heading."""

    name: str
    """For links."""
    title: str
    blocks: Sequence[Block] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that is shown large."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report."""

    title: str
    answer: str
    """The first sentence."""
    good: bool
    """Whether there is something to recommend."""
    facts: Sequence[Fact]
    lead: Sequence[str]
    """Sentences below the answer."""
    sections: Sequence[Section]

    @property
    def charts(self) -> list[Chart]:
        """All charts, in the order of the page."""
        blocks = [block for section in self.sections for block in section.blocks]
        return [block for block in blocks if isinstance(block, Chart)]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)
