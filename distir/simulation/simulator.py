"""The fast engine: never touches a device or an equal block twice.

Equal blocks are summarised once and composed; all devices of a stage are one; only stage ×
microbatch actions are scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict

import numpy as np

from distir.arguments import checked
from distir.cost import Band, Cluster, CostModel, Job, SoftwareStack, load_stack
from distir.cost.amounts import larger
from distir.errors import StrategyError
from distir.garbage import collection_paused
from distir.plan import Plan, Planner, TokenPasses
from distir.rules import degrees_fit, explain, explain_many, hosts_are_known
from distir.schedules import (
    BACKWARD,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    CompiledSchedule,
    kinds_of_actions,
)
from distir.simulation.cutting.one import StageCut
from distir.simulation.cutting.refine import KnownCuts, order_of
from distir.simulation.many.batch import simulate_many
from distir.simulation.pipeline.one import PipelineTime, run_pipeline
from distir.simulation.pricing.chains import PassCost
from distir.simulation.pricing.instructions import Pricing, casts_operands
from distir.simulation.pricing.memory import ChainMemory
from distir.simulation.pricing.repeats import repeated_blocks
from distir.simulation.pricing.stage_cost import (
    OverlappedStages,
    StageCost,
    action_seconds,
)
from distir.simulation.pricing.stages import StagePricer
from distir.simulation.pricing.tied import charged_elsewhere, tied_gradients
from distir.simulation.ranks.one import rank_seconds
from distir.simulation.recomputing import LayerCosts, Planning, least_recomputed
from distir.simulation.report import band_of, make_result
from distir.simulation.result import SimulationResult
from distir.simulation.step import Step, make_step
from distir.simulation.table import SimulationTable
from distir.strategies import Strategies
from distir.strategy import AUTO, Strategy
from distir.transforms.recompute import POLICIES
from distir.workload import Workload


class PlannerFacts(TypedDict):
    """What plans depend on beside the workload: arguments of a `Planner`."""

    fuse: bool
    narrow: bool
    token_passes: TokenPasses
    loss_copies: int


def planner_facts(workload: Workload, cluster: Cluster, stack: SoftwareStack) -> PlannerFacts:
    """How plans of a workload are made for a cluster and a software stack."""
    return {
        "fuse": stack.fuses_elementwise,
        "narrow": casts_operands(workload, cluster.device),
        "token_passes": TokenPasses(
            sorts=stack.sorts_tokens and not stack.sends_copies_once,
            pads=stack.pads_experts,
            sends_narrow=stack.sends_narrow_tokens,
        ),
        "loss_copies": stack.loss_copies,
    }


class Simulator:
    """Simulates strategies of one workload on one cluster; what they share is kept."""

    @checked
    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        stack: SoftwareStack | None = None,
        *,
        planner: Planner | None = None,
        job: Job | None = None,
    ) -> None:
        """`job`: what the workload is run for, where prices and goals are asked for. `planner`: one
        of this workload, to be shared by simulators of several clusters or software stacks that
        fuse alike and hold as many copies of logits, and whose devices have the same types."""
        self.workload = workload
        self.cluster = cluster
        self.cost = CostModel(cluster, stack or load_stack(), job)
        facts = planner_facts(workload, cluster, self.cost.stack)
        self.planner = planner or Planner(workload, **facts)
        own = {name: getattr(self.planner, name) for name in facts}
        if self.planner.workload is not workload or own != facts:
            raise ValueError(f"the planner is for another workload, or has {own} and not {facts}")
        self._fit = degrees_fit(cluster.num_devices).of(workload)
        self._host = hosts_are_known(cluster.without_host if cluster.host is None else None)
        self._rules = (self._fit, self._host, *self.planner.rules)
        self.stages = StagePricer(workload, self.cost, self.planner, ChainMemory())
        self._known_cuts = KnownCuts(self.cost.host_bound_seconds, workload.training)
        self._stages: dict[object, StageCost] = {}
        self._pairs: dict[object, PassCost] = {}
        self._cuts: dict[object, tuple[int, ...]] = {}
        self._chosen: dict[Strategy, Plan] = {}

    def repriced(self, stack: SoftwareStack, cluster: Cluster) -> Simulator:
        """A simulator with other constants or hardware; what does not depend on them is shared."""
        made = Simulator(self.workload, cluster, stack, planner=self.planner, job=self.cost.job)
        made.stages = self.stages.repriced(made.cost)
        return made

    def run_for(self, job: Job) -> Simulator:
        """A simulator that tells prices and goals of a job too; seconds and bytes are the same, and
        everything is shared."""
        made = Simulator(
            self.workload, self.cluster, self.cost.stack, planner=self.planner, job=job
        )
        made.stages = self.stages.repriced(made.cost)
        return made

    @property
    def band(self) -> Band:
        """How far measured times may be from predicted ones."""
        return band_of(self.workload, self.cost, self.cluster.num_devices)

    @checked
    def explain(self, strategy: Strategy) -> str | None:
        """Why a strategy cannot run on this cluster with this workload, or None."""
        return explain((self._fit, self._host), strategy) or self.planner.explain(strategy)

    def explain_many(self, strategies: Strategies) -> dict[int, str]:
        """Why strategies cannot run, by their positions; those that can are not in it."""
        return explain_many(self._rules, strategies)

    @checked
    def plan(self, strategy: Strategy) -> Plan:
        """The plan of a strategy, with stages balanced by simulated cost; raises
        `StrategyError`."""
        reason = self.explain(strategy)
        if reason is not None:
            raise StrategyError(reason)
        if strategy.recompute == AUTO:
            return self._least_recomputed(strategy)
        programs = self.planner.model_programs(strategy)
        whole = self.planner.plan(strategy, ())
        if strategy.stages == 1:
            return whole
        pricing, flight = self.pricing(whole), whole.schedule.peak_in_flight
        pricer, order = self._pricer(pricing), order_of(self.planner, strategy)
        key = (
            tuple(map(id, (*programs.kept, *programs.recomputed))),
            programs.most,
            flight,
            order,
            pricing.grid.mesh,
            strategy.communicators,
            pricer,
        )
        if key not in self._cuts:
            room = float(self.cost.room_bytes(strategy.communicators))
            cut = StageCut(pricer, programs, flight, strategy.chunks, pricing, room)
            self._cuts[key] = cut.bounds(self._known_cuts, order)[1:-1]
        return self.planner.plan(strategy, self._cuts[key])

    def _least_recomputed(self, strategy: Strategy) -> Plan:
        """The plan of a strategy that leaves it to the plan which layers recompute."""
        if strategy not in self._chosen:
            planning = Planning(
                self.plan,
                partial(self.planner.plan, strategy),
                self.simulate_plan,
                partial(self._layer_costs, strategy),
                float(self.cost.room_bytes(strategy.communicators)),
            )
            self._chosen[strategy] = least_recomputed(strategy, planning)
        return self._chosen[strategy]

    def _layer_costs(self, strategy: Strategy, plan: Plan) -> LayerCosts:
        """What recomputation makes of the blocks of a strategy, given any of its plans."""
        pricing = self.pricing(plan)
        pricer, splits = self._pricer(pricing), plan.schedule.splits_backward
        programs = [
            self.planner.model_programs(replace(strategy, recompute=policy)).kept
            for policy in POLICIES
        ]
        alike = list(zip(*programs, strict=True))
        numbers = {each: number for number, each in enumerate(dict.fromkeys(alike))}
        kinds = tuple(numbers[each] for each in alike)
        held = [pricer.block_bytes(own, kinds, pricing, splits=splits) for own in programs]
        return LayerCosts(
            kinds,
            np.array([pricer.weights(own, pricing) for own in programs]),
            np.array([own.after_forward[0, kinds] for own in held]),
            np.array([own.after_backward[0, kinds] for own in held]),
            held[0].state[0, kinds],
        )

    def pricing(self, plan: Plan) -> Pricing:
        """Seconds on this cluster with the plan's mesh laid on it."""
        return Pricing.of(self.cost, plan)

    def _pricer(self, pricing: Pricing) -> StagePricer:
        """What prices stages by this pricing, whose cost model may have no fixed overlap."""
        return self.stages if pricing.cost is self.cost else self.stages.without_fixed_overlap

    @collection_paused()
    def simulate(self, strategy: Strategy) -> SimulationResult:
        """The metrics of a strategy. Raises `StrategyError` if it cannot run; if it only does not
        fit in memory, the result says so."""
        return self.simulate_plan(self.plan(strategy))

    @collection_paused()
    def simulate_many(self, strategies: Sequence[Strategy]) -> SimulationTable:
        """The metrics of many strategies as columns; what cannot run is in it, with its reason.

        They are those of `simulate` but for the last bits, some 1e-13: sums are made in another
        order.
        """
        return simulate_many(
            self.stages,
            self._known_cuts,
            Strategies.of(strategies),
            self.explain_many,
            self.simulate,
        )

    def simulate_plan(self, plan: Plan) -> SimulationResult:
        """The metrics of a plan, which may be cut and scheduled in any way."""
        return self._result(plan, self._stage_costs(plan))

    def trace(self, strategy: Strategy) -> dict[str, Any]:
        """One step of a strategy as Chrome trace events, for ui.perfetto.dev."""
        return self.trace_plan(self.plan(strategy))

    def trace_plan(self, plan: Plan) -> dict[str, Any]:
        """One step of a plan as Chrome trace events."""
        from distir.simulation.trace import chrome_trace

        time, step = self._timed(plan)
        return chrome_trace(plan, self.cost, time, step)

    def step(self, strategy: Strategy) -> Step:
        """One step of a strategy in time: actions, messages, memory and traffic."""
        return self.step_plan(self.plan(strategy))

    def step_plan(self, plan: Plan) -> Step:
        """One step of a plan in time."""
        return self._timed(plan)[1]

    def _timed(self, plan: Plan) -> tuple[PipelineTime, Step]:
        """When the actions of a plan start, and its step."""
        stages, pairs = self._stage_costs(plan), self._pair_costs(plan)
        transfers = self._transfers(plan, stages)
        time = self.schedule(plan.schedule, stages, transfers, pairs)
        tied = tied_gradients(plan, self.cost) if plan.workload.training else []
        ranks = rank_seconds(plan.schedule, time, stages, tied, plan.workload.training, pairs)
        seconds = action_seconds(stages, pairs)
        end = max(each.end for each in ranks)
        return time, make_step(plan, self.cost, time, seconds, transfers, stages, end)

    # --- stages -----------------------------------------------------------------------------------

    def _stage_costs(self, plan: Plan) -> list[StageCost]:
        pricing = self.pricing(plan)
        splits = plan.schedule.splits_backward
        return [self._stage_cost(plan, index, pricing, splits) for index in range(len(plan.stages))]

    def _stage_cost(self, plan: Plan, index: int, pricing: Pricing, splits: bool) -> StageCost:
        programs, uses = plan.stages[index].programs, charged_elsewhere(plan, index)
        pricer = self._pricer(pricing)
        key = (programs, pricing.grid.mesh, uses, splits, pricer)
        if key not in self._stages:
            runs = repeated_blocks(list(zip(programs, uses, strict=True)))
            unpriced = pricer.unpriced_stage(runs, pricing, kinds_of_actions(splits))
            (self._stages[key],) = pricer.price([unpriced], pricing)
        return self._stages[key]

    def _pair_costs(self, plan: Plan) -> list[PassCost]:
        """What the overlapped pairs of a plan's schedule cost."""
        pricing = self.pricing(plan)
        return [self._pair_cost(plan, pair, pricing) for pair in plan.schedule.pairs]

    def _pair_cost(self, plan: Plan, pair: tuple[int, int], pricing: Pricing) -> PassCost:
        forward, backward = (plan.stages[stage].programs for stage in pair)
        key = (forward, backward, pricing.grid.mesh)
        if key not in self._pairs:
            both = OverlappedStages(forward, backward)
            (self._pairs[key],) = self._pricer(pricing).price_pairs([both], pricing)
        return self._pairs[key]

    # --- the whole -------------------------------------------------------------------------------

    def _result(self, plan: Plan, stages: Sequence[StageCost]) -> SimulationResult:
        transfers = self._transfers(plan, stages)
        tied = tied_gradients(plan, self.cost) if plan.workload.training else []
        pairs = self._pair_costs(plan)
        time = self.schedule(plan.schedule, stages, transfers, pairs)
        ranks = rank_seconds(plan.schedule, time, stages, tied, plan.workload.training, pairs)
        return replace(make_result(plan, self.cost, ranks), make_step=partial(self.step_plan, plan))

    def schedule(
        self,
        compiled: CompiledSchedule,
        stages: Sequence[StageCost],
        transfers: Sequence[float],
        pairs: Sequence[PassCost] = (),
    ) -> PipelineTime:
        """When actions start, given what they, overlapped `pairs` of them and messages take."""
        goes_on = self.cost.stack.goes_on(max(map(len, compiled.stages_of_ranks)))
        return run_pipeline(compiled, action_seconds(stages, pairs), transfers, goes_on=goes_on)

    def _transfers(self, plan: Plan, stages: Sequence[StageCost]) -> list[float]:
        """Seconds of the message that each kind of action sends."""
        pricing = self.pricing(plan)

        def hop(stage: int, step: int, here: int, there: int) -> float:
            programs, cost = plan.stages[stage].programs, stages[stage]
            if step > 0:
                along, size = programs[-1].outputs_repeated_along, cost.sent_forward_bytes
            else:
                along, size = programs[0].input_gradients_repeated_along, cost.sent_backward_bytes
            return pricing.message(size, along, here, there)

        return _transfer_seconds(plan.schedule, hop)


def _transfer_seconds(
    compiled: CompiledSchedule, hop: Callable[[int, int, int, int], float]
) -> list[float]:
    """Seconds of messages by `stage · COST_KINDS + kind`. `hop` gives those of what a stage sends
    to the next (1) or the previous one (-1), from one rank to another."""
    seconds = [0.0] * ((compiled.stages + len(compiled.pairs)) * COST_KINDS)
    for (stage, step), pairs in compiled.routes.items():
        longest = larger(*(hop(stage, step, *pair) for pair in pairs))
        for kind in (FORWARD,) if step > 0 else (BACKWARD, INPUT_PART):
            seconds[stage * COST_KINDS + kind] = longest
    for number, pair in enumerate(compiled.pairs, start=compiled.stages):
        for stage, kind in zip(pair, (FORWARD, BACKWARD), strict=True):
            seconds[number * COST_KINDS + kind] = seconds[stage * COST_KINDS + kind]
    return seconds


__all__ = ["Simulator"]
