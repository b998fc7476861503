"""A schedule is data: the actions of every pipeline rank, in order.

In text form, with a line per rank:

    0F0 0F1 0B0 0F2 0B1 0B2
    1F0 1B0 1F1 1B1 1F2 1B2

A schedule has no times: when an action starts follows from the order of actions and from their
durations. A rank may hold several stages (chunks). A stage may be on several ranks (bidirectional
pipelines), as long as each microbatch stays on one of them.

A forward pass and the backward pass of another microbatch may be an *overlapped pair*, written
`(0F1;1B0)OVERLAP_F_B`: a rank begins both when it has what both need, lets them share its streams,
and sends what they make when both are done. What has no streams may run them one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain

from distir.errors import ScheduleError
from distir.schedules.core.action import Action, format_pair, parse_actions

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
    """The actions of every rank, in order. Schedules with equal actions are equal, whatever their
    names."""

    ranks: tuple[tuple[Action, ...], ...]
    stages: int
    """Number of pipeline stages over all ranks, chunks included."""
    microbatches: int
    name: str = field(default="", compare=False)
    overlapped: tuple[tuple[int, ...], ...] = ()
    """Per rank, the positions of the forward passes that run overlapped with the backward pass that
    comes next; empty if there are none on any rank."""

    @property
    def actions(self) -> Iterator[Action]:
        """All actions, rank by rank."""
        return chain.from_iterable(self.ranks)

    @property
    def has_backward(self) -> bool:
        """Whether this is a training schedule; False if it has forward passes only."""
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
    """The actions that must have ended before an action starts. One that can be `B` or `BW` is
    given as `B`.

    Forward passes run from the first to the last of the stages, backward passes back.
    """
    stage, kind, microbatch = action
    if kind == "F":
        return (Action(stage - 1, "F", microbatch),) if stage > 0 else ()
    if kind == "W":
        return (Action(stage, "B", microbatch),)
    forward = Action(stage, "F", microbatch)
    return (forward,) if stage == stages - 1 else (forward, Action(stage + 1, "B", microbatch))


def max_in_flight(schedule: Schedule, stage: int) -> int:
    """The most microbatches whose activations a stage holds at a time, on the rank with most.

    Activations are kept from the forward pass to the end of the backward pass (of `W` where it is
    split), or without a backward pass only during the action.
    """
    if not schedule.has_backward:
        return 1
    return max(_peak(rank, stage) for rank in schedule.ranks)


def _peak(rank: tuple[Action, ...], stage: int) -> int:
    """The most microbatches of a stage that are between their first and last action on a rank."""
    actions = [action for action in rank if action.stage == stage]
    last = {action.microbatch: index for index, action in enumerate(actions)}
    held = peak = 0
    for index, action in enumerate(actions):
        held += action.kind == "F"
        peak = max(peak, held)
        held -= last[action.microbatch] == index
    return peak


def parse_schedule(text: str, name: str = "") -> Schedule:
    """Reads a schedule in text form: a line per rank, actions and overlapped pairs separated by
    blanks, comments after `#`.

    Raises `ScheduleError` if the notation is wrong; `validate` checks whether the schedule can run.
    """
    ranks: list[tuple[Action, ...]] = []
    overlapped: list[tuple[int, ...]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            words = [parse_actions(word) for word in line.partition("#")[0].split()]
        except ScheduleError as error:
            raise ScheduleError(f"line {number}: {error}") from error
        if words:
            ranks.append(tuple(chain.from_iterable(words)))
            ends = accumulate(map(len, words))
            overlapped.append(
                tuple(end - 2 for end, word in zip(ends, words, strict=True) if len(word) == 2)
            )
    if not ranks:
        raise ScheduleError("the schedule is empty; expected a line of actions per rank")
    stages = 1 + max(action.stage for rank in ranks for action in rank)
    microbatches = 1 + max(action.microbatch for rank in ranks for action in rank)
    pairs = tuple(overlapped) if any(overlapped) else ()
    return Schedule(tuple(ranks), stages, microbatches, name, pairs)


def format_schedule(schedule: Schedule) -> str:
    """The text form of a schedule, which `parse_schedule` reads back."""
    return "\n".join(" ".join(_words(schedule, rank)) for rank in range(len(schedule.ranks)))


def _words(schedule: Schedule, rank: int) -> Iterator[str]:
    """The actions and overlapped pairs of a rank as text."""
    actions = schedule.ranks[rank]
    if not schedule.overlapped:
        yield from map(str, actions)
        return
    begins = {*schedule.overlapped[rank]}
    for position, action in enumerate(actions):
        if position in begins:
            yield format_pair(action, actions[position + 1])
        elif position - 1 not in begins:
            yield str(action)


def format_grid(schedule: Schedule, mark: tuple[int, int] | None = None, *, reach: int = 6) -> str:
    """A schedule as a table: a line per rank, a column per position.

    The action at `mark` (rank, position) stands in brackets. At most `reach` ranks and positions
    are shown on each side of the mark, or of the first action without one.
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
