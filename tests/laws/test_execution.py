"""What a plan's devices compute together is what one device computes; and what they compute, send
and hold is what the simulator charges for."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from distir import Strategy, Workload, load_cluster, load_model
from distir.cost import Work, load_stack
from distir.cost.collectives import Copies
from distir.errors import TransformError
from distir.execute.counts import BETWEEN_RANKS
from distir.execute.executor import Execution, execute
from distir.execute.shrink import shrink
from distir.execute.values import optimizer_step
from distir.execute.verify import RELATIVE_TOLERANCE, Verifier, compare, sequential_truth
from distir.importers.load import LoadedModel
from distir.ir import Function, Node, Value
from distir.models.transformer import TransformerConfig
from distir.ops.collective import Release
from distir.plan import BlockProgram, Plan
from distir.plan.passes import block_passes
from distir.schedules import WEIGHT_PART, cost_kind
from distir.simulation import Simulator
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.memory import ChainMemory
from distir.simulation.pricing.tied import charged_elsewhere, tied_gradients
from tests.conftest import shared_path
from tests.laws.convolutions import convolutions
from tests.laws.placements import AnyPlan, any_plan, any_plans
from tests.laws.scenarios import (
    Chain,
    Scenario,
    above_a_shared_threshold,
    residual,
    scaled_by_the_threshold,
    scenarios,
)
from tests.slow import shares

# --- 1: the same numbers --------------------------------------------------------------------------


def check_numbers(plan: Plan) -> Execution:
    """Loss, outputs, gradients and updated parameters are those of one device."""
    workload = plan.workload
    try:
        given, truth = sequential_truth(workload, plan.schedule.schedule.microbatches)
    except TransformError:
        reject()  # gates that feed gates leave the numbers that float64 has
    execution = execute(plan, given.values, optimizer_step(workload, 2))
    for each in compare(workload, execution.result, truth):
        assert each.error < RELATIVE_TOLERANCE, each
    return execution


# --- 2, 3, 4: what the simulator charges ----------------------------------------------------------


HOST_COPY = ("host", ())
"""Copies between devices and hosts, whichever way."""


class Charged:
    """Stands in for a cost model and a grid, and writes down what it is asked for."""

    cluster = products = None
    stack = load_stack("ideal")

    def __init__(self) -> None:
        self.flops = 0.0
        self.collectives: dict[tuple[str, tuple[str, ...]], float] = {}

    def group(self, cluster: None, mesh_axes: tuple[str, ...]) -> tuple[str, ...]:
        return mesh_axes

    def stream(self, mesh_axes: tuple[str, ...]) -> str:
        return mesh_axes[0]

    def op_seconds(self, work: Work) -> float:
        self.flops += float(work.flops)
        return 0.0

    kernel_seconds = op_seconds

    def launch_seconds(self, work: Work) -> float:
        return 0.0

    def host_copy_seconds(self, size_bytes: float) -> float:
        self.collectives[HOST_COPY] = self.collectives.get(HOST_COPY, 0.0) + size_bytes
        return 0.0

    def collective_seconds(
        self,
        kind: str,
        size_bytes: float,
        group: tuple[str, ...],
        times: float = 1,
        copies: Copies | None = None,
    ) -> float:
        moved = self.collectives.get((kind, group), 0.0) + times * size_bytes
        self.collectives[kind, group] = moved
        return 0.0


def charged(
    plan: Plan, rank: int, stage: int
) -> tuple[float, Mapping[tuple[str, tuple[str, ...]], float]]:
    """FLOPs, and bytes per collective and mesh axes, that a device of a stage is charged for."""
    workload = plan.workload
    schedule = plan.schedule.schedule
    splits = schedule.splits_backward
    kinds = Counter(cost_kind(a, splits) for a in schedule.ranks[rank] if a.stage == stage)
    once, flops = Charged(), 0.0
    sent: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    for kind, count in kinds.items():
        one = Charged()
        for program in plan.stages[stage].programs:
            Pricing(one, one).instructions(nodes_of(program, kind))  # type: ignore[arg-type]
        flops += one.flops * count
        for key, size in one.collectives.items():
            sent[key] += size * count
    pricing = Pricing(once, once)  # type: ignore[arg-type]
    late = last_kind(plan, rank, stage) == WEIGHT_PART
    if workload.training:
        for program, away in zip(
            plan.stages[stage].programs, charged_elsewhere(plan, stage), strict=True
        ):
            pricing.buckets(program, away.added_late if late else away.added)
            pricing.refresh(program, away.held)
            owned = (
                use.owned_type.num_elements
                for position, use in enumerate(program.parameters)
                if use.gradient is not None and position not in away.held
            )
            pricing.optimizer(workload, sum(owned))
    for key, size in once.collectives.items():
        sent[key] += size
    return flops + once.flops, sent


def last_kind(plan: Plan, rank: int, stage: int) -> int:
    """The kind of action in which the gradients of a stage are complete."""
    own = [action for action in plan.schedule.schedule.ranks[rank] if action.stage == stage]
    return cost_kind(own[-1], plan.schedule.schedule.splits_backward)


def nodes_of(program: BlockProgram, kind: int) -> Sequence[Node]:
    """What a block does in one kind of action."""
    own = program.in_action(kind)
    return (*own.gathers, *own.nodes)


def check_counts(simulator: Simulator, plan: Plan, execution: Execution) -> None:
    """Bytes sent and FLOPs are those that the simulator charges for."""
    tied: Counter[int] = Counter()
    if plan.workload.training:
        for each in tied_gradients(plan, simulator.cost):
            tied.update(dict.fromkeys(each.ranks, each.size_bytes))
    between: Counter[int] = Counter()
    for (rank, stage), counts in execution.measured.counts.items():
        flops, sent = charged(plan, rank, stage)
        if plan.workload.optimizer == "adam" or not plan.workload.training:
            assert counts.flops == pytest.approx(flops, rel=1e-12)
        found = dict(counts.collective_bytes)
        between[rank] += int(found.pop(("all_reduce", BETWEEN_RANKS), 0))
        copied = [found.pop(key) for key in list(found) if not key[1]]
        found |= {HOST_COPY: sum(copied)} if sum(copied) else {}
        assert found == {key: size for key, size in sent.items() if size}
    assert +between == +tied


def check_messages(plan: Plan, execution: Execution) -> None:
    """Bytes between stages are those of the values that cross, once per microbatch."""
    schedule = plan.schedule.schedule
    homes = {action[::2]: rank for rank, own in enumerate(schedule.ranks) for action in own}
    for (rank, stage), counts in execution.measured.counts.items():
        programs = plan.stages[stage].programs
        expected: Counter[int] = Counter()
        for action in schedule.ranks[rank]:
            forward = action.kind == "F"
            target = stage + 1 if forward else stage - 1
            place = (target, action.microbatch)
            if action.stage != stage or place not in homes or homes[place] == rank:
                continue
            if action.kind == "W":
                continue
            values = programs[-1].outputs if forward else programs[0].input_gradients
            expected[target] += sum(value.type.size_bytes for value in values)
        assert counts.sent_bytes == dict(expected)


def check_memory(simulator: Simulator, plan: Plan, execution: Execution) -> None:
    """Live bytes are the simulator's, action by action; and so are peak and states."""
    splits = plan.schedule.splits_backward
    effects = [
        ChainMemory().stage([((each,), 1) for each in block_passes(stage.programs, splits)])
        for stage in plan.stages
    ]
    for actions in execution.measured.memory:
        live = 0.0
        for each in actions:
            effect = effects[each.action.stage][cost_kind(each.action, splits)]
            after = live + effect.delta if plan.workload.training else live
            assert (each.before, each.peak, each.after) == (live, live + effect.peak, after)
            live = after
    result = simulator.simulate_plan(plan)
    assert max(execution.measured.peaks) == result.metrics["peak_memory_bytes"]
    on_hosts = [execution.measured.host_of(stage.stage) for stage in result.stages]
    assert on_hosts == [stage.host_bytes for stage in result.stages]


