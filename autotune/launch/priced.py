"""What a launch costs: as it was asked for, as the framework runs it, and the nearest one that the
framework can state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from autotune.launch.emit import Emission, Prediction, emit
from autotune.launch.errors import LaunchError
from autotune.launch.facts import Cuts, Launch, blocks_of_layers, launch_of, starts_of
from autotune.launch.limits import nearest
from autotune.launch.nodes import as_launched, differs, node_sizes
from autotune.launch.target import Target
from autotune.problem import Problem
from distir.cost import Cluster, load_stack
from distir.errors import DistirError
from distir.metrics import iteration_seconds, peak_memory_bytes, reserved_memory_bytes
from distir.models.transformer import TransformerConfig
from distir.plan import Plan
from distir.rules import explain
from distir.schedules import compile_schedule
from distir.strategy import Strategy
from distir.units import percent, short_bytes, short_seconds
from search_spaces import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A launch: its files, and its results as simulated and as the framework runs it."""

    problem: Problem
    strategy: Strategy
    emission: Emission
    simulated: Any
    as_run: Any
    as_run_settings: dict[str, Any]
    """What is otherwise in `as_run`: fields of the problem."""


def launched(problem: Problem, target: Target, strategy: Strategy) -> Launched:
    """The launch of a strategy. Raises `LaunchError`, with the nearest strategy that can be stated
    and what it costs, if this one cannot be."""
    refuse_devices(problem, target)
    refuse(problem, target, strategy)
    simulator: Any = problem.simulator
    plan = simulator.plan(strategy)
    result = simulator.simulate_plan(plan)
    launch = launch_of(problem, strategy, plan)
    run, settings = _launch_as_run(problem, target, strategy, launch)
    prediction = Prediction(
        seconds=result.metrics[iteration_seconds.name],
        memory_bytes=_held(result),
        device_bytes=problem.memory_bytes,
        fits=result.feasible,
        band=result.band.relative,
        as_run_seconds=run.metrics[iteration_seconds.name],
        as_run_bytes=_held(run),
        as_run_fits=run.feasible,
        stack=simulator.cost.stack.name,
        as_run_stack=settings["stack"],
    )
    return Launched(
        problem=problem,
        strategy=strategy,
        emission=emit(target, launch, prediction),
        simulated=result,
        as_run=run,
        as_run_settings=settings,
    )


LOOKED_AT = 10_000
"""Strategies of a space among which one is looked for that is a single stage."""


def check_stated(problem: Problem, target: Target) -> None:
    """Raises `LaunchError` if a framework cannot state what all strategies have in common, the
    model and the workload: as told by one that is a single stage, if there is one."""
    rules = target.rules(problem.workload)
    known = (each for each in islice(problem.space.enumerate(), LOOKED_AT) if each.stages == 1)
    refuse_devices(problem, target)
    some = next((each for each in known if explain(rules, each) is None), None)
    if some is not None:
        simulator: Any = problem.simulator
        target.table.write(launch_of(problem, some, simulator.plan(some)).facts)


def _held(result: Any) -> float:
    """Bytes that the fullest device needs: tensors, and what the software reserves."""
    metrics = result.metrics
    return metrics[peak_memory_bytes.name] + metrics[reserved_memory_bytes.name]


def as_run(
    problem: Problem,
    target: Target,
    strategy: Strategy,
    facts: Any,
    cuts: Cuts | None = None,
    per_node: int | None = None,
) -> tuple[Any, dict[str, Any]]:
    """The result with the framework's own software stack and what it does otherwise, and what that
    is. `cuts`: the layers of its stages, `per_node`: the devices of its nodes, where files state
    them."""
    settings = _own_settings(target, facts)
    nodes, said = _own_nodes(problem, per_node)
    simulator: Any = with_own_software(problem, target, facts, **nodes).simulator
    changes = target.as_run_strategy(facts)
    strategy = replace(strategy, **changes)  # type: ignore[arg-type]
    settings = {**settings, **said, **changes}
    workload = simulator.workload
    config = workload.model.config
    pieces = (
        blocks_of_layers(config, workload.num_blocks)
        if isinstance(config, TransformerConfig)
        else None
    )
    if cuts is None or pieces is None:
        plan = simulator.plan(strategy)
    else:
        plan = simulator.planner.plan(strategy, starts_of(cuts, pieces))
    if plan.schedule.pairs and not target.overlaps_pairs:
        plan = _in_turn(plan)
    return simulator.simulate_plan(plan), settings


def launched_as_run(
    problem: Problem, target: Target, strategy: Strategy
) -> tuple[Any, dict[str, Any]]:
    """`as_run` of a strategy as a launch states it."""
    simulator: Any = problem.simulator
    launch = launch_of(problem, strategy, simulator.plan(strategy))
    return _launch_as_run(problem, target, strategy, launch)


