"""From a plan to seconds and bytes: the fast engine, the reference engine, traces."""

from __future__ import annotations

from distir.simulation.result import SimulationResult, StageReport
from distir.simulation.simulator import Simulator
from distir.simulation.table import SimulationTable

__all__ = ["SimulationResult", "SimulationTable", "Simulator", "StageReport"]
