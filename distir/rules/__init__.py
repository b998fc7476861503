"""The rule book: which strategies can be applied to a workload, and why others cannot.

One table (`RULES`) is read by search spaces, which prune by it, and by simulators and executors,
which refuse by it.
"""

from __future__ import annotations

from distir.rules.devices import degrees_fill, degrees_fit, hosts_are_known
from distir.rules.facts import WorkloadFacts
from distir.rules.rule import (
    Advice,
    Choices,
    Rule,
    Value,
    explain,
    explain_many,
    parameter_names,
)
from distir.rules.table import RULES, rules_of
from distir.rules.wording import listed

__all__ = [
    "RULES",
    "Advice",
    "Choices",
    "Rule",
    "Value",
    "WorkloadFacts",
    "degrees_fill",
    "degrees_fit",
    "explain",
    "explain_many",
    "hosts_are_known",
    "listed",
    "parameter_names",
    "rules_of",
]
