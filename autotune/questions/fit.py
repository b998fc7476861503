"""What fits: the largest batch, sequence or model, or the fewest devices, in a memory.

The answer is found by doubling until nothing fits any more, and by bisection between the last size
that fits and the first that does not; what is larger is taken to need more memory. Where it is
known how full the memory is at two sizes, tries are made where it would be full if that grew
evenly. What fits with all layers recomputed fits where a plan may choose. Of one strategy
a size is simulated; of a space the strategy with the least memory is looked for by certified
search, whose memory bounds tell quickly where nothing fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count, takewhile
from typing import Any, Literal, get_args

from autotune.exhaustive.certified import certify
from autotune.objectives.simulator import needed_bytes
from autotune.problem import Problem
from distir.errors import DistirError
from distir.factoring import divisors
from distir.limits import MOST_LAYERS, MOST_MICROBATCHES, MOST_SAMPLES, MOST_TOKENS
from distir.metrics import peak_memory_bytes
from distir.strategy import AUTO, Strategy
from distir.workload import Workload

Size = Literal["batch", "sequence", "layers", "devices"]
SIZES: tuple[Size, ...] = get_args(Size)

TOKENS_STEP = 128
"""Tokens between two sequence lengths that are tried: attention works on blocks of this size."""

_SAYS: Mapping[Size, str] = {
    "batch": "The largest batch that fits has {} samples",
    "sequence": f"The longest sequence that fits, in steps of {TOKENS_STEP}, has {{}} tokens",
    "layers": "The deepest model that fits has {} layers",
    "devices": "Of the numbers tried, the fewest devices that are enough are {}",
}

_UNITS: Mapping[Size, str] = {
    "batch": "samples",
    "sequence": "tokens",
    "layers": "layers",
    "devices": "devices",
}


FIRST_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024)
"""Steps that are tried until there is a plan: a pipeline asks for some layers, and what splits the
batch for some samples."""

MOST_FEWEST_DEVICES = 1 << 16
"""The largest number of devices that is tried where nothing fits."""

BETWEEN = 4
"""Between two powers of two, numbers of devices are tried that are apart by this fraction (1 / n)
of the smaller one: 8, 10, 12, 14, 16."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One size that was tried."""

    size: int
    strategy: Strategy | None
    """What fits, or None."""
    reason: str
    """Why nothing fits; empty where something does."""
    refused: bool = False
    """Whether there is no plan of that size, whatever the memory."""
    filled: float | None = None
    """The memory that is taken over what there is; None if that is not known."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer to how much fits."""

    what: Size
    size: int | None
    """The largest batch (samples), sequence (tokens) or number of layers, or the fewest devices;
    None if nothing fits."""
    strategy: Strategy | None
    """What fits at that size."""
    limited_by: str
    """Why the next size does not fit, or what ends the search."""
    tried: tuple[Tried, ...]
    interrupted: bool = False
    """Whether it ended early: then the size is that of what was tried."""
    larger_fit: bool = False
    """Whether larger ones fit, too, so that this is only the largest that is simulated."""

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if self.interrupted:
            return self._so_far
        if self.size is None or self.strategy is None:
            return f"Nothing fits: {self.limited_by}"
        if self.larger_fit:
            return (
                f"Any batch fits if it is cut into microbatches: {self.size:,} samples fit with "
                f"{self.strategy.label}, and more samples take more microbatches but no more memory"
            )
        found = _SAYS[self.what].format(f"{self.size:,}")
        beyond = "Fewer" if self.what == "devices" else "Beyond that"
        return f"{found}, with {self.strategy.label}. {beyond}: {self.limited_by}"

    @property
    def _so_far(self) -> str:
        """What is known where somebody wanted an end."""
        found = "Interrupted before any plan that fits was found."
        if self.size is not None and self.strategy is not None:
            found = (
                f"Interrupted: {self.size:,} {_UNITS[self.what]} fit, with {self.strategy.label}."
            )
        return f"{found} {self.limited_by}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "what": self.what,
            "interrupted": self.interrupted,
            "larger_fit": self.larger_fit,
            "size": self.size,
            "strategy": None if self.strategy is None else self.strategy.to_dict(),
            "limited_by": self.limited_by,
            "tried": [
                {"size": each.size, "fits": each.strategy is not None, "reason": each.reason}
                for each in self.tried
            ],
        }