def check(simulator: Simulator, plan: Plan) -> None:
    """All laws on one plan."""
    execution = check_numbers(plan)
    check_messages(plan, execution)
    check_counts(simulator, plan, execution)
    check_memory(simulator, plan, execution)


@shares(4, seconds=1)
@settings(max_examples=15)
@given(any_plans())
def test_the_parts_of_a_backward_pass_are_the_whole(share: int, case: AnyPlan) -> None:
    """Every op is in one part, gathers of parameters apart; B makes what goes upstream, and needs
    nothing of W."""
    for program in {program for stage in case.plan.stages for program in stage.programs}:
        first, second = (part.nodes for part in program.backward_parts)
        made = {value for node in first for value in node.results}
        later = {value for node in second for value in node.results}
        assert made.isdisjoint(later)
        assert later.isdisjoint(value for node in first for value in node.operands)
        assert later.isdisjoint(program.input_gradients)
        needed = set(program.input_gradients)
        for node in reversed(first):
            if isinstance(node.op, Release):
                continue
            assert not needed.isdisjoint(node.results), "W has no time to lose, B has"
            needed.update(node.operands)
        whole, parts = Charged(), Charged()
        Pricing(whole, whole).instructions(program.backward)  # type: ignore[arg-type]
        Pricing(parts, parts).instructions((*first, *second))  # type: ignore[arg-type]
        assert parts.flops == pytest.approx(whole.flops, rel=1e-12)
        assert parts.collectives == whole.collectives


