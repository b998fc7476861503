"""A schedule is data: per pipeline rank, the order of its actions.

Whatever prints like this is a schedule:

    0F0 0F1 0B0 0F2 0B1 0B2
    1F0 1B0 1F1 1B1 1F2 1B2

Times are not part of it: with the order fixed, when each action starts follows from their
durations. A rank may hold several stages (chunks), and a stage may live on several ranks
(bidirectional pipelines), as long as each microbatch stays on one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from distir.errors import ScheduleError
from distir.schedules.core.action import Action, parse_action

__all__ = [
    "Schedule",
    "dependencies",
    "format_grid",
    "format_schedule",
    "max_in_flight",
    "parse_schedule",
]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Ordered actions per rank. Equal actions make equal schedules, whatever they are called."""

    ranks: tuple[tuple[Action, ...], ...]
    stages: int
    """Pipeline stages over all ranks, chunks included."""
    microbatches: int
    name: str = field(default="", compare=False)

    @property
    def actions(self) -> Iterator[Action]:
        """All actions, rank by rank."""
        return chain.from_iterable(self.ranks)

    @property
    def has_backward(self) -> bool:
        """Whether this is a training schedule; false for forward only."""
        return any(kind != "F" for rank in self.ranks for _, kind, _ in rank)

    @property
    def splits_backward(self) -> bool:
        """Whether `B` is only the input-gradient part, with a `W` for the rest."""
        return any(kind == "W" for rank in self.ranks for _, kind, _ in rank)

    @property
    def stages_of_ranks(self) -> tuple[tuple[int, ...], ...]:
        """The stages (chunks) that each rank holds, in pipeline order."""
        return tuple(tuple(sorted({stage for stage, _, _ in rank})) for rank in self.ranks)

    def __str__(self) -> str:
        return format_schedule(self)


def dependencies(action: Action, stages: int) -> tuple[Action, ...]:
    """What must have finished first; a dependency that can be `B` or `BW` is given as `B`.

    Forward passes run down the stages, backward passes up again.
    """
    stage, kind, microbatch = action
    if kind == "F":
        return (Action(stage - 1, "F", microbatch),) if stage > 0 else ()
    if kind == "W":
        return (Action(stage, "B", microbatch),)
    own = Action(stage, "F", microbatch)
    return (own,) if stage == stages - 1 else (own, Action(stage + 1, "B", microbatch))


def max_in_flight(schedule: Schedule, stage: int) -> int:
    """Most microbatches whose activations a stage holds at once, on the rank that holds most.

    Activations are kept from the forward pass to the end of the backward pass (to `W` where it is
    split); without a backward pass only while the action runs.
    """
    if not schedule.has_backward:
        return 1
    return max(_peak(rank, stage) for rank in schedule.ranks)


def _peak(rank: tuple[Action, ...], stage: int) -> int:
    """Most microbatches of `stage` between their first and last action on one rank."""
    own = [action for action in rank if action.stage == stage]
    last = {action.microbatch: index for index, action in enumerate(own)}
    held = peak = 0
    for index, action in enumerate(own):
        held += action.kind == "F"
        peak = max(peak, held)
        held -= last[action.microbatch] == index
    return peak


def parse_schedule(text: str, name: str = "") -> Schedule:
    """Reads the text form: a line per rank, actions between blanks, `#` starts a comment.

    Only the notation is checked here; `validate` says whether the schedule can run.
    """
    ranks: list[tuple[Action, ...]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            actions = tuple(parse_action(word) for word in line.partition("#")[0].split())
        except ScheduleError as error:
            raise ScheduleError(f"line {number}: {error}") from error
        if actions:
            ranks.append(actions)
    if not ranks:
        raise ScheduleError("the schedule is empty; expected a line of actions per rank")
    stages = 1 + max(action.stage for rank in ranks for action in rank)
    microbatches = 1 + max(action.microbatch for rank in ranks for action in rank)
    return Schedule(tuple(ranks), stages, microbatches, name)


def format_schedule(schedule: Schedule) -> str:
    """The text form, which `parse_schedule` reads back."""
    return "\n".join(" ".join(map(str, rank)) for rank in schedule.ranks)


def format_grid(schedule: Schedule, mark: tuple[int, int] | None = None, *, reach: int = 6) -> str:
    """Ranks down, order across, in columns; with `mark` (rank, position) in brackets and in view.

    At most `reach` ranks and positions are shown to each side of the mark (or of the beginning).
    """
    rank, position = mark or (0, 0)
    rows = range(max(0, rank - reach), min(len(schedule.ranks), rank + reach + 1))
    longest = max(position + 1, *map(len, schedule.ranks))
    columns = range(max(0, position - reach), min(longest, position + reach + 1))
    width = 2 + max((len(str(action)) for action in schedule.actions), default=1)
    lines = [_grid_row(schedule.ranks[row], row, columns, width, mark) for row in rows]
    hidden = len(schedule.ranks) - len(rows)
    return "\n".join(lines + ([f"… {hidden} more ranks"] if hidden else []))


def _grid_row(
    actions: tuple[Action, ...],
    rank: int,
    columns: range,
    width: int,
    mark: tuple[int, int] | None,
) -> str:
    def cell(column: int) -> str:
        text = str(actions[column]) if column < len(actions) else ""
        return f"[{text or '?'}]" if mark == (rank, column) else text

    before = "… " if columns.start > 0 else ""
    after = " …" if columns.stop < len(actions) else ""
    cells = "".join(cell(column).center(width) for column in columns)
    return f"rank {rank:<3}|{before}{cells.rstrip()}{after}"
