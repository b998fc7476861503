"""Any placement: meshes of any shape with any lists of axes, not only the named techniques."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from distir.axes.model import Axis
from distir.cost import load_cluster
from distir.importers.load import LoadedModel
from distir.ir import Function
from distir.mesh import entries_of
from distir.plan import Plan, Planner
from distir.schedules import compile_schedule
from distir.schedules.families.chimera import chimera
from distir.simulation import Simulator
from distir.strategy import KEEP_GATHERED, OFFLOADS, Strategy
from distir.transforms.place import AxisListEntry, Mesh
from distir.workload import Workload
from tests.laws.scenarios import models, random_schedule

DEGREES = (2, 2, 2, 3, 4)


class AnyPlanner(Planner):
    """A planner whose mesh and lists are given; a strategy says the rest."""

    def __init__(
        self,
        workload: Workload,
        degrees: Sequence[int],
        lists: Sequence[Sequence[AxisListEntry]],
        chance: random.Random,
    ) -> None:
        super().__init__(workload)
        names = tuple(f"m{number}" for number in range(len(degrees)))
        group = workload.program.blocks.group
        users = tuple(chance.choice(["dp", name]) for name in names)
        sharding = frozenset(name for name in names if chance.random() < 0.5)
        mesh = Mesh(names, tuple(map(tuple, lists)), group, users, sharding)
        self.grid = mesh, tuple(degrees)

    def mesh(self, strategy: Strategy) -> tuple[Mesh, tuple[int, ...]]:
        return self.grid

    def explain(self, strategy: Strategy) -> str | None:
        return None


def axes_of(workload: Workload) -> dict[Axis, list[Axis]]:
    """Every axis that stands for others, with these; an axis stands for those that follow it."""
    blocks, found = workload.program.blocks, dict[Axis, list[Axis]]()
    for block in blocks.blocks:
        for axis in block.axis_order(workload.program.axes):
            leader = workload.program.axes.leader(axis)
            found.setdefault(blocks.group.get(leader, leader), []).append(axis)
    return found


def random_lists(
    workload: Workload, chance: random.Random, samples: int
) -> tuple[list[int], list[list[AxisListEntry]]]:
    """One to three mesh axes, each with a list of some axes in some order. A list names only axes
    that divide by all mesh axes that name them."""
    members, sizes = axes_of(workload), workload.sizes(samples)
    degrees = [chance.choice(DEGREES) for _ in range(chance.choice([1, 2, 3]))]
    axes = list(members)
    lists: list[list[AxisListEntry]] = []
    for _ in degrees:
        chosen = chance.sample(axes, chance.randint(1, len(axes)))
        entries = [AxisListEntry(axis, chance.random() < 0.2) for axis in chosen]
        if chance.random() < 0.3 and workload.program.sequence is not None:
            # What has the sequence travels; few lists at random would come upon it.
            entries = [*entries_of(workload.program, ["sequence~"]), *entries]
        lists.append(entries)

    def divides(axis: Axis) -> bool:
        pieces = 1
        for degree, entries in zip(degrees, lists, strict=True):
            pieces *= degree if any(entry.axis is axis for entry in entries) else 1
        return all(sizes.get(each, each.size) % pieces == 0 for each in members[axis])

    fitting = {axis for axis in axes if divides(axis)}
    return degrees, [[e for e in entries if e.axis in fitting] for entries in lists]


@dataclass(frozen=True)
class AnyPlan:
    """A plan, and a simulator that knows its planner."""

    simulator: Simulator
    plan: Plan

    def __repr__(self) -> str:
        plan, workload = self.plan, self.plan.workload
        lists = dict(zip(plan.mesh.names, plan.mesh.lists, strict=True))
        cuts = [len(stage.blocks) for stage in plan.stages]
        return (
            f"{workload.mode} of {workload.batch_size} with {workload.optimizer}, "
            f"{plan.strategy.label}, {plan.sizes.degrees} {lists}, stages of {cuts} blocks\n"
            f"{plan.schedule.schedule}\n{workload.model.function}"[:20000]
        )


def any_plan(function: Function, chance: random.Random) -> AnyPlan:
    """A workload of the function, placed, cut and scheduled at random."""
    training = chance.random() < 0.75
    microbatches = chance.randint(1, 4)
    workload = Workload(
        model=LoadedModel("model", function),
        mode="training" if training else "inference",
        batch_size=microbatches * chance.choice([2, 4, 6]),
        precision=chance.choice(["bf16", "fp32"]),
        optimizer=chance.choice(["adam", "adam", "sgd"]),
        loss=chance.choice([None, None, "mse", "sum"]),
    )
    degrees, lists = random_lists(workload, chance, workload.batch_size // microbatches)
    strategy = Strategy(
        pp=chance.randint(1, min(4, workload.num_blocks)),
        microbatches=microbatches,
        schedule=chance.choice(["gpipe", "1f1b", "zb-h1", "zb-h2"]),
        recompute=chance.choice(["none", "none", "selective", "full"]) if training else "none",
        zero=chance.choice([0, 0, 1, 2, 3]) if training else 0,
        keep_gathered=chance.choice(KEEP_GATHERED) if training else "none",
        offload=",".join(
            each for each in (OFFLOADS if training else ("parameters",)) if chance.random() < 0.2
        ),
    )
    if chimera.requires(strategy.pp, 1, microbatches) is None and chance.random() < 0.5:
        strategy = replace(strategy, schedule="chimera")
    planner = AnyPlanner(workload, degrees, lists, chance)
    cuts = sorted(chance.sample(range(1, workload.num_blocks), strategy.pp - 1))
    plan = planner.plan(strategy, cuts)
    if chance.random() < 0.5:
        homes = [stage % chance.randint(1, strategy.pp) for stage in range(strategy.pp)]
        ranks = sorted(set(homes))
        schedule = random_schedule(
            chance, [ranks.index(home) for home in homes], microbatches, training
        )
        plan = Plan(
            workload, strategy, plan.mesh, plan.sizes, plan.stages, compile_schedule(schedule)
        )
    devices = len(plan.schedule.stages_of_ranks) * plan.devices_per_stage
    simulator = Simulator(workload, load_cluster("dgx-a100", devices))
    return AnyPlan(simulator, plan)


@st.composite
def any_plans(draw: st.DrawFn, functions: st.SearchStrategy[Function] = models) -> AnyPlan:
    """Any placement of any model, cut and scheduled in any way."""
    return any_plan(draw(functions), draw(st.randoms(use_true_random=False)))