def _launch_as_run(
    problem: Problem, target: Target, strategy: Strategy, launch: Launch
) -> tuple[Any, dict[str, Any]]:
    cuts = launch.facts.get("cuts") if target.states_cuts else None
    _, per_node = launch.nodes
    return as_run(problem, target, strategy, launch.facts, cuts, per_node)


def with_own_software(problem: Problem, target: Target, facts: Any, **more: Any) -> Problem:
    """The problem with the framework's own software stack and what it does otherwise where a file
    states these facts, and with `more` changes."""
    if problem.changed is None:
        raise LaunchError("the problem cannot be changed; load it with load_problem")
    settings = _own_settings(target, facts)
    return problem.changed(**settings, **more, **_own_attention(problem, target))


def _own_settings(target: Target, facts: Any) -> dict[str, Any]:
    return {"stack": target.stack, **target.as_run(facts)}


def _own_nodes(problem: Problem, per_node: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The changes with which the devices are on the nodes that are launched, and what is to be said
    of them; nothing where a plan fills the same ones."""
    simulator: Any = problem.simulator
    cluster: Cluster = simulator.cost.cluster
    if per_node is None or not differs(cluster, per_node):
        return {}, {}
    return {"cluster": as_launched(cluster, per_node)}, {"devices_per_node": per_node}


def _own_attention(problem: Problem, target: Target) -> dict[str, Any]:
    """The changes with which attention is computed as the framework does: how queries, keys and
    values are made, and what follows where the problem says it, as no file states that."""
    simulator: Any = problem.simulator
    config = simulator.workload.model.config
    made: dict[str, Any] = {}
    if isinstance(config, TransformerConfig):
        own = _own_projections(config, target)
        if own != config or "attention" in problem.settings:
            made["model"] = own
    if "attention" in problem.settings:
        made["attention"] = load_stack(target.stack).attention
    return made


def _own_projections(config: TransformerConfig, target: Target) -> TransformerConfig:
    """The model with queries, keys and values made as the framework does."""
    if target.fuses_qkv is None or config.latent is not None:
        return config
    alike = config.num_kv_heads == config.heads
    return replace(config, fused_qkv=target.fuses_qkv and alike)


def _in_turn(plan: Plan) -> Plan:
    """The plan with the passes of overlapped pairs one after the other."""
    alone = replace(plan.schedule.schedule, overlapped=())
    return replace(plan, schedule=compile_schedule(alone))


def refuse_devices(problem: Problem, target: Target) -> None:
    """Raises `LaunchError` if a framework does not run on the devices of a cluster, or they make no
    equal nodes."""
    simulator: Any = problem.simulator
    cluster: Cluster = simulator.cost.cluster
    device = cluster.device
    node_sizes(cluster)
    if device.platform in (None, *target.platforms):
        return
    raise LaunchError(
        f"{target.label}: cannot write a launch for {device.name}, whose platform is "
        f"{device.platform}; expected devices of {' or '.join(target.platforms)}; leave out the "
        "launch, or name another cluster"
    )


def refuse(problem: Problem, target: Target, strategy: Strategy) -> None:
    """Raises `LaunchError` if a framework cannot state a strategy: why, and what is nearest."""
    reason = explain(target.rules(problem.workload), strategy)
    if reason is None:
        return
    raise LaunchError(f"{target.label}: {reason}; {_nearest(problem, target, strategy)}")


def _nearest(problem: Problem, target: Target, strategy: Strategy) -> str:
    found = nearest(strategy, problem.space.rules, target.all_limits, problem.workload)
    if found is None:
        return "no similar strategy can be stated"
    changed = ", ".join(
        f"{name} {value}" if value != "" else f"no {name}"
        for name, value in found.to_dict().items()
        if value != getattr(strategy, name)
    )
    return f"nearest: {changed}{_price(problem, strategy, found)}"


def _price(problem: Problem, strategy: Strategy, other: Strategy) -> str:
    """What another strategy costs against this one: `, +1.4 % time, -3 GiB`."""
    simulator: Any = problem.simulator
    try:
        found = simulator.simulate(other)
        asked = simulator.simulate(strategy)
    except DistirError:
        return ""
    name = iteration_seconds.name
    time = found.metrics[name] / asked.metrics[name] - 1
    room = _held(found) - _held(asked)
    sign = "-" if room < 0 else "+"
    fits = "" if found.feasible else ", which does not fit"
    return (
        f" ({short_seconds(found.metrics[name])}, {'+' if time >= 0 else '-'}{percent(abs(time))} "
        f"time, {sign}{short_bytes(abs(room))}{fits})"
    )


def restricted(problem: Problem, target: Target) -> Problem:
    """The problem with the space of what a framework can state."""
    rules = (*problem.space.rules, *target.rules(problem.workload))
    space = SearchSpace(problem.space.dimensions, rules)
    return replace(problem, space=space)
