"""Pipeline schedules as data: generators, text form, validation.

`SCHEDULES` names those for training; each is a family, called with `(ranks, chunks, microbatches)`,
and a file in `families/`. Inference has one schedule, `forward_only`.
"""

from __future__ import annotations

from distir.schedules.compiled.compile import (
    BACKWARD,
    COMPLETING,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
    CompiledSchedule,
    Held,
    HeldMatrix,
    InFlight,
    compile_schedule,
    kind_of,
)
from distir.schedules.core.action import KINDS, Action, Kind, parse_action
from distir.schedules.core.family import (
    SCHEDULES,
    Placement,
    ScheduleFamily,
    ScheduleGenerator,
    schedule_family,
    stages_on_ranks,
)
from distir.schedules.core.load import family_of_file, load_schedule
from distir.schedules.core.rhythm import Rhythm, Run
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
    "BACKWARD",
    "COMPLETING",
    "COST_KINDS",
    "FORWARD",
    "INPUT_PART",
    "KINDS",
    "SCHEDULES",
    "WEIGHT_PART",
    "Action",
    "CompiledSchedule",
    "Held",
    "HeldMatrix",
    "InFlight",
    "Kind",
    "Placement",
    "Rhythm",
    "Run",
    "Schedule",
    "ScheduleFamily",
    "ScheduleGenerator",
    "compile_schedule",
    "dependencies",
    "family_of_file",
    "find_schedule",
    "format_grid",
    "format_schedule",
    "forward_only",
    "kind_of",
    "load_schedule",
    "max_in_flight",
    "parse_action",
    "parse_schedule",
    "schedule_family",
    "stages_on_ranks",
    "validate",
]
