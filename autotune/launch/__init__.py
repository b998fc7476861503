"""From a strategy to the files that a framework takes, and back.

A framework is a `Target`: a table of rows that spell facts in options, in both directions, and what
it cannot state. A plug-in is one file that makes a `Target` and registers it by `add_target`, named
by an entry point in the group `autotune.targets`.
"""

from __future__ import annotations

from autotune.launch.errors import LaunchError
from autotune.launch.framed import load_problem_for
from autotune.launch.rows import Row, Table
from autotune.launch.target import TARGET_GROUP, TARGETS, Files, Note, Target, add_target

__all__ = [
    "TARGETS",
    "TARGET_GROUP",
    "Files",
    "LaunchError",
    "Note",
    "Row",
    "Table",
    "Target",
    "add_target",
    "load_problem_for",
]
