"""Communication that compute waits for: never more than if nothing overlapped, and no more because
work comes in more and shorter actions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from distir import Simulator, Strategy, Workload
from distir.importers.load import LoadedModel
from distir.ir import Builder, Function
from distir.models.layers import linear
from distir.ops.activations import Relu
from distir.plan import Plan
from distir.schedules import WEIGHT_PART, cost_kind
from distir.simulation.pricing.instructions import COMPUTE, Pricing
from distir.simulation.pricing.tied import charged_elsewhere
from tests.conftest import HEALTH_CHECKS
from tests.laws.scenarios import Scenario, clusters, scenarios, stacks
from tests.slow import shares

ROUNDING = 1e-9


def exposed(simulator: Simulator, plan: Plan, rank: int) -> float:
    """Seconds in which a rank's compute waits for collectives."""
    seconds = simulator.simulate_plan(plan).stages[rank].seconds
    own = (name for name in seconds if name.endswith("_communication"))
    return sum(seconds[name] for name in own if name != "pp_communication")


def all_collectives(simulator: Simulator, plan: Plan, rank: int) -> float:
    """Seconds of all collectives of a rank, one after the other."""
    schedule, pricing = plan.schedule.schedule, simulator.pricing(plan)
    splits = schedule.splits_backward
    seconds, completing = 0.0, dict[int, int]()
    for action in schedule.ranks[rank]:
        completing[action.stage] = cost_kind(action, splits)
    for (stage, kind), count in Counter(
        (action.stage, cost_kind(action, splits)) for action in schedule.ranks[rank]
    ).items():
        for program in plan.stages[stage].programs:
            own = program.in_action(kind)
            seconds += count * _of_collectives(pricing, (*own.gathers, *own.nodes))
    for stage, kind in completing.items() if plan.workload.training else ():
        stages = zip(plan.stages[stage].programs, charged_elsewhere(plan, stage), strict=True)
        for program, away in stages:
            added = away.added_late if kind == WEIGHT_PART else away.added
            once = (*pricing.buckets(program, added), *pricing.refresh(program, away.held))
            seconds += sum(each.seconds for each in once)
    first = plan.stages[schedule.ranks[rank][0].stage].programs[0]
    return seconds + _of_collectives(pricing, first.forward_gathers)


def _of_collectives(pricing: Pricing, nodes: tuple[object, ...]) -> float:
    instructions = pricing.instructions(nodes)  # type: ignore[arg-type]
    return sum(each.seconds for each in instructions if each.stream not in (None, COMPUTE))


@shares(4, seconds=1)
@settings(max_examples=12, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios())
def test_compute_waits_no_longer_than_all_collectives_take(share: int, scenario: Scenario) -> None:
    simulator, plan = scenario.simulator, scenario.plan
    for rank in range(len(plan.schedule.stages_of_ranks)):
        serial = all_collectives(simulator, plan, rank)
        assert exposed(simulator, plan, rank) <= serial * (1 + ROUNDING) + 1e-15


# --- chunks ---------------------------------------------------------------------------------------

RANKS = 3


def layers(count: int, width: int) -> Function:
    """Equal layers, each of which is a block."""
    builder = Builder("layers")
    x = builder.input("x", (4, width))
    for number in range(count):
        x = linear(builder, x, f"up{number}", 2 * width, bias=False)
        x = linear(builder, builder.add(Relu(), x), f"down{number}", width, bias=False)
    return builder.build([x])


@st.composite
def chunked(draw: st.DrawFn) -> tuple[dict[int, Scenario], dict[int, Scenario]]:
    """Plans whose ranks hold the same layers in one stage, or in as many as the keys say; with
    microbatches, and with twice as many of the same size."""
    chunks, of_chunk = draw(st.sampled_from([2, 3])), draw(st.integers(1, 3))
    model = LoadedModel("layers", layers(RANKS * chunks * of_chunk, draw(st.sampled_from([8, 32]))))
    dp, zero, samples = draw(st.sampled_from([2, 4])), draw(st.sampled_from([2, 3])), 2
    keep = draw(st.sampled_from(["none", "parameters"])) if zero == 3 else "none"
    cluster, stack = draw(clusters(dp * RANKS)), draw(stacks)
    found: list[dict[int, Scenario]] = []
    for microbatches in (4 * RANKS, 8 * RANKS):
        workload = Workload(model=model, batch_size=dp * microbatches * samples, optimizer="sgd")
        simulator = Simulator(workload, cluster, stack)
        strategy = Strategy(
            dp=dp, pp=RANKS, microbatches=microbatches, zero=zero, keep_gathered=keep
        )
        split = replace(strategy, schedule="interleaved", chunks=chunks)
        assert workload.num_blocks == RANKS * chunks * of_chunk
        found.append(
            {
                each.chunks: Scenario(simulator, simulator.planner.plan(each, cuts))
                for each, cuts in (
                    (strategy, [n * chunks * of_chunk for n in range(1, RANKS)]),
                    (split, [n * of_chunk for n in range(1, RANKS * chunks)]),
                )
            }
        )
    return found[0], found[1]


@shares(4, seconds=2)
@settings(max_examples=10, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(chunked())
def test_with_many_microbatches_chunks_expose_no_more_communication(
    share: int, plans: tuple[dict[int, Scenario], dict[int, Scenario]]
) -> None:
    """Each action gathers and shares out as its layers need, whatever actions there are."""
    few, many = plans
    waits: list[float] = []
    for own, twice in zip(few.values(), many.values(), strict=True):
        more = twice.plan.strategy.microbatches - own.plan.strategy.microbatches
        longer = exposed(twice.simulator, twice.plan, 1) - exposed(own.simulator, own.plan, 1)
        waits.append(longer / more)
    whole, in_chunks = waits
    assert in_chunks <= whole * (1 + ROUNDING) + 1e-12, (whole, in_chunks)
