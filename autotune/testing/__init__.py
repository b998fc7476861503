"""Contracts that samplers and objectives meet, as classes for pytest, for those who write plug-ins.

from autotune.testing import SamplerContract

class TestMySampler(SamplerContract):
    def make_sampler(self, space, seed):
        return MySampler(space, seed)
"""

from __future__ import annotations

from autotune.testing.contracts import ObjectiveContract, SamplerContract
from autotune.testing.toys import (
    ToySimulator,
    ToyWorkload,
    toy_cost,
    toy_problem,
    toy_space,
)

__all__ = [
    "ObjectiveContract",
    "SamplerContract",
    "ToySimulator",
    "ToyWorkload",
    "toy_cost",
    "toy_problem",
    "toy_space",
]