def _never(_: Tried) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes that can be tried, by the number of steps, which begin with 1."""

    steps: int
    """The largest number of steps."""
    size: Callable[[int], int]
    problem: Callable[[int], Problem]
    """The problem of a size."""
    strategy: Callable[[int], Strategy | None]
    """The strategy of a size; None stands for any of the problem's space."""
    end: str
    """What there is to say about sizes with more steps."""
    in_multiples: bool = False
    """Whether a plan of the first possible size is one of its multiples, too, and of no other."""
    enough: Callable[[Tried], bool] = _never
    """Whether one that fits says of all that are larger that they do."""
    least: Callable[[int], bool] = lambda size: False
    """Whether the plan that needs least may say so at a size; else any that fits is looked for."""
    first: Sequence[int] = ()
    """The steps to try first, where the fewest are looked for: those between two of them, then."""

    def possible(self) -> _Sizes:
        """These sizes from the first one on of which there is a plan, as far as that is found."""
        first = next((step for step in FIRST_STEPS if step <= self.steps and self._is_one(step)), 1)
        times, before = (first, 0) if self.in_multiples else (1, first - 1)

        def size(step: int) -> int:
            return self.size(step * times + before)

        steps = (self.steps - before) // times
        return replace(self, steps=steps, size=size)

    def _is_one(self, step: int) -> bool:
        return not _tried(self, self.size(step)).refused


def fit(problem: Problem, what: Size, strategy: Strategy | None = None) -> Fit:
    """How much fits with a strategy, or, where none is given, with any of the problem's space.

    Of a strategy the number of microbatches stays, and its replicas change with the number of
    devices. Raises `DistirError` for what cannot be varied, such as the layers of a model file, and
    for spaces that cannot be searched for what fits. An interrupt leaves what was tried, if there
    is anything.
    """
    sizes = _SIZES[what](problem, strategy)
    if strategy is not None and what != "devices":
        sizes = sizes.possible()
    fitting = 0 if what == "devices" else _surely(sizes, strategy)
    tried: dict[int, Tried] = {}

    def at(step: int) -> Tried:
        if step not in tried:
            size = sizes.size(step)
            known = Tried(size, sizes.strategy(size), "") if step <= fitting else None
            tried[step] = known or _tried(sizes, size)
        return tried[step]

    try:
        if what == "devices":
            best = _first(at, sizes.first)
        else:
            best = _last(at, sizes.steps, fitting, sizes.enough)
        return _answer(what, sizes, strategy, best, at, tried)
    except KeyboardInterrupt:
        if not tried:
            raise
        return _so_far(what, _ordered(tried))


def _answer(
    what: Size,
    sizes: _Sizes,
    strategy: Strategy | None,
    best: int | None,
    at: Callable[[int], Tried],
    tried: Mapping[int, Tried],
) -> Fit:
    """The answer where the best step is known, with what limits it."""
    fewest = what == "devices"
    if best is None:
        last = tried[max(tried)] if fewest else at(1)
        if last.refused and strategy is None:
            raise DistirError(last.reason)
        return Fit(what, None, None, last.reason, _ordered(tried))
    if fewest:
        limit = _limit_below(tried, best, sizes)
    elif sizes.enough(at(best)):
        limit = f"a plan has at most {MOST_MICROBATCHES:,} microbatches"
        return Fit(what, at(best).size, at(best).strategy, limit, _ordered(tried), larger_fit=True)
    else:
        limit = at(best + 1).reason if best < sizes.steps else sizes.end
    return Fit(what, at(best).size, at(best).strategy, limit, _ordered(tried))


def _so_far(what: Size, tried: Sequence[Tried]) -> Fit:
    """What the sizes that were tried say: the best that fits, and the next that does not."""
    order = tried[::-1] if what == "devices" else tried  # what is further on fits less easily
    fits = [place for place, each in enumerate(order) if each.strategy is not None]
    beyond = order[fits[-1] + 1 :] if fits else order
    limit = f"With {beyond[0].size:,} {_UNITS[what]}: {beyond[0].reason}" if beyond else ""
    best = order[fits[-1]] if fits else None
    size, strategy = (best.size, best.strategy) if best else (None, None)
    return Fit(what, size, strategy, limit, tuple(tried), interrupted=True)


