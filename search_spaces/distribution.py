"""The space of distributions of one workload over a number of devices.

To add a dimension: write its domain and add it to the list. A domain leaves out what would make the
same plan as another value (a schedule where there is no pipeline, ZeRO over one replica); a rule
says what makes no plan at all (`distir.rules`).

What decides the shapes that devices work on comes first, what only orders their work (schedule,
chunks) last: neighbours in the space share block programs, and a bound on the first few choices
rules out much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Protocol, cast

from distir.factoring import (
    EXPERT_ORDERS,
    ExpertFactors,
    divisors,
    expert_factors,
    microbatch_counts,
)
from distir.rules import Rule, WorkloadFacts, degrees_fill, rules_of
from distir.rules.memory import (
    keeping_is_for_training,
    kept_activations_are_gathered,
    kept_parameters_are_gathered,
    offload_is_for_training,
    zero_degree_holds_experts,
)
from distir.rules.splitting import ep_divides, etp_has_experts
from distir.rules.synchronising import (
    outer_steps_follow_others,
    replicas_have_experts_of_their_own,
    replicas_have_states_of_their_own,
    replicas_synchronise,
    synchronising_is_for_training,
)
from distir.schedules import SCHEDULES, find_schedule
from distir.strategy import (
    AUTO,
    CP_EXCHANGES,
    KEEP_GATHERED,
    OFFLOADS,
    OUTER_OPTIMIZERS,
    Strategy,
    format_lists,
    own_degree,
    parse_lists,
)
from search_spaces.named import (
    DEFAULTS,
    GENERATED,
    LONG_SEQUENCE,
    MICROBATCH_SIZE,
    Searched,
    SpaceError,
    SpaceSource,
    recomputations,
    searched,
)
from search_spaces.parameters import Dimension, Value
from search_spaces.placements import distinct_orders, orders
from search_spaces.space import SearchSpace

ONE_SCHEDULE = "1f1b"
"""The schedule that stands for all where they make the same plan (no pipeline, or forward only)."""


class GeneratesLists(Protocol):
    """What makes axis lists of a model's own axes; `distir.plan.axis_lists` does."""

    @property
    def can_split(self) -> bool:
        """Whether the model has anything to split but samples."""
        ...

    def generated(
        self, strategy: Strategy, users: Sequence[str], known: Sequence[Strategy] = ()
    ) -> Sequence[str]:
        """Lists of some degrees of a strategy, one per plan, without plans that are `known`."""
        ...


SYNC_EVERY = (1, 8, 64, 512)
"""Every how many steps replicas synchronise, where nobody says: up to what DiLoCo has, 500
(Douillard et al. 2023)."""

RECOMPUTE_EVERY = (1, 2, 4)
"""Values of `recompute_every` that are searched."""


def distribution_space(
    workload: WorkloadFacts,
    devices: int,
    space: SpaceSource | Searched = "small",
    lists: GeneratesLists | None = None,
    hardware: Sequence[Rule] = (),
) -> SearchSpace:
    """Every valid strategy that uses exactly `devices` devices, with the choices that `space`
    (a name in `SPACES`, a YAML file or what it says) lets vary. `lists` makes the axis lists of
    spaces that leave them to the model; `hardware` are rules of the devices at hand.

    Raises `SpaceError` for these if the model has nothing to split, and for lists of axes that the
    model does not have.
    """
    chosen = _for(workload, space if isinstance(space, Searched) else searched(space))
    rules = (degrees_fill(devices).of(workload), *hardware, *rules_of(workload))
    domains = _Domains(workload, devices, chosen)
    domains.check_axes()
    if domains.generates_lists:
        domains = replace(domains, lists=_able(lists))
    return SearchSpace(_dimensions(domains), rules)


def _able(lists: GeneratesLists | None) -> GeneratesLists:
    """The same, if it is there and there is anything to split."""
    if lists is None:
        raise SpaceError("axes: auto needs the axes of a model; expected `lists` made from them")
    if lists.can_split:
        return lists
    raise SpaceError(
        "axes: auto finds nothing to split: the model has no axis other than that of its samples; "
        "leave it out"
    )


def _for(workload: WorkloadFacts, chosen: Searched) -> Searched:
    """A space with what it says of long sequences decided for a workload."""
    longest = max(workload.sequence_lengths, default=0)
    long = workload.mode == "inference" or longest >= LONG_SEQUENCE
    values = {
        name: ("all" if long else "default") if allowed == "long" else allowed
        for name, allowed in chosen.values.items()
    }
    return replace(chosen, values=values)


