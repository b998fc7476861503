"""The atoms of a schedule: `2F0` is the forward pass of stage 2 on microbatch 0."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias, cast

from distir.errors import ScheduleError

__all__ = ["KINDS", "Action", "Kind", "parse_action"]

Kind: TypeAlias = Literal["F", "B", "W", "BW"]
"""What an action does.

- `F`: forward pass.
- `B`: backward pass. All of it in a schedule without `W`; the part that the gradient sent upstream
  needs in one with `W`.
- `W`: the rest of the backward pass: gradients of parameters.
- `BW`: both parts of the backward pass as one, for schedules that split only some of them.
"""

KINDS: tuple[Kind, ...] = ("F", "B", "W", "BW")

_TEXT = re.compile(r"([0-9]+)(F|BW|B|W)([0-9]+)")


class Action(NamedTuple):
    """One entry of a schedule."""

    stage: int
    """Position in the pipeline, from 0; each chunk of a rank is a stage of its own."""
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def is_backward(self) -> bool:
        """Whether this is some part of the backward pass."""
        return self.kind != "F"


def parse_action(text: str) -> Action:
    """The action written as `text`; raises `ScheduleError`."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ScheduleError(
            f"{text!r} is not an action; expected stage, kind ({', '.join(KINDS)}) and microbatch, "
            "such as 2F0"
        )
    stage, kind, microbatch = match.groups()
    return Action(int(stage), cast("Kind", kind), int(microbatch))
