"""Pipeline schedules as data: families, text form, validation, compilation.

`SCHEDULES` has the schedule families for training by name. A family is called with `(ranks, chunks,
microbatches)` and has a file in `families/`. Inference has one family, `forward_only`.
"""

from __future__ import annotations

from distir.schedules.compiled.compile import (
    BACKWARD,
    COMPLETING,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    PAIR,
    WEIGHT_PART,
    CompiledSchedule,
    PeakInFlight,
    Situation,
    SituationTable,
    compile_schedule,
    cost_kind,
)
from distir.schedules.compiled.costs import kinds_of_actions
from distir.schedules.core.action import ACTION_KINDS, Action, ActionKind, parse_action
from distir.schedules.core.family import (
    SCHEDULES,
    ScheduleFamily,
    ScheduleGenerator,
    StagePlacement,
    schedule_family,
    stages_on_ranks,
)
from distir.schedules.core.load import family_of_file, load_schedule
from distir.schedules.core.rhythm import RepeatedSteps, Rhythm
from distir.schedules.core.schedule import (
    Schedule,
    dependencies,
    format_grid,
    format_schedule,
    max_in_flight,
    parse_schedule,
)
from distir.schedules.core.validate import validate
from distir.schedules.find import find_schedule
from distir.schedules.forward_only import forward_only

__all__ = [
    "ACTION_KINDS",
    "BACKWARD",
    "COMPLETING",
    "COST_KINDS",
    "FORWARD",
    "INPUT_PART",
    "PAIR",
    "SCHEDULES",
    "WEIGHT_PART",
    "Action",
    "ActionKind",
    "CompiledSchedule",
    "PeakInFlight",
    "RepeatedSteps",
    "Rhythm",
    "Schedule",
    "ScheduleFamily",
    "ScheduleGenerator",
    "Situation",
    "SituationTable",
    "StagePlacement",
    "compile_schedule",
    "cost_kind",
    "dependencies",
    "family_of_file",
    "find_schedule",
    "format_grid",
    "format_schedule",
    "forward_only",
    "kinds_of_actions",
    "load_schedule",
    "max_in_flight",
    "parse_action",
    "parse_schedule",
    "schedule_family",
    "stages_on_ranks",
    "validate",
]
