"""Actions, of which schedules consist: `2F0` is the forward pass of stage 2 on microbatch 0.

Two actions may run side by side: `(0F1;1B0)OVERLAP_F_B`, as PyTorch's schedule files write it.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias, cast

from distir.errors import ScheduleError, shown

__all__ = ["ACTION_KINDS", "Action", "ActionKind", "format_pair", "parse_action", "parse_actions"]

ActionKind: TypeAlias = Literal["F", "B", "W", "BW"]
"""What an action does.

- `F`: forward pass.
- `B`: backward pass. In a schedule without `W` all of it; in a schedule with `W` the part that the
  gradient for the previous stage needs.
- `W`: the rest of the backward pass, which makes the gradients of parameters.
- `BW`: both parts of the backward pass as one action, in a schedule that splits only some of them.
"""

ACTION_KINDS: tuple[ActionKind, ...] = ("F", "B", "W", "BW")

_TEXT = re.compile(r"([0-9]{1,9})(F|BW|B|W)([0-9]{1,9})")

_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")


class Action(NamedTuple):
    """One entry of a schedule: what a rank does with a microbatch."""

    stage: int
    """Position in the pipeline, from 0; each chunk of a rank is a stage of its own."""
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def is_backward(self) -> bool:
        """Whether this is the backward pass or a part of it."""
        return self.kind != "F"


def parse_action(text: str) -> Action:
    """The action that is written as `text`; raises `ScheduleError` if `text` is no action."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ScheduleError(
            f"{shown(text)} is not an action; expected stage, kind ({', '.join(ACTION_KINDS)}) and "
            "microbatch, such as 2F0"
        )
    stage, kind, microbatch = match.groups()
    return Action(int(stage), cast("ActionKind", kind), int(microbatch))


def parse_actions(text: str) -> tuple[Action, ...]:
    """The action that is written as `text`, or the two of an overlapped pair, forward first.

    Raises `ScheduleError` if `text` is neither.
    """
    match = _PAIR.fullmatch(text)
    if match is None:
        return (parse_action(text),)
    forward, backward = map(parse_action, match.groups())
    if forward.is_backward or backward.kind not in ("B", "BW"):
        raise ScheduleError(
            f"{text!r} is not an overlapped pair; expected a forward pass and a whole backward "
            "pass, "
            "such as (0F1;1B0)OVERLAP_F_B"
        )
    return forward, backward


def format_pair(forward: Action, backward: Action) -> str:
    """The text of two actions that run side by side, which `parse_actions` reads back."""
    return f"({forward};{backward})OVERLAP_F_B"
