"""From a plan to seconds and bytes: the fast engine, the reference engine, traces."""

from __future__ import annotations

from distir.simulation.fast import Simulator
from distir.simulation.result import SimulationResult, StageReport

__all__ = ["SimulationResult", "Simulator", "StageReport"]
