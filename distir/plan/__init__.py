"""A plan: a strategy applied to a workload. Stage programs plus a schedule.

`Planner` makes plans for one workload and remembers what they share: the step of every distinct
block, its placement per mesh, its program per size.
"""

from __future__ import annotations

from distir.plan.block_program import instantiate_block
from distir.plan.model import BlockProgram, ParameterUse, Plan, Stage
from distir.plan.model_programs import ModelPrograms
from distir.plan.planner import Planner
from distir.transforms.token_passes import TokenPasses

__all__ = [
    "BlockProgram",
    "ModelPrograms",
    "ParameterUse",
    "Plan",
    "Planner",
    "Stage",
    "TokenPasses",
    "instantiate_block",
]
