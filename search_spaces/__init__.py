"""Search spaces as data: which strategies are valid for a workload on a number of devices.

Knows strategies, not simulators.
"""

from __future__ import annotations

from search_spaces.constraints import Constraint
from search_spaces.distribution import WorkloadFacts, distribution_space
from search_spaces.named import SPACES, Searched, SpaceError, SpaceSource, searched
from search_spaces.parameters import Choices, Dimension, Value
from search_spaces.space import Branch, SearchSpace

__all__ = [
    "SPACES",
    "Branch",
    "Choices",
    "Constraint",
    "Dimension",
    "SearchSpace",
    "Searched",
    "SpaceError",
    "SpaceSource",
    "Value",
    "WorkloadFacts",
    "distribution_space",
    "searched",
]
