"""From a plan to seconds and bytes: the fast engine, the reference engine, traces."""

from __future__ import annotations

from distir.simulate.fast import Simulator
from distir.simulate.result import SimulationResult, StageReport

__all__ = ["SimulationResult", "Simulator", "StageReport"]