def _limit_below(tried: Mapping[int, Tried], best: int, sizes: _Sizes) -> str:
    """Why fewer are not enough: of what was tried, the most of which there are plans."""
    below = [each for step, each in sorted(tried.items()) if step < best]
    planned = [each for each in below if not each.refused] or below
    return f"with {planned[-1].size:,}, {planned[-1].reason}" if planned else sizes.end


def _ordered(tried: Mapping[int, Tried]) -> tuple[Tried, ...]:
    return tuple(tried[step] for step in sorted(tried))


def _surely(sizes: _Sizes, strategy: Strategy | None) -> int:
    """Steps that fit for sure: where a plan chooses which layers recompute, those with which all of
    them do."""
    if strategy is None or strategy.recompute != AUTO:
        return 0
    recomputed = replace(strategy, recompute="full")

    def all_of(_: int) -> Strategy:
        return recomputed

    full = replace(sizes, strategy=all_of)
    return _last(lambda step: _tried(full, full.size(step)), full.steps) or 0


def _last(
    at: Callable[[int], Tried],
    steps: int,
    fitting: int = 0,
    enough: Callable[[Tried], bool] = _never,
) -> int | None:
    """The last step that fits, given that the steps before it do, and that the first `fitting` do;
    or one that is `enough`."""
    if not fitting and at(1).strategy is None:
        return None
    low, further, full = max(1, fitting), 1, None
    while low + further <= steps and at(low + further).strategy is not None:
        full = None if low == fitting else _full_at(at, low, low + further)
        low, further = low + further, 2 * further
        if enough(at(low)):
            return low
        if full is not None:
            further = min(further, max(1, full - low))
    high, evenly = min(low + further, steps + 1), True
    while high - low > 1:
        full = _full_at(at, low, high) if evenly and high <= steps else None
        middle = (low + high) // 2 if full is None else min(max(full, low + 1), high - 1)
        low, high = (middle, high) if at(middle).strategy is not None else (low, middle)
        evenly = not evenly
    return low


def _full_at(at: Callable[[int], Tried], low: int, high: int) -> int | None:
    """The last step with which memory would not be more than full if it grew evenly from one step
    to another; None if that is not known."""
    least, most = at(low).filled, at(high).filled
    if least is None or most is None or not least < most:
        return None
    return low + int((1 - least) / (most - least) * (high - low))


def _first(at: Callable[[int], Tried], steps: Sequence[int]) -> int | None:
    """The first step that fits, of some steps and of those between the first of these that fits and
    the one before it."""
    tried = (place for place, step in enumerate(steps) if at(step).strategy is not None)
    enough = next(tried, None)
    if enough is None:
        return None
    before = steps[enough - 1] if enough else 0
    between = range(before + 1, steps[enough] + 1)
    return next(step for step in between if at(step).strategy is not None)


def _tried(sizes: _Sizes, size: int) -> Tried:
    try:
        problem, strategy = sizes.problem(size), sizes.strategy(size)
        if strategy is None:
            return _of_space(problem, size, sizes.least(size))
        result = problem.simulator.simulate(strategy)
    except DistirError as error:
        return Tried(size, None, str(error), refused=True)
    filled = float(needed_bytes(result.metrics)) / problem.memory_bytes
    return Tried(size, strategy if result.feasible else None, result.reason or "", filled=filled)


def _of_space(problem: Problem, size: int, least: bool) -> Tried:
    """Whether anything of a space fits: what needs `least`, or whatever does."""
    problem.check_not_empty()
    objective = problem.objective(peak_memory_bytes.name)
    found = certify(problem, objective, nearest=False, any_that_fits=not least)
    if found.interrupted:
        raise KeyboardInterrupt
    if found.best is not None:
        return Tried(size, found.best.strategy, "")
    closest = found.closest
    if closest is not None:
        others = (
            ""
            if found.evaluated == found.space_size
            else " among those that bounds do not rule out"
        )
        reason = f"{closest.strategy.label} comes closest{others}: {closest.evaluation.reason}"
        return Tried(size, None, reason)
    counts = found.too_large
    most = max(counts, key=lambda each: counts[each])
    return Tried(
        size, None, f"none of the {found.space_size:,} strategies fits: too much memory for {most}"
    )


