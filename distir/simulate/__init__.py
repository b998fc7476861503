"""From a plan to seconds and bytes: the fast engine, the reference engine, traces.

The package shares its name with the function `distir.simulate`. Importing a package puts it in its
parent's namespace, so the package is callable: whatever was imported first, the call works.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from distir.simulate.fast import Simulator
from distir.simulate.result import SimulationResult, StageReport


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> SimulationResult:
        from distir.api import simulate

        return simulate(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage

__all__ = ["SimulationResult", "Simulator", "StageReport"]