def _dimensions(of: _Domains) -> list[Dimension]:
    # Lists that are generated depend on the mesh.
    stated, generated = Dimension("axes", of.axes), Dimension("axes", of.axes_of_mesh)
    return [
        *(() if of.generates_lists else (stated,)),
        _limited("tp", of.tp, of.chosen),
        _limited("cp", of.cp, of.chosen),
        Dimension("sequence_parallel", of.sequence_parallel),
        Dimension("cp_exchange", of.cp_exchange),
        _limited("pp", of.pp, of.chosen),
        _limited("dp", of.dp, of.chosen),
        _varying("expert_order", of.expert_order, of.chosen),
        _varying("etp", of.etp, of.chosen),
        _limited("ep", of.ep, of.chosen),
        *((generated,) if of.generates_lists else ()),
        Dimension("zero", of.zero),
        _varying("zero_degree", of.zero_degree, of.chosen),
        Dimension("recompute", of.recompute),
        _varying("recompute_every", of.recompute_every, of.chosen),
        _varying("recompute_layers", of.recompute_layers, of.chosen),
        _varying("keep_gathered", of.keep_gathered, of.chosen),
        _varying("offload", of.offload, of.chosen),
        _varying("sync_every", of.sync_every, of.chosen),
        _varying("outer_optimizer", of.outer_optimizer, of.chosen),
        _limited("microbatches", of.microbatches, of.chosen),
        Dimension("schedule", of.schedule),
        Dimension("chunks", of.chunks),
        _varying("placement", of.placement, of.chosen),
    ]


def _limited(name: str, domain: Callable[..., Sequence[Value]], chosen: Searched) -> Dimension:
    """A dimension with those of its values that are searched."""
    allowed = chosen.allowed(name)
    if allowed == "all":
        return Dimension(name, domain)
    only = (DEFAULTS[name],) if allowed == "default" else allowed
    return Dimension(name, domain).restricted(only)


def _varying(name: str, domain: Callable[..., Sequence[Value]], chosen: Searched) -> Dimension:
    """A dimension that reads no other choice unless it is searched."""
    if chosen.allowed(name) == "default":
        return Dimension(name, lambda: (DEFAULTS[name],), ())
    return Dimension(name, domain)


