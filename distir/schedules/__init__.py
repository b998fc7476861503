"""Pipeline schedules as data: generators, text form, validation.

`SCHEDULES` names those for training; each is a family, called with `(ranks, chunks, microbatches)`.
Inference has one schedule, `forward_only`.
"""

from __future__ import annotations

from distir.schedules.action import KINDS, Action, Kind, parse_action
from distir.schedules.breadth_first import breadth_first
from distir.schedules.chimera import chimera
from distir.schedules.compiled import (
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
from distir.schedules.family import (
    Placement,
    ScheduleFamily,
    ScheduleGenerator,
    schedule_family,
    stages_on_ranks,
)
from distir.schedules.forward_only import forward_only
from distir.schedules.gpipe import gpipe
from distir.schedules.interleaved import interleaved
from distir.schedules.load import family_of_file, load_schedule
from distir.schedules.one_f_one_b import one_f_one_b
from distir.schedules.registered import SCHEDULES, find_schedule
from distir.schedules.rhythm import Rhythm, Run
from distir.schedules.schedule import (
    Schedule,
    dependencies,
    format_grid,
    format_schedule,
    max_in_flight,
    parse_schedule,
)
from distir.schedules.validate import validate
from distir.schedules.zero_bubble import zb_h1, zb_h2, zb_v

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
    "breadth_first",
    "chimera",
    "compile_schedule",
    "dependencies",
    "family_of_file",
    "find_schedule",
    "format_grid",
    "format_schedule",
    "forward_only",
    "gpipe",
    "interleaved",
    "kind_of",
    "load_schedule",
    "max_in_flight",
    "one_f_one_b",
    "parse_action",
    "parse_schedule",
    "schedule_family",
    "stages_on_ranks",
    "validate",
    "zb_h1",
    "zb_h2",
    "zb_v",
]
