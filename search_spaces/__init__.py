"""Search spaces as data: which strategies are valid for a workload on a number of devices.

Knows strategies, not simulators.
"""

from __future__ import annotations

from distir.rules import Rule, WorkloadFacts
from search_spaces.distribution import distribution_space
from search_spaces.listed import listed_space
from search_spaces.named import SPACES, Searched, SpaceError, SpaceSource, searched
from search_spaces.parameters import Choices, Dimension, Value
from search_spaces.space import Branch, SearchSpace

__all__ = [
    "SPACES",
    "Branch",
    "Choices",
    "Dimension",
    "Rule",
    "SearchSpace",
    "Searched",
    "SpaceError",
    "SpaceSource",
    "Value",
    "WorkloadFacts",
    "distribution_space",
    "listed_space",
    "searched",
]
