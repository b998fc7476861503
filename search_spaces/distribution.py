"""The space of distributions of one workload over a number of devices.

To add a dimension: declare it, add it to the list, and add the constraints that rule its wrong
combinations out. A domain leaves out what would make the same plan as another value (a schedule
where there is no pipeline, ZeRO over one replica); a constraint says what makes no plan at all.

What decides the shapes that devices work on comes first, what only orders their work (schedule,
chunks) last: neighbours in the space share block programs, and a bound on the first few choices
rules out much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import permutations
from typing import Protocol

from distir.errors import DistirError, UnknownNameError
from distir.factoring import expert_factors, expert_refusal, refusal
from distir.schedules import SCHEDULES, ScheduleFamily, find_schedule
from distir.strategy import (
    CP_EXCHANGES,
    KEEP_GATHERED,
    MOST_MICROBATCHES,
    PLACEMENT,
    Strategy,
    parse_lists,
)
from search_spaces.arithmetic import divisors, listed
from search_spaces.constraints import Constraint
from search_spaces.named import (
    DEFAULTS,
    Allowed,
    Searched,
    SpaceSource,
    recomputations,
    searched,
)
from search_spaces.parameters import Dimension, Value
from search_spaces.space import SearchSpace

ONE_SCHEDULE = "1f1b"
"""The schedule that stands for all where they make the same plan (no pipeline, or forward only)."""


RECOMPUTE_EVERY = (1, 2, 4)
"""Values of `recompute_every` that are searched."""


class WorkloadFacts(Protocol):
    """What the space needs to know about a workload; `distir.Workload` provides it."""

    @property
    def mode(self) -> str:
        """`training` or `inference`."""
        ...

    @property
    def batch_size(self) -> int:
        """Samples per step, over all devices."""
        ...

    @property
    def sequence_lengths(self) -> Sequence[int]:
        """Sizes of the axes that run along a sequence; none where there is nothing to split."""
        ...

    @property
    def num_blocks(self) -> int:
        """The most stages that the model can be cut into."""
        ...

    @property
    def num_layers(self) -> int:
        """Blocks that repeat, which pipelines like to share evenly."""
        ...

    @property
    def internal_axes(self) -> Sequence[tuple[str, int]]:
        """Label and size of every axis that tensor parallelism must divide."""
        ...

    @property
    def expert_axes(self) -> Sequence[tuple[str, int]]:
        """Label and size of every axis of experts; none where the model is no mixture."""
        ...

    @property
    def inner_axes(self) -> Mapping[str, int]:
        """By label of an internal axis: size of the axis inside it that tensor parallelism can
        split too."""
        ...

    def explain_lists(self, strategy: Strategy) -> str | None:
        """Why axis lists that a strategy asks for do not fit the model, or `None`."""
        ...


def distribution_space(
    workload: WorkloadFacts, devices: int, space: SpaceSource | Searched = "small"
) -> SearchSpace:
    """Every valid strategy that uses exactly `devices` devices, with the choices that `space`
    (a name in `SPACES`, a YAML file or what it says) lets vary.
    """
    chosen = space if isinstance(space, Searched) else searched(space)
    return SearchSpace(_dimensions(workload, devices, chosen), _constraints(workload, devices))


def _dimensions(workload: WorkloadFacts, devices: int, chosen: Searched) -> list[Dimension]:
    training, batch = workload.mode == "training", workload.batch_size
    flags = chosen.values_of("sequence_parallel", (False, True))
    levels = chosen.values_of("zero", range(4))
    policies = chosen.values_of("recompute", recomputations())
    every = [entry.name for entry in SCHEDULES]
    schedules = chosen.values_of("schedule", every)

    def axes() -> Sequence[Value]:
        return chosen.values_of("axes", (DEFAULTS["axes"],))

    def tp() -> Sequence[Value]:
        return divisors(devices)

    def cp(tp: int) -> Sequence[Value]:
        return divisors(devices // tp)

    def sequence_parallel(tp: int) -> Sequence[Value]:
        return flags if tp > 1 and workload.sequence_lengths else (False,)

    def cp_exchange(cp: int) -> Sequence[Value]:
        return chosen.values_of("cp_exchange", CP_EXCHANGES) if cp > 1 else ("gather",)

    def pp(tp: int, cp: int) -> Sequence[Value]:
        return divisors(devices // (tp * cp))

    def dp(tp: int, cp: int, pp: int) -> Sequence[Value]:
        return (devices // (tp * cp * pp),)

    def ep(dp: int, cp: int, tp: int) -> Sequence[Value]:
        sizes = [size for _, size in workload.expert_axes]
        shared = divisors(math.gcd(dp * cp * tp, *sizes)) if sizes else [1]
        return [each for each in shared if expert_factors(each, dp, cp, tp)]

    def zero(dp: int, cp: int) -> Sequence[Value]:
        return levels if training and dp * cp > 1 else (0,)

    def zero_degree(zero: int, dp: int, cp: int, tp: int, ep: int) -> Sequence[Value]:
        own = _replicas_sharing(ep, dp, cp, tp)
        parts = [n for n in divisors(dp) if 1 < n < dp and n % own == 0] if zero else []
        allowed = chosen.values_of("zero_degree", (0, *parts))
        return [part for part in allowed if part in (0, *parts)] or (0,)

    def recompute() -> Sequence[Value]:
        return policies if training else ("none",)

    def recompute_every(recompute: str) -> Sequence[Value]:
        if recompute == "none":
            return (1,)
        some = [n for n in RECOMPUTE_EVERY if n < workload.num_layers or n == 1]
        return chosen.values_of("recompute_every", some)

    def keep_gathered(zero: int, sequence_parallel: bool) -> Sequence[Value]:
        able = {"none"} if training else set[str]()
        able |= {"parameters"} if zero == 3 else set[str]()
        able |= {"activations"} if training and sequence_parallel else set[str]()
        able |= {"all"} if len(able) == 3 else set[str]()
        suited = [each for each in KEEP_GATHERED if each in able]
        wanted = chosen.values_of("keep_gathered", suited)
        return [each for each in wanted if each in able] or ("none",)

    def microbatches(dp: int) -> Sequence[Value]:
        return [pieces for pieces in divisors(batch // dp) if pieces <= MOST_MICROBATCHES]

    def schedule(pp: int, microbatches: int) -> Sequence[Value]:
        if not training or pp == 1:
            return (ONE_SCHEDULE,)
        if microbatches > 1 or ONE_SCHEDULE not in schedules:
            return schedules
        return [each for each in schedules if not _sends_one_round(str(each))]

    def chunks(pp: int, schedule: str) -> Sequence[Value]:
        if not training or pp == 1:
            return (1,)
        family = find_schedule(schedule)
        if family.placement == "stated" or family.least_chunks == family.most_chunks:
            return (family.default_chunks,)
        if chosen.allowed("chunks") == "default":
            return (family.default_chunks,)
        shares = divisors(-(-workload.num_layers // pp))
        every = sorted({family.default_chunks, *shares} - set(range(family.least_chunks)))
        return chosen.values_of("chunks", every)

    def placement(tp: int, cp: int, pp: int, dp: int, ep: int) -> Sequence[Value]:
        own = _replicas_sharing(ep, dp, cp, tp)
        degrees = {"tp": tp, "cp": cp, "pp": pp, "dp": dp // own, "ep": own}
        active = {name for name, degree in degrees.items() if degree > 1}
        return distinct_orders(active, chosen.values_of("placement", orders(active)))

    degrees = [Dimension("tp", tp), Dimension("cp", cp), Dimension("pp", pp), Dimension("dp", dp)]
    pieces = Dimension("microbatches", microbatches)
    limited = {each.name: _limited(each, chosen.allowed(each.name)) for each in (*degrees, pieces)}
    return [
        Dimension("axes", axes),
        limited["tp"],
        limited["cp"],
        Dimension("sequence_parallel", sequence_parallel),
        Dimension("cp_exchange", cp_exchange),
        limited["pp"],
        limited["dp"],
        _limited(Dimension("ep", ep), chosen.allowed("ep")),
        Dimension("zero", zero),
        _varying("zero_degree", zero_degree, chosen),
        Dimension("recompute", recompute),
        _varying("recompute_every", recompute_every, chosen),
        _varying("keep_gathered", keep_gathered, chosen),
        limited["microbatches"],
        Dimension("schedule", schedule),
        Dimension("chunks", chunks),
        _varying("placement", placement, chosen),
    ]


def _replicas_sharing(ep: int, dp: int, cp: int, tp: int) -> int:
    """How many replicas share experts, where `ep` fits."""
    factors = expert_factors(ep, dp, cp, tp)
    return 1 if factors is None else factors.dp


def _varying(name: str, domain: Callable[..., Sequence[Value]], chosen: Searched) -> Dimension:
    """A dimension that reads no other choice unless it is searched."""
    if chosen.allowed(name) == "default":
        return Dimension(name, lambda: (DEFAULTS[name],), ())
    return Dimension(name, domain)


def orders(active: Collection[str]) -> list[str]:
    """Every order in which degrees can be laid on the devices, the usual one first; degrees of 1
    (not `active`) stand where they stand in it."""
    usual = [name for name in PLACEMENT.split("-") if name in active]
    found: list[str] = []
    for order in permutations(usual):
        left = iter(order)
        names = (next(left) if name in active else name for name in PLACEMENT.split("-"))
        found.append("-".join(names))
    return found


def distinct_orders(active: Collection[str], placements: Iterable[Value]) -> list[Value]:
    """The first of all placements that lay the active degrees in the same order."""
    found: dict[tuple[str, ...], Value] = {}
    for placement in placements:
        order = tuple(name for name in str(placement).split("-") if name in active)
        found.setdefault(order, placement)
    return list(found.values())


def _limited(dimension: Dimension, allowed: Allowed) -> Dimension:
    if allowed == "all":
        return dimension
    return dimension.restricted((DEFAULTS[dimension.name],) if allowed == "default" else allowed)


def _sends_one_round(schedule: str) -> bool:
    """Whether a single microbatch goes forward through all stages and back, as in any other such
    schedule.
    """
    family = find_schedule(schedule)
    return schedule != ONE_SCHEDULE and not family.splits_backward and family.placement != "stated"


def _constraints(workload: WorkloadFacts, devices: int) -> list[Constraint]:
    batch, training = workload.batch_size, workload.mode == "training"
    families: dict[str, ScheduleFamily | str] = {}

    def degrees_fill_devices(dp: int, tp: int, cp: int, pp: int) -> str | None:
        if dp * tp * cp * pp == devices:
            return None
        degrees = {"dp": dp, "tp": tp, **({"cp": cp} if cp > 1 else {}), "pp": pp}
        advice = _single_change(degrees, devices, workload)
        return f"{_product(degrees)}, but there are {devices} devices; {advice}"

    def tp_divides_internal_axes(axes: str, tp: int) -> str | None:
        if "tp" in parse_lists(axes):
            return None
        return refusal(workload.internal_axes, workload.inner_axes, tp)

    def sequence_parallel_needs_tp(tp: int, sequence_parallel: bool) -> str | None:
        if not sequence_parallel or tp > 1:
            return None
        return "sequence_parallel needs tp > 1: it rests the sequence on the devices of tp"

    def sequence_divides(axes: str, tp: int, cp: int, sequence_parallel: bool) -> str | None:
        if "cp" in parse_lists(axes):
            return None
        shares = {"cp": cp} if cp > 1 else {}
        shares |= {"tp": tp} if sequence_parallel else {}
        if not shares:
            return None
        lengths, pieces = workload.sequence_lengths, math.prod(shares.values())
        why = " with sequence_parallel" if sequence_parallel else ""
        if not lengths:
            return f"{_product(shares)}{why} splits the sequence, but the model has no sequence"
        length = next((each for each in lengths if each % pieces), None)
        if length is None:
            return None
        suited = listed(divisors(math.gcd(*lengths)))
        return f"the sequence ({length}) does not divide by {_product(shares)}{why}; {suited} do"

    def ep_divides_experts_and_devices(dp: int, cp: int, tp: int, ep: int) -> str | None:
        return expert_refusal(ep, (dp, cp, tp), workload.expert_axes)

    def exchange_fits(
        axes: str, tp: int, cp: int, dp: int, ep: int, sequence_parallel: bool, cp_exchange: str
    ) -> str | None:
        # Apart from `lists_fit`: without lists of its own, a strategy cuts its batch as any other.
        if axes or cp_exchange == "gather":
            return None
        return workload.explain_lists(
            Strategy(
                tp=tp,
                cp=cp,
                dp=dp,
                ep=ep,
                sequence_parallel=sequence_parallel,
                cp_exchange=cp_exchange,
            )
        )

    def lists_fit(
        axes: str,
        tp: int,
        cp: int,
        dp: int,
        ep: int,
        sequence_parallel: bool,
        cp_exchange: str,
        microbatches: int,
    ) -> str | None:
        if not axes:
            return None
        return workload.explain_lists(
            Strategy(
                axes=axes,
                tp=tp,
                cp=cp,
                dp=dp,
                ep=ep,
                sequence_parallel=sequence_parallel,
                cp_exchange=cp_exchange,
                microbatches=microbatches,
            )
        )

    def every_stage_has_a_block(pp: int, chunks: int) -> str | None:
        most, stages = workload.num_blocks, pp * chunks
        if stages <= most:
            return None
        asked = f"pp = {pp}" if chunks == 1 else f"pp x chunks = {pp} x {chunks}"
        advice = f"at most {most // chunks} would do"
        if most < chunks:
            advice = f"at most {most} stages would do"
        elif chunks > 1:
            advice = f"pp = {most // chunks} at most would do"
            advice += f", or chunks = {most // pp}" if most >= pp else ""
        return f"{asked} asks for {stages} stages, but the model has {most} blocks; {advice}"

    def schedule_exists(pp: int, schedule: str, chunks: int, microbatches: int) -> str | None:
        if not training:
            return None
        family = families.get(schedule)
        if family is None:
            family = families[schedule] = _family(schedule)
        return family if isinstance(family, str) else family.requires(pp, chunks, microbatches)

    def dp_divides_batch(dp: int) -> str | None:
        return _divides(f"the batch ({batch})", batch, "dp", dp)

    def microbatches_divide_share(dp: int, microbatches: int) -> str | None:
        share = batch // dp
        return _divides(
            f"each replica's share of the batch ({batch} / {dp} = {share})",
            share,
            "microbatches",
            microbatches,
            most=MOST_MICROBATCHES,
        )

    def recompute_is_known(recompute: str) -> str | None:
        if recompute not in recomputations():
            return str(UnknownNameError("recomputation", str(recompute), recomputations()))
        if training or recompute == "none":
            return None
        return f"recompute = {recompute}, but inference has no backward pass; none would do"

    def zero_is_for_training(zero: int) -> str | None:
        if training or not zero:
            return None
        return f"zero = {zero} shards what training keeps; inference has zero = 0"

    def recompute_every_recomputes(recompute: str, recompute_every: int) -> str | None:
        if recompute_every == 1 or recompute != "none":
            return None
        return f"recompute_every = {recompute_every}, but recompute is none; 1 would do"

    def something_is_gathered(zero: int, sequence_parallel: bool, keep_gathered: str) -> str | None:
        kept = f"keep_gathered = {keep_gathered}"
        if keep_gathered != "none" and not training:
            return f"{kept} is for a backward pass; inference has none; none would do"
        if keep_gathered in ("parameters", "all") and zero != 3:
            return f"{kept} keeps the parameters that zero = 3 gathers; zero is {zero}"
        if keep_gathered in ("activations", "all") and not sequence_parallel:
            return f"{kept} keeps the activations that sequence_parallel gathers, which is off"
        return None

    def zero_degree_divides_dp(
        zero: int, zero_degree: int, dp: int, cp: int, tp: int, ep: int
    ) -> str | None:
        if not zero_degree:
            return None
        if not zero:
            return "zero_degree says how far zero shards; it needs zero = 1, 2 or 3"
        if zero_degree % _replicas_sharing(ep, dp, cp, tp):
            return f"zero_degree = {zero_degree} does not divide by ep = {ep}"
        return _divides("dp", dp, "zero_degree", zero_degree)

    return [
        Constraint("the degrees multiply to the devices", degrees_fill_devices),
        Constraint("tp divides every internal axis", tp_divides_internal_axes),
        Constraint("sequence parallelism needs tp", sequence_parallel_needs_tp),
        Constraint("the sequence divides", sequence_divides),
        Constraint("ep divides experts and devices", ep_divides_experts_and_devices),
        Constraint("the exchange of keys fits", exchange_fits),
        Constraint("the axis lists fit", lists_fit),
        Constraint("every stage has a block", every_stage_has_a_block),
        Constraint("dp divides the batch", dp_divides_batch),
        Constraint("microbatches divide a replica's share", microbatches_divide_share),
        Constraint("the schedule exists for these numbers", schedule_exists),
        Constraint("the recomputation is known", recompute_is_known),
        Constraint("ZeRO is for training", zero_is_for_training),
        Constraint("every n-th block recomputes something", recompute_every_recomputes),
        Constraint("what is kept is gathered", something_is_gathered),
        Constraint("a part of dp shards", zero_degree_divides_dp),
    ]


def _family(schedule: str) -> ScheduleFamily | str:
    """The schedule called so, or why there is none."""
    try:
        return find_schedule(schedule)
    except DistirError as error:
        return str(error)


def _divides(what: str, size: int, name: str, degree: int, most: int | None = None) -> str | None:
    if size % degree == 0:
        return None
    fitting = [each for each in divisors(size) if most is None or each <= most]
    return f"{what} does not divide by {name} = {degree}; {listed(fitting)} do"


def _product(degrees: Mapping[str, int]) -> str:
    """`dp x tp = 2 x 4 = 8`."""
    values = " x ".join(str(degree) for degree in degrees.values())
    product = f" = {math.prod(degrees.values())}" if len(degrees) > 1 else ""
    return f"{' x '.join(degrees)} = {values}{product}"


def _splits_axes(name: str, degree: int, workload: WorkloadFacts) -> bool:
    """Whether the model's axes can be split so many ways; only tp splits them."""
    fits = refusal(workload.internal_axes, workload.inner_axes, degree) is None
    return name != "tp" or fits


def _single_change(degrees: Mapping[str, int], devices: int, workload: WorkloadFacts) -> str:
    """Which degree, changed alone, would make the product right."""
    product = math.prod(degrees.values())
    fitting = [
        f"{name} = {devices * degree // product}"
        for name, degree in degrees.items()
        if devices * degree % product == 0
        and _splits_axes(name, devices * degree // product, workload)
    ]
    if not fitting:
        return f"degrees that divide {devices} are {listed(divisors(devices))}"
    return f"{' or '.join(fitting)} would do"