@shares(15, seconds=2)
@settings(max_examples=4)
@given(any_plans())
def test_any_placement_computes_what_one_device_computes(share: int, case: AnyPlan) -> None:
    check(case.simulator, case.plan)


@settings(max_examples=12)
@given(any_plans(convolutions()))
def test_any_placement_of_convolutions_computes_what_one_device_computes(case: AnyPlan) -> None:
    check(case.simulator, case.plan)


@shares(4, seconds=1)
@settings(max_examples=6)
@given(scenarios())
def test_any_strategy_computes_what_one_device_computes(share: int, case: Scenario) -> None:
    check(case.simulator, case.plan)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(dp=6),
        Strategy(dp=5, tp=2, pp=2, microbatches=2),
        Strategy(dp=3, cp=2, recompute="full"),
        Strategy(dp=6, zero_degree=3, microbatches=2, zero=1),
        Strategy(dp=4, zero_degree=2, microbatches=3, zero=1, tp=2, sequence_parallel=True),
    ],
    ids=lambda strategy: strategy.label,
)
@pytest.mark.parametrize("gradients", ["compute", "fp32"])
def test_states_may_be_shared_by_any_number_of_devices(
    strategy: Strategy, zero: int, gradients: str
) -> None:
    """Widths of powers of two on 6, 5 and 3 devices with equal parameters."""
    config = TransformerConfig(
        name="tiny", layers=2, hidden=8, heads=2, vocabulary=16, sequence_length=8
    )
    samples = strategy.dp * strategy.microbatches
    workload = Workload(
        model=LoadedModel("tiny", config.build(samples, 8)),
        batch_size=samples,
        gradient_precision=gradients,
    )
    simulator = Simulator(workload, load_cluster("dgx-a100", strategy.devices))
    check(simulator, simulator.plan(replace(strategy, zero=zero)))


TRAINED, NOT, OTHER = scaled_by_the_threshold, above_a_shared_threshold, residual


@pytest.mark.parametrize(
    "layers",
    [(NOT, TRAINED), (TRAINED, NOT), (NOT, OTHER, TRAINED), (TRAINED, OTHER, NOT)],
    ids=lambda layers: " ".join(layer.__name__ for layer in layers),
)
@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(dp=2, microbatches=2, zero=1, offload="optimizer"),
        Strategy(dp=2, pp=2, microbatches=2),
        Strategy(tp=2, pp=2, microbatches=2, schedule="zb-h1"),
        Strategy(dp=2, pp=2, microbatches=2, zero=2, offload="optimizer"),
        Strategy(dp=3, pp=3, microbatches=4, zero=3),
        Strategy(dp=2, pp=2, microbatches=4, schedule="chimera"),
    ],
    ids=lambda strategy: strategy.label,
)
def test_parameters_that_only_some_of_their_blocks_train_are_updated_wherever_they_are(
    layers: Sequence[Callable[[Chain, Value], Value]], strategy: Strategy
) -> None:
    chain = Chain()
    x = chain.x
    for layer in layers:
        x = layer(chain, x)
    model = LoadedModel("threshold", chain.builder.build([chain.dense(x)]))
    workload = Workload(model=model, batch_size=24)
    simulator = Simulator(workload, load_cluster("dgx-a100", strategy.devices))
    check(simulator, simulator.plan(strategy))


# --- real models ----------------------------------------------------------------------------------

