"""Predictions for cases. Cases of one model share its analysis and its placements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

from autotune.validation.cases import Case, Exclusion, ModelKey
from autotune.validation.words import read_data
from distir import Simulator, Workload
from distir.cost import Band, MeasuredProducts, SoftwareStack, load_stack
from distir.errors import DistirError
from distir.importers.load import LoadedModel
from distir.importers.probe import build_at_probe_sizes
from distir.ir import Function
from distir.plan import Plan, Planner
from distir.simulation import SimulationResult
from distir.simulation.simulator import planner_facts
from distir.strategy import Strategy

__all__ = ["PredictedRow", "Prepared", "predict", "prepare"]


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """A case with what was predicted of it."""

    case: Case
    seconds: float
    memory_bytes: float
    """Peak memory as the row's kind of counter would show it."""
    fits: bool
    breakdown: Mapping[str, float]
    """Seconds of an iteration by kind, mean over pipeline ranks."""
    band: Band
    """How far the measured seconds may be from the predicted ones."""
    unclaimed_memory: str = ""
    """That memory is not claimed to be near the measured one, and why; empty where it is."""

    @property
    def assumptions(self) -> list[str]:
        """What was assumed of the row, its software, and in what it goes beyond measured runs."""
        beyond = [f"beyond measured runs: {self.band.beyond}"] if self.band.beyond else []
        unclaimed = [self.unclaimed_memory] if self.unclaimed_memory else []
        return [*self.case.assumptions, f"software: {self.case.software.name}", *beyond, *unclaimed]

    @property
    def error(self) -> float | None:
        """Predicted over measured seconds, minus 1; None where no time was measured."""
        measured = self.case.measured.seconds
        return None if measured is None else self.seconds / measured - 1.0

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured memory, minus 1; None where none was measured."""
        measured = self.case.measured.memory_bytes
        return None if measured is None else self.memory_bytes / measured - 1.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A case with its workload, its software stack, and a planner that its like share."""

    case: Case
    workload: Workload
    stack: SoftwareStack
    planner: Planner

    def simulator(self, stack: SoftwareStack) -> Simulator:
        """A simulator of the case with this stack, which fuses as the case's own does."""
        cluster = self.case.hardware.cluster
        return Simulator(self.workload, cluster, stack, planner=self.planner)

    def plan(self, simulator: Simulator) -> Plan:
        """The case's plan; raises `DistirError` if it cannot exist."""
        case = self.case
        if case.cuts is None:
            return simulator.plan(case.strategy)
        return self.planner.plan(case.strategy, case.cuts)

    def simulate(self, stack: SoftwareStack) -> SimulationResult:
        """The simulated result with this stack; raises `DistirError` if the plan cannot exist."""
        simulator = self.simulator(stack)
        return simulator.simulate_plan(self.plan(simulator))


def predict(
    cases: Iterable[Case],
    *,
    stack: str | None = None,
    products: MeasuredProducts | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[list[PredictedRow], list[Exclusion]]:
    """Predictions, and the cases that cannot be simulated. `stack` names the software
    stack to use for every case, instead of that of the software it was measured with; `products`
    are measured ones that every stack is to have, instead of its own."""
    outcomes: list[PredictedRow] = []
    refused: list[Exclusion] = []
    for prepared in prepare(cases, stack=stack, progress=progress):
        case = prepared.case
        if products is not None:
            prepared = replace(prepared, stack=replace(prepared.stack, products=products))
        try:
            result = prepared.simulate(prepared.stack)
        except DistirError as error:
            refused.append(Exclusion(case.row, "not simulated", str(error)))
            continue
        outcomes.append(outcome_of(case, prepared.stack, result))
    return outcomes, refused


def prepare(
    cases: Iterable[Case],
    *,
    stack: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Prepared]:
    """Cases by model and workload, each with what it shares with its like."""
    ordered = sorted(cases, key=lambda case: (str(case.model), _workload_key(case)))
    for model, same_model in groupby(ordered, key=lambda case: case.model):
        progress(f"{model.config.layers} layers of {model.config.hidden}")
        loaded = _load(model)
        yield from _of_one_model(loaded, list(same_model), stack)


def _of_one_model(
    model: LoadedModel, cases: Sequence[Case], stack: str | None
) -> Iterator[Prepared]:
    workload: Workload | None = None
    for _, same in groupby(cases, key=_workload_key):
        listed = list(same)
        case = listed[0]
        sizes: dict[str, Any] = {
            "batch_size": case.batch_size,
            "sequence_length": case.sequence_length,
            "precision": case.precision,
            "gradient_precision": case.gradient_precision,
            "optimizer": case.optimizer,
        }
        if workload is None:
            workload = Workload(model=model, **sizes)
        else:
            workload = workload.resized(**sizes)
        planners: dict[tuple[object, ...], Planner] = {}
        for case in listed:
            used = load_stack(stack) if stack else _stack_of(case)
            facts = planner_facts(workload, case.hardware.cluster, used)
            key = tuple(facts.values())
            if key not in planners:
                planners[key] = Planner(workload, **facts)
            yield Prepared(case, workload, used, planners[key])


def _stack_of(case: Case) -> SoftwareStack:
    """The stack of the case's software, with what the row itself says about it."""
    return replace(load_stack(case.software.stack), **case.stack_fields)


def outcome_of(case: Case, stack: SoftwareStack, result: SimulationResult) -> PredictedRow:
    """The figures of a simulation that are compared."""
    kinds = dict.fromkeys(kind for stage in result.stages for kind in stage.seconds)
    count = len(result.stages)
    held = result.metrics["peak_memory_bytes"]
    outside = outside_bytes(case.strategy, stack)
    return PredictedRow(
        case,
        result.metrics["iteration_seconds"],
        as_counted(held, case.measured.counter or "allocated", outside),
        result.feasible,
        {kind: sum(s.seconds.get(kind, 0.0) for s in result.stages) / count for kind in kinds},
        band_of(case, result.band, stack),
        stack.unclaimed_memory,
    )


def band_of(case: Case, band: Band, stack: SoftwareStack) -> Band:
    """The band of a prediction, with what a row leaves open about its software."""
    silent = case.experts and not case.dispatcher_known
    return replace(
        band,
        software=0.0 if case.software_known else stack.software_spread,
        dispatcher=stack.dispatcher_spread if silent else 0.0,
    )


def outside_bytes(strategy: Strategy, stack: SoftwareStack) -> float:
    """What lies outside of tensors: the context, and buffers of every communicator."""
    return float(stack.reserve_bytes(0.0, strategy.communicators))


def as_counted(held_bytes: float, counter: str, outside: float) -> float:
    """The reading of a memory counter when tensors hold `held_bytes` and `outside` bytes lie
    outside them."""
    entry = _counters()[counter]
    return held_bytes * entry["times"] + outside * entry["outside"]


@lru_cache(maxsize=1)
def _counters() -> dict[str, dict[str, Any]]:
    return read_data("memory.toml")


def _workload_key(case: Case) -> tuple[str, str, str, int, int]:
    precisions = case.precision, case.gradient_precision
    return *precisions, case.optimizer, case.sequence_length, case.batch_size


def _load(model: ModelKey) -> LoadedModel:
    config = model.config

    def build(batch_size: int, sequence_length: int) -> Function:
        return config.build(batch_size, sequence_length, model.attention)

    function = build_at_probe_sizes(build, config.longest)
    return LoadedModel(config.name, function, config.sequence_length, config.longest)