@dataclass(frozen=True, slots=True)
class _Domains:
    """Per dimension the values that make sense, given the choices that the method's parameters
    name."""

    workload: WorkloadFacts
    devices: int
    chosen: Searched
    lists: GeneratesLists | None = None

    @property
    def _training(self) -> bool:
        return self.workload.mode == "training"

    # --- axis lists -------------------------------------------------------------------------------

    def check_axes(self) -> None:
        """Raises `SpaceError` if a list names an axis that the model does not have: no strategy has
        it, and there would be no word of it."""
        for text in self.axes():
            lists = parse_lists(text)
            stated = {user: own for user, own in lists.items() if own != GENERATED}
            reason = self.workload.explain_lists(Strategy(axes=format_lists(stated)))
            if reason is not None:
                raise SpaceError(f"axes: {reason}")

    @property
    def generates_lists(self) -> bool:
        """Whether the model itself suggests axis lists."""
        return any(GENERATED in parse_lists(text).values() for text in self.axes())

    def axes_of_mesh(
        self,
        tp: int,
        cp: int,
        sequence_parallel: bool,
        cp_exchange: str,
        dp: int,
        expert_order: str,
        etp: int,
        ep: int,
    ) -> Sequence[Value]:
        """The lists that are stated or make a plan of their own; the usual ones come first."""
        texts = [str(text) for text in self.axes()]
        stated = [text for text in texts if GENERATED not in parse_lists(text).values()]
        stated = list(dict.fromkeys(["", *stated]))
        if sequence_parallel:  # with lists of its own, a strategy has the sequence there
            return stated
        mesh = Strategy(
            dp=dp, tp=tp, cp=cp, ep=ep, etp=etp, cp_exchange=cp_exchange, expert_order=expert_order
        )
        known = [
            made
            for text in stated
            for rests in self.sequence_parallel(tp)
            if not self._impossible(made := replace(mesh, axes=text, sequence_parallel=bool(rests)))
        ]
        found = dict.fromkeys(stated)
        assert self.lists is not None
        for text in texts:
            lists = parse_lists(text)
            users = [user for user, names in lists.items() if names == GENERATED]
            if users:
                start, alone = self._without(mesh, lists, users)
                if not self._impossible(alone):
                    found.update(dict.fromkeys(self.lists.generated(start, users, known)))
        return list(found)

    def _without(
        self, mesh: Strategy, lists: Mapping[str, Sequence[str]], users: Sequence[str]
    ) -> tuple[Strategy, Strategy]:
        """A strategy without the lists of `users`, and the same where these have no devices: what
        their usual lists split need not divide for other lists to do so."""
        own = [user for user in lists if own_degree(user)]
        stated = {
            user: () if user in users else names
            for user, names in lists.items()
            if user in own or user not in users
        }
        start = replace(mesh, axes=format_lists(stated))
        degrees = {user: 1 for user in users if user not in own}
        return start, replace(start, **cast("Any", degrees))

    def _impossible(self, strategy: Strategy) -> str | None:
        return self.workload.explain_lists(strategy)

    # --- degrees ----------------------------------------------------------------------------------

    def axes(self) -> Sequence[Value]:
        return self.chosen.values_of("axes", (DEFAULTS["axes"],))

    def tp(self) -> Sequence[Value]:
        return divisors(self.devices)

    def cp(self, tp: int) -> Sequence[Value]:
        return divisors(self.devices // tp)

    def sequence_parallel(self, tp: int) -> Sequence[Value]:
        if tp == 1 or not self.workload.sequence_lengths:
            return (False,)
        return self.chosen.values_of("sequence_parallel", (False, True))

    def cp_exchange(self, cp: int) -> Sequence[Value]:
        return self.chosen.values_of("cp_exchange", CP_EXCHANGES) if cp > 1 else ("gather",)

    def pp(self, tp: int, cp: int) -> Sequence[Value]:
        return divisors(self.devices // (tp * cp))

    def dp(self, tp: int, cp: int, pp: int) -> Sequence[Value]:
        return (self.devices // (tp * cp * pp),)

    def expert_order(self) -> Sequence[Value]:
        if not self.workload.expert_axes:
            return (DEFAULTS["expert_order"],)
        return self.chosen.values_of("expert_order", EXPERT_ORDERS)

    def etp(self, tp: int) -> Sequence[Value]:
        if not self.workload.expert_axes or tp == 1:
            return (0,)
        allowed = self.chosen.values_of("etp", (0, *divisors(tp)))
        return [each for each in allowed if tp % int(each or 1) == 0]

    def ep(self, dp: int, cp: int, tp: int, etp: int, expert_order: str) -> Sequence[Value]:
        if not self.workload.expert_axes:
            return (1,)
        ways = [(int(e), str(order)) for order in self.expert_order() for e in self.etp(tp)]
        earlier = ways[: ways.index((etp, expert_order))]

        def is_new(ep: int) -> bool:
            """Whether no way before this one to choose devices chooses the same ones."""
            known = {
                expert_factors(ep, dp, cp, tp, *way)
                for way in earlier
                if not etp_has_experts(ep, tp, way[0])
            }
            return expert_factors(ep, dp, cp, tp, etp, expert_order) not in known

        shared = [
            each
            for each in divisors(dp * cp * tp)
            if not ep_divides(self.workload, dp, cp, tp, each, etp, expert_order)
        ]
        return [each for each in shared if is_new(each)]

    def placement(
        self, tp: int, cp: int, pp: int, dp: int, ep: int, etp: int, expert_order: str
    ) -> Sequence[Value]:
        own = (expert_factors(ep, dp, cp, tp, etp, expert_order) or ExpertFactors()).dp
        degrees = {"tp": tp, "cp": cp, "pp": pp, "dp": dp // own, "ep": own}
        active = {name for name, degree in degrees.items() if degree > 1}
        return distinct_orders(active, self.chosen.values_of("placement", orders(active)))

    # --- memory -----------------------------------------------------------------------------------

    def zero(self, dp: int, cp: int) -> Sequence[Value]:
        if not self._training or dp * cp == 1:
            return (0,)
        return self.chosen.values_of("zero", range(4))

    def zero_degree(
        self, zero: int, dp: int, cp: int, tp: int, ep: int, etp: int, expert_order: str
    ) -> Sequence[Value]:
        suited = [0]
        if zero:
            parts = (part for part in divisors(dp) if 1 < part < dp)
            suited += [
                part
                for part in parts
                if not zero_degree_holds_experts(part, dp, cp, tp, ep, etp, expert_order)
            ]
        allowed = self.chosen.values_of("zero_degree", suited)
        return [part for part in allowed if part in suited] or (0,)

    def recompute(self) -> Sequence[Value]:
        if not self._training:
            return ("none",)
        return self.chosen.values_of("recompute", recomputations())

    def recompute_every(self, recompute: str) -> Sequence[Value]:
        if recompute in ("none", AUTO):
            return (1,)
        some = [n for n in RECOMPUTE_EVERY if n < self.workload.num_layers or n == 1]
        return self.chosen.values_of("recompute_every", some)

    def recompute_layers(self, recompute: str, recompute_every: int, pp: int) -> Sequence[Value]:
        if recompute in ("none", AUTO):
            return (0,)
        # As many as a rank has are all of them, which is 0.
        most = -(-self.workload.num_layers // pp)
        some = (0, *(1 << n for n in range(most.bit_length()) if 1 << n < most))
        allowed = self.chosen.values_of("recompute_layers", some)
        return [each for each in allowed if not each or recompute_every == 1]

    def keep_gathered(self, zero: int, sequence_parallel: bool) -> Sequence[Value]:
        def is_gathered(kept: str) -> bool:
            return not (
                keeping_is_for_training(self.workload, kept)
                or kept_parameters_are_gathered(zero, kept)
                or kept_activations_are_gathered(sequence_parallel, kept)
            )

        wanted = self.chosen.values_of("keep_gathered", KEEP_GATHERED)
        return [each for each in wanted if is_gathered(str(each))] or ("none",)

    def offload(self) -> Sequence[Value]:
        wanted = self.chosen.values_of("offload", offloadings())
        suited = [each for each in wanted if not offload_is_for_training(self.workload, str(each))]
        return suited or ("",)

    def sync_every(
        self,
        dp: int,
        cp: int,
        tp: int,
        ep: int,
        etp: int,
        expert_order: str,
        zero: int,
    ) -> Sequence[Value]:
        def suits(every: int) -> bool:
            return not (
                synchronising_is_for_training(self.workload, every)
                or replicas_synchronise(every, dp)
                or replicas_have_states_of_their_own(every, zero)
                or replicas_have_experts_of_their_own(every, dp, cp, tp, ep, etp, expert_order)
            )

        wanted = self.chosen.values_of("sync_every", SYNC_EVERY)
        return [each for each in wanted if suits(int(each))] or (1,)

    def outer_optimizer(self, sync_every: int) -> Sequence[Value]:
        wanted = self.chosen.values_of("outer_optimizer", OUTER_OPTIMIZERS)
        return [
            each for each in wanted if not outer_steps_follow_others(str(each), sync_every)
        ] or OUTER_OPTIMIZERS[:1]

    # --- pipeline ---------------------------------------------------------------------------------

    def microbatches(self, dp: int) -> Sequence[Value]:
        share = self.workload.batch_size // dp
        sizes = self.chosen.allowed(MICROBATCH_SIZE)
        counts = microbatch_counts(share)
        return [n for n in counts if not isinstance(sizes, tuple) or share // n in sizes]

    def schedule(self, pp: int, microbatches: int) -> Sequence[Value]:
        if not self._training or pp == 1:
            return (ONE_SCHEDULE,)
        schedules = self.chosen.values_of("schedule", SCHEDULES.names())
        if microbatches > 1 or ONE_SCHEDULE not in schedules:
            return schedules
        return [each for each in schedules if not _sends_one_round(str(each))]

    def chunks(self, pp: int, schedule: str) -> Sequence[Value]:
        if not self._training or pp == 1:
            return (1,)
        family = find_schedule(schedule)
        if family.placement == "stated" or family.least_chunks == family.most_chunks:
            return (family.default_chunks,)
        if self.chosen.allowed("chunks") == "default":
            return (family.default_chunks,)
        shares = divisors(-(-self.workload.num_layers // pp))
        every = sorted({family.default_chunks, *shares} - set(range(family.least_chunks)))
        return self.chosen.values_of("chunks", every)


def offloadings() -> tuple[str, ...]:
    """Every choice of what rests on the host, the least first."""
    some = (combinations(OFFLOADS, count) for count in range(len(OFFLOADS) + 1))
    return tuple(",".join(names) for each in some for names in each)


def _sends_one_round(schedule: str) -> bool:
    """Whether a single microbatch goes forward through all stages and back, as in any other such
    schedule.
    """
    family = find_schedule(schedule)
    return schedule != ONE_SCHEDULE and not family.splits_backward and family.placement != "stated"


__all__ = ["ONE_SCHEDULE", "RECOMPUTE_EVERY", "distribution_space"]
