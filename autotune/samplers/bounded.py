"""Lower bounds as the mean of a Gaussian process: for simulated objectives.

What no strategy of these sizes can beat is known before anything is tried (`distir.simulation
.bounds`). The process learns the residual, the logarithm of (found / bound), another one that of
memory, and what promises most is tried next: the expected improvement times the chance to fit.
What cannot be better than the best found is left out, which is sound as bounds are.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from autotune.samplers.encoding import steadied
from autotune.samplers.expectation import Expectation
from autotune.samplers.features import Features, samples_of
from autotune.samplers.residual import Estimate, Residual, below, improvement
from autotune.samplers.sampler import Outcome, Sampler
from distir.arrays import Flags, Floats, Indices
from distir.metrics import peak_memory_bytes
from distir.strategy import Strategy

LAYOUTS_FIRST = 5
CANDIDATES = 4096
NOISE = 3e-3
FILL_NOISE = 3e-3


class Pool(Protocol):
    @property
    def is_whole(self) -> bool: ...
    @property
    def metric(self) -> str: ...
    def start(self) -> Expectation: ...
    def around(self, strategy: Strategy) -> Expectation: ...
    def log_fill(self, strategy: Strategy, peak_memory_bytes: float) -> float: ...


class BoundedSampler:
    def __init__(self, pool: Pool, batch_size: int, rest: Sampler | None = None, start: Expectation | None = None) -> None:
        self._pool = pool
        self._batch_size = batch_size
        self._rest = rest
        self._costs: dict[Strategy, float] = {}
        self._fills: dict[Strategy, float] = {}
        self._feasible: set[Strategy] = set()
        self._proposed: set[Strategy] = set()
        self._grown: set[Strategy] = set()
        self._fits: list[Residual | None] = [None, None]
        self._set(start or pool.start())

    def _set(self, expected: Expectation) -> None:
        self._expected = expected
        table = expected.table
        features = Features(table.values)
        self._groups = np.append(features.groups, [2, 2])
        plain = features.rows(table, samples_of(table, self._batch_size))
        self._rows = np.column_stack([plain, expected.log_cost, expected.log_fill])
        self._layouts = expected.layouts()
        self._order = np.lexsort((expected.log_cost, expected.log_fill > 0))
        self._places: dict[Strategy, int] = {}
        self._open = np.ones(len(expected), np.bool_)
        for s in self._proposed: self._close(s)

    def _place(self, s):
        if s not in self._places:
            same=np.ones(len(self._expected),np.bool_)
            for name, codes in self._expected.table.codes.items():
                try: k=self._expected.table.values[name].index(getattr(s,name))
                except ValueError: same[:]=False; break
                same&=codes==k
            f=np.flatnonzero(same)
            self._places[s]=int(f[0]) if len(f) else -1
        return self._places[s]

    def _close(self, s):
        p=self._place(s)
        if p>=0: self._open[p]=False

    def ask(self):
        self._grow()
        cand = self._candidates()
        if not len(cand):
            return self._next_of_rest()
        if len(self._costs) < LAYOUTS_FIRST:
            place = self._next_layout(cand)
        else:
            place = self._most_promising(cand)
        s = self._expected.table[int(place)]
        self._proposed.add(s); self._close(s)
        return s

    def tell(self, strategy, cost, violation=0.0):
        self._proposed.add(strategy); self._close(strategy)

    def tell_outcome(self, o):
        self.tell(o.strategy,o.cost,o.violation)
        value=o.metrics.get(self._pool.metric)
        if o.cost is not None and value:
            self._costs[o.strategy]=float(np.log(value))
            if o.violation<=0: self._feasible.add(o.strategy)
        peak=o.metrics.get(peak_memory_bytes.name)
        if o.cost is not None and peak: self._fills[o.strategy]=self._pool.log_fill(o.strategy,peak)

    def _grow(self):
        if self._pool.is_whole or not self._feasible: return
        best=min(self._feasible,key=self._costs.__getitem__)
        if best in self._grown: return
        self._grown.add(best)
        self._set(self._expected.joined(self._pool.around(best)))

    def _candidates(self):
        o=self._order
        best=self._best_log()
        ok=self._open[o]&(self._expected.log_fill[o]<=0)
        if best is not None: ok&= self._expected.log_cost[o]<best
        c=o[ok][:CANDIDATES]
        return c

    def _best_log(self):
        if not self._feasible: return None
        return min(self._costs[s] for s in self._feasible)
    def _next_layout(self,cand):
        seen={self._layouts[p] for s in self._proposed if (p:=self._place(s))>=0}
        for p in cand:
            if self._layouts[p] not in seen: return p
        return cand[0]
    def _most_promising(self,cand):
        known=[s for s in self._costs if self._place(s)>=0]
        at=np.array([self._place(s) for s in known])
        y=np.array([self._costs[s] for s in known])
        self._fits[0]=Residual.fitted(self._rows[at],y-self._expected.log_cost[at],NOISE,self._groups,self._fits[0])
        e=self._fits[0].at(self._rows[cand])
        mean=np.maximum(e.mean,0)+self._expected.log_cost[cand]
        km=[s for s in self._fills if self._place(s)>=0]; am=np.array([self._place(s) for s in km])
        ym=np.array([self._fills[s] for s in km])-self._expected.log_fill[am]
        self._fits[1]=Residual.fitted(self._rows[am],ym,FILL_NOISE,self._groups,self._fits[1])
        f=self._fits[1].at(self._rows[cand])
        fill=self._expected.log_fill[cand]+np.maximum(f.mean,0)
        chance=below(-fill/np.maximum(f.deviation,1e-3))
        best=self._best_log()
        if best is None: score=chance-0.01*mean
        else: score=(improvement(Estimate(mean,e.deviation),best)+1e-12)*chance
        return cand[int(np.argmax(score))]
    def _next_of_rest(self):
        while self._rest is not None and (s:=self._rest.ask()) is not None:
            if s not in self._proposed: return s
        return None