STRATEGIES = (
    Strategy(dp=2, tp=2, pp=2, microbatches=2),
    Strategy(dp=4, zero=1, microbatches=2),
    Strategy(dp=2, tp=2, zero=2, sequence_parallel=True),
    Strategy(dp=2, cp=2, zero=3, microbatches=2, recompute="selective"),
    Strategy(cp=2, tp=2, pp=2, microbatches=2, schedule="gpipe", recompute="full"),
    Strategy(dp=4, ep=2, tp=2, microbatches=2, zero=1, sequence_parallel=True),
    Strategy(dp=2, ep=2, cp=2, pp=2, microbatches=2, zero=2, recompute="full"),
    Strategy(dp=2, cp=2, tp=2, ep=8, sequence_parallel=True, zero=3, microbatches=2),
    Strategy(dp=2, cp=4, ep=4, cp_exchange="ring", zero=1),
    Strategy(dp=2, pp=2, chunks=2, microbatches=4, schedule="zb-v", zero=3, recompute="full"),
    Strategy(tp=2, pp=3, microbatches=4, schedule="zb-h2", sequence_parallel=True),
    Strategy(dp=4, zero=3, zero_degree=2, microbatches=2),
    Strategy(dp=2, cp=2, cp_exchange="all-to-all"),
    Strategy(dp=2, cp=4, cp_exchange="ring", microbatches=2, zero=1),
    Strategy(
        cp=2,
        tp=2,
        pp=2,
        cp_exchange="ring",
        microbatches=2,
        sequence_parallel=True,
        schedule="zb-h1",
        recompute="full",
    ),
    Strategy(tp=2, dp=2, axes="tp=ffn,batch,heads*;dp=hidden,batch"),
)

MODELS = (
    "mlp-xs",
    "vit-b",
    "gpt2",
    pytest.param("qwen3-0.6b", marks=pytest.mark.slow(seconds=4)),
    pytest.param("bert-base", marks=pytest.mark.slow(seconds=8)),
    pytest.param("t5-small", marks=pytest.mark.slow(seconds=12)),
    pytest.param("mixtral-8x7b", marks=pytest.mark.slow(seconds=10)),
    pytest.param("deepseek-v2-lite", marks=pytest.mark.slow(seconds=10)),
)
EXPORTS = (
    "mlp16",
    "gpt2",
    pytest.param("llama-8layer", marks=pytest.mark.slow(seconds=8)),
)


def check_model(source: str) -> None:
    """The named strategies that can be applied to a model, on a small version of it."""
    workload = Workload(model=load_model(source), batch_size=16)
    applied = 0
    for strategy in STRATEGIES:
        if Verifier(workload).explain(strategy) is None:
            small = shrink(workload, [strategy])
            simulator = Simulator(small, load_cluster("dgx-a100", strategy.devices))
            check(simulator, simulator.plan(strategy))
            applied += 1
    assert applied >= 2


@pytest.mark.parametrize("name", MODELS)
def test_plans_of_zoo_models_compute_what_one_device_computes(name: str) -> None:
    check_model(name)


@pytest.mark.parametrize("name", EXPORTS)
def test_plans_of_exports_compute_what_one_device_computes(name: str) -> None:
    check_model(str(shared_path(f"models/{name}.onnx")))


@pytest.mark.parametrize("name", EXPORTS)
def test_any_placement_of_exports_computes_what_one_device_computes(name: str) -> None:
    model = load_model(str(shared_path(f"models/{name}.onnx")))
    small = shrink(Workload(model=model, batch_size=16), [Strategy(dp=2, tp=2, cp=1, pp=2)])
    for seed in range(3):
        case = any_plan(small.model.function, random.Random(seed))
        check(case.simulator, case.plan)


@given(st.integers(2, 5), st.integers(2, 9))
@settings(max_examples=3)
def test_a_small_model_keeps_its_structure(stages: int, length: int) -> None:
    """The small version is placed as the whole model is: the same steps per kind of block."""
    strategy = Strategy(dp=2, tp=2, pp=stages, microbatches=2)
    model = load_model("gpt2")
    whole = Workload(model=model, batch_size=16, sequence_length=128 * length)
    small = shrink(whole, [strategy])
    cluster = load_cluster("dgx-a100", strategy.devices)

    def steps(workload: Workload) -> set[tuple[str, ...]]:
        programs = Simulator(workload, cluster).planner.block_programs(strategy)
        return {
            tuple(node.op.name for node in (*program.forward, *program.backward, *program.settle))
            for program in programs
        }

    assert steps(whole) == steps(small)


def function_size(function: Function) -> int:
    return max(value.type.num_elements for value in function.parameters)


@pytest.mark.parametrize("name", MODELS)
def test_small_models_are_small(name: str) -> None:
    model = load_model(name)
    strategy = Strategy(dp=2, tp=2)
    small = shrink(Workload(model=model, batch_size=16), [strategy])
    assert function_size(small.model.function) < 20_000
    assert small.num_blocks <= 20
