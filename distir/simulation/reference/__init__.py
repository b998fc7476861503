"""The reference engine: every device, every op. It judges the fast engine and is not part of it."""

from __future__ import annotations

from distir.simulation.reference.engine import (
    ActionSpan,
    ReferenceRun,
    Span,
    simulate_reference,
)

__all__ = ["ActionSpan", "ReferenceRun", "Span", "simulate_reference"]
