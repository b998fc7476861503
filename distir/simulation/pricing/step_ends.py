"""What follows the last backward pass of a block: its gradients are settled, its parameters updated
and stored again."""

from __future__ import annotations

from collections.abc import Iterable

from distir.ops.host import HOST
from distir.plan import BlockProgram
from distir.schedules import BACKWARD, WEIGHT_PART
from distir.simulation.pricing.instructions import Instruction, Pricing
from distir.simulation.pricing.stage_cost import StepEnd
from distir.simulation.pricing.state import state_bytes
from distir.simulation.pricing.tied import ChargedElsewhere
from distir.workload import Workload


class KnownStepEnds:
    """Step ends of blocks on one mesh; what was asked for is kept."""

    def __init__(self, workload: Workload, pricing: Pricing) -> None:
        self._workload, self._pricing = workload, pricing
        self._known: dict[tuple[BlockProgram, ChargedElsewhere], StepEnd] = {}
        self._known_buckets: dict[
            tuple[BlockProgram, tuple[int, ...]], tuple[Instruction, ...]
        ] = {}
        self._known_updating: dict[object, float] = {}

    def of(self, program: BlockProgram, away: ChargedElsewhere) -> StepEnd:
        """What follows a block's last backward pass, without the parameters `away`."""
        found = self._known.get((program, away))
        if found is None:
            found = self._known[program, away] = self._made(program, away)
        return found

    def _made(self, program: BlockProgram, away: ChargedElsewhere) -> StepEnd:
        workload, pricing = self._workload, self._pricing
        elements = program.trained_elements(without=away.held)
        buckets = {
            BACKWARD: self._buckets(program, away.added),
            WEIGHT_PART: self._buckets(program, away.added_late),
        }
        refresh = pricing.refresh(program, away.held)
        return StepEnd(
            {kind: sum(each.seconds for each in of_kind) for kind, of_kind in buckets.items()},
            {kind: of_kind[-1].stream if of_kind else None for kind, of_kind in buckets.items()},
            self._updating(program, elements) if workload.training else 0.0,
            sum(each.seconds for each in refresh),
            host_seconds(refresh),
            state_bytes(workload, program, away.held, away.added),
        )

    def _updating(self, program: BlockProgram, elements: float) -> float:
        """Seconds in which parameters of a block with so many elements are updated: the same for
        all blocks that store their states and synchronise alike."""
        stored = program.updates_on_host, program.rests_on_host
        key = elements, *stored, program.outer_optimizer, program.sync_every
        found = self._known_updating.get(key)
        if found is None:
            asked = self._workload, elements, program
            found = self._pricing.optimizer(*asked) + self._pricing.outer_step(*asked)
            self._known_updating[key] = found
        return found

    def _buckets(self, program: BlockProgram, without: tuple[int, ...]) -> tuple[Instruction, ...]:
        """What settles a block's gradients, but for those at the positions `without`; in most
        blocks these do not depend on which actions come last, nor on who stores parameters."""
        found = self._known_buckets.get((program, without))
        if found is None:
            found = self._pricing.buckets(program, without)
            self._known_buckets[program, without] = found
        return found


def host_seconds(instructions: Iterable[Instruction]) -> float:
    """Seconds of copies between a device and its host."""
    return sum(each.seconds for each in instructions if each.stream == HOST)


__all__ = ["KnownStepEnds", "host_seconds"]
