"""What pricers have to price: of several pricers, what is alike is scheduled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from distir.simulation.pricing.chains import BlockChain, ChainCost, PassCost
from distir.simulation.pricing.chains_many import (
    ChainColumns,
    ManyChainScheduler,
    run_together,
)
from distir.simulation.pricing.stage_cost import StageCost, UnpricedStage


class ChainPricer(Protocol):
    """Prices stages, given what the chains of their passes cost."""

    @property
    def many_chains(self) -> ManyChainScheduler:
        """What schedules chains at many program sizes."""
        ...

    def priced_stage(
        self,
        stage: UnpricedStage,
        chains: Mapping[int, tuple[BlockChain, ChainCost]],
    ) -> StageCost:
        """The cost of a stage, given the chains of its passes by cost kind, and what they cost."""
        ...


@dataclass(frozen=True, slots=True)
class ToPrice:
    """Stages and overlapped pairs whose passes are known, but not how long they take."""

    pricer: ChainPricer
    stages: Sequence[UnpricedStage]
    chains: Sequence[Sequence[BlockChain]]
    """By cost kind, the passes of the stages that have it; and then those of the pairs."""

    def costs(self, costs: Sequence[Sequence[ChainCost]]) -> tuple[list[StageCost], list[PassCost]]:
        """The costs of the stages and of the pairs, given those of their chains."""
        *of_kinds, of_pairs = (
            zip(*both, strict=True) for both in zip(self.chains, costs, strict=True)
        )
        priced = [
            self.pricer.priced_stage(stage, {kind: next(of_kinds[kind]) for kind in stage.actions})
            for stage in self.stages
        ]
        return priced, [cost.cost for _, cost in of_pairs]


def price_together(asked: Sequence[ToPrice]) -> list[tuple[list[StageCost], list[PassCost]]]:
    """The costs of what several pricers of one cost model have to price, each at many program
    sizes; what is alike is scheduled once."""
    found: list[tuple[list[StageCost], list[PassCost]]] = []
    for each, columns in zip(asked, timed_together(asked), strict=True):
        own = zip(columns, each.chains, strict=True)
        sizes = each.pricer.many_chains.num_sizes
        found.append(each.costs([timed.costs(chains, sizes) for timed, chains in own]))
    return found


def timed_together(asked: Sequence[ToPrice]) -> list[list[ChainColumns]]:
    """What the `chains` of several pricers of one cost model cost, each at many program sizes; what
    is alike is scheduled once."""
    every = [
        (kind, number, each.pricer.many_chains, chains)
        for number, each in enumerate(asked)
        for kind, chains in enumerate(each.chains)
    ]
    every.sort(key=lambda each: each[:2])
    found: list[list[ChainColumns]] = [[] for _ in asked]
    columns = run_together([each[2:] for each in every])
    for (_, number, *_), own in zip(every, columns, strict=True):
        found[number].append(own)
    return found


__all__ = ["ChainPricer", "ToPrice", "price_together", "timed_together"]
