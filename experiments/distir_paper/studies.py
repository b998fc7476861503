"""The paper's two studies again: exhaustive grids for MLP training and GPT inference.

For every model and batch size all D/H/P degrees and microbatches; per family of strategies the
best, and how much faster than pure data parallelism it is. What does not fit is not a candidate.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import distir
from distir import Cluster, Simulator, Strategy, Workload
from distir.importers.load import LoadedModel
from experiments.distir_paper import original
from search_spaces import distribution_space

FAMILIES = ("D", "H", "P", "D/H", "D/P", "H/P", "D/H/P")
ORIGINAL_SECONDS_PER_CONFIGURATION = {"MLP training": 1.06, "GPT inference": 5.8}
"""The original's grid search, one core (measured with microsoft/dist-ir at 7cfa1b0)."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulated configuration."""

    model: str
    batch_size: int
    strategy: Strategy
    samples_per_second: float
    feasible: bool

    @property
    def family(self) -> str:
        """Which degrees are more than one."""
        degrees = {"D": self.strategy.dp, "H": self.strategy.tp, "P": self.strategy.pp}
        return "/".join(name for name, degree in degrees.items() if degree > 1)


@dataclass(frozen=True, slots=True)
class Study:
    """All trials of one study, and the time they took."""

    name: str
    cluster: str
    trials: tuple[Trial, ...]
    seconds: float

    @property
    def title(self) -> str:
        """What is studied, and on what."""
        return f"{self.name} on {self.cluster}"

    @property
    def original_seconds(self) -> float:
        """What the original would take for as many configurations."""
        return len(self.trials) * ORIGINAL_SECONDS_PER_CONFIGURATION[self.name]


def mlp_training(cluster: Cluster, batch_sizes: Iterable[int]) -> Study:
    """The zoo's MLPs, forward, backward and SGD, in mixed precision."""
    models = [distir.load_model(f"mlp-{size}") for size in ("small", "medium", "large")]
    return _study(
        "MLP training",
        cluster,
        [original.mlp_training(m, batch, "fp16") for m in models for batch in batch_sizes],
    )


def gpt_inference(cluster: Cluster, batch_sizes: Iterable[int], sequence_length: int) -> Study:
    """GPT-2 and GPT-3 models, one forward pass over `sequence_length` tokens."""
    models: list[LoadedModel] = [
        distir.load_model(name) for name in ("gpt2-xl", "gpt3-13b", "gpt3-175b")
    ]
    return _study(
        "GPT inference",
        cluster,
        [
            original.gpt2_inference(m, batch, "fp16", sequence_length)
            for m in models
            for batch in batch_sizes
        ],
    )


def _study(name: str, cluster: Cluster, workloads: Sequence[Workload]) -> Study:
    start = time.perf_counter()
    trials = tuple(trial for workload in workloads for trial in _grid(workload, cluster))
    where = f"{cluster.num_devices} devices of {cluster.name}"
    return Study(name, where, trials, time.perf_counter() - start)


def _grid(workload: Workload, cluster: Cluster) -> Iterable[Trial]:
    simulator = Simulator(workload, cluster)
    space = distribution_space(workload, cluster.num_devices, "small")
    table = simulator.simulate_many(list(space.enumerate()))
    rates = table.metrics["throughput_samples_per_second"]
    for strategy, rate, feasible in zip(table.strategies, rates, table.feasible, strict=True):
        yield Trial(workload.model.name, workload.batch_size, strategy, float(rate), bool(feasible))


def best_of_families(trials: Iterable[Trial]) -> dict[str, Trial]:
    """The fastest feasible trial of each family."""
    best: dict[str, Trial] = {}
    for trial in trials:
        held = best.get(trial.family)
        if trial.feasible and (held is None or trial.samples_per_second > held.samples_per_second):
            best[trial.family] = trial
    return best


def by_workload(study: Study) -> dict[tuple[str, int], list[Trial]]:
    """Trials by model and batch size."""
    found: dict[tuple[str, int], list[Trial]] = {}
    for trial in study.trials:
        found.setdefault((trial.model, trial.batch_size), []).append(trial)
    return found


def report(study: Study) -> str:
    """Per model and batch size the samples per second of each family's best."""
    took = f"{len(study.trials):,} configurations in {study.seconds:.1f} s"
    lines = [
        f"{study.title}: {took}; the original: about {study.original_seconds / 60:,.0f} min",
        f"{'model':14}{'batch':>7}"
        + "".join(f"{family:>10}" for family in FAMILIES)
        + "  best, samples/s, over D",
    ]
    for (model, batch), trials in by_workload(study).items():
        best = best_of_families(trials)
        cells = "".join(
            f"{best[family].samples_per_second:>10,.1f}" if family in best else f"{'-':>10}"
            for family in FAMILIES
        )
        lines.append(f"{model:14}{batch:>7}{cells}  {_conclusion(best)}")
    return "\n".join(lines)


def _conclusion(best: dict[str, Trial]) -> str:
    if not best:
        return "nothing fits"
    winner = max(best.values(), key=lambda trial: trial.samples_per_second)
    if "D" not in best:
        return f"{winner.strategy.label}; data parallelism alone does not fit"
    return (
        f"{winner.strategy.label}, "
        f"{winner.samples_per_second / best['D'].samples_per_second:.2f} times D"
    )