def _changed(problem: Problem, **changes: Any) -> Problem:
    if problem.changed is None:
        raise DistirError("this problem was built by hand and cannot be changed; use load_problem")
    return problem.changed(**changes)


def _workload(problem: Problem) -> Workload:
    if not isinstance(problem.workload, Workload):
        raise DistirError("this problem has no distir model whose sizes could change")
    return problem.workload


def _batches(problem: Problem, strategy: Strategy | None) -> _Sizes:
    pieces = strategy.dp * strategy.microbatches if strategy else problem.devices
    return _Sizes(
        MOST_SAMPLES // pieces,
        lambda step: step * pieces,
        lambda size: _changed(problem, batch_size=size),
        lambda size: strategy,
        f"a batch has at most {MOST_SAMPLES:,} samples",
        in_multiples=True,
        enough=_never if strategy else cache(partial(_larger_fit, problem)),
        least=lambda size: 2 * size > MOST_MICROBATCHES,
    )


def _larger_fit(problem: Problem, tried: Tried) -> bool:
    """Whether what fits has as many microbatches as plans have, and would take as much memory with
    half of them: then a larger batch would, too."""
    strategy = tried.strategy
    if strategy is None or 2 * strategy.microbatches <= MOST_MICROBATCHES:
        return False
    pieces = max(1, strategy.microbatches // 2)
    fewer = replace(strategy, microbatches=pieces)
    batch = tried.size // strategy.microbatches * pieces
    try:
        needed = [
            needed_bytes(_changed(problem, batch_size=size).simulator.simulate(plan).metrics)
            for size, plan in ((tried.size, strategy), (batch, fewer))
        ]
    except DistirError:
        return False
    return needed[0] <= needed[1]


def _sequences(problem: Problem, strategy: Strategy | None) -> _Sizes:
    longest = _workload(problem).model.longest or MOST_TOKENS
    if _workload(problem).program.sequence is None:
        raise DistirError(f"{problem.model} has no sequence whose length could change")
    return _Sizes(
        max(1, longest // TOKENS_STEP),
        lambda step: min(longest, step * TOKENS_STEP),
        lambda size: _changed(problem, batch_size=problem.batch_size, sequence_length=size),
        lambda size: strategy,
        f"the model takes at most {longest:,} tokens",
    )


def _layers(problem: Problem, strategy: Strategy | None) -> _Sizes:
    config: Any = _workload(problem).model.config
    if not hasattr(config, "layers"):
        raise DistirError(
            f"{problem.model} states no number of layers that could change; expected a model of "
            "the zoo, or a config.json"
        )
    fewest = strategy.stages if strategy else 1
    return _Sizes(
        MOST_LAYERS - fewest + 1,
        lambda step: fewest + step - 1,
        lambda size: _changed(
            problem, model=replace(config, layers=size), batch_size=problem.batch_size
        ),
        lambda size: strategy,
        f"a model has at most {MOST_LAYERS:,} layers",
    )


def _devices(problem: Problem, strategy: Strategy | None) -> _Sizes:
    share = strategy.devices // strategy.dp if strategy else 1
    counts: Sequence[int] = [
        each
        for power in takewhile(
            lambda n: n <= MOST_FEWEST_DEVICES // share, (1 << n for n in count())
        )
        for each in range(power, 2 * power, max(1, power // BETWEEN))
    ]
    first = [step for step, each in enumerate(counts, 1) if not each & (each - 1)]
    if strategy is not None:  # replicas share the batch evenly
        counts = divisors(max(1, problem.batch_size // strategy.microbatches))
        first = list(range(1, len(counts) + 1))
    return _Sizes(
        len(counts),
        lambda step: share * counts[step - 1],
        lambda size: _changed(problem, devices=size, batch_size=problem.batch_size),
        lambda size: strategy and replace(strategy, dp=size // share),
        "there is no smaller number",
        first=first,
    )


_SIZES: Mapping[Size, Callable[[Problem, Strategy | None], _Sizes]] = {
    "batch": _batches,
    "sequence": _sequences,
    "layers": _layers,
    "devices": _devices,
}

__all__ = ["SIZES", "Fit", "Size", "Tried", "fit"]
