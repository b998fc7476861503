"""How a row distributes its model: degrees, schedule, sharding, recomputation, offloading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.validation.rows import MeasuredRow, UnusableRowError
from autotune.validation.software import Completion
from autotune.validation.words import Meaning, meaning_of, numbers_unread, read_data, shards_of
from distir.factoring import expert_factors
from distir.schedules import find_schedule
from distir.strategy import Strategy

__all__ = ["Stated", "strategy_of"]

MOST_ACTIONS = 1_000_000
"""Stages times microbatches of a schedule: more are a slip in the file."""


class Stated:
    """The meanings of a row's texts, blank ones completed by the software's defaults."""

    def __init__(self, row: MeasuredRow, blanks: Completion) -> None:
        self._row = row
        self._blanks = blanks

    def meaning(self, column: str) -> Meaning:
        """The meaning of the text; empty where the text is blank."""
        found = meaning_of(self._row, column)
        if found is None:
            return Meaning({})
        self._blanks.note(found.assumption)
        return found

    def value(self, column: str, name: str) -> Any:
        """The value that the text states for `name`, or the software's default."""
        return self._blanks.value(name, self.meaning(column).values.get(name))


def strategy_of(row: MeasuredRow, stated: Stated, blanks: Completion, node: int) -> Strategy:
    """How a row distributes its model, on nodes of so many devices. Raises `UnusableRowError` where
    it does not say, or contradicts itself."""
    devices, batch = row.needed("num_gpus"), row.needed("global_batch")
    tp, pp = row.needed("tp"), row.needed("pp")
    cp = row.count("cp") or 1
    dp = row.count("dp") or max(1, devices // (tp * pp * cp))
    if dp * tp * pp * cp != devices:
        raise UnusableRowError("the degrees do not multiply to num_gpus", f"{dp}·{tp}·{pp}·{cp}")
    micro = row.needed("micro_batch")
    if batch % (dp * micro):
        raise UnusableRowError("global_batch is not divisible by dp · micro_batch")
    schedule, chunks = _schedule(row, stated, blanks, pp)
    if batch // (dp * micro) * pp * chunks > MOST_ACTIONS:
        raise UnusableRowError("too many microbatches to schedule", f"{batch // (dp * micro):,}")
    sharding = _sharding(row, stated, blanks)
    recompute = _recompute(stated, blanks, pp * chunks)
    etp, order = _expert_layout(row, blanks, tp)
    zero = _zero(sharding, blanks, dp * cp, pp)
    return Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=_expert_degree(row, dp, cp, tp, etp, order),
        etp=etp,
        expert_order=order,
        microbatches=batch // (dp * micro),
        schedule=schedule,
        chunks=chunks,
        zero=zero,
        zero_degree=_zero_degree(sharding, dp * cp, max(1, node // tp)) if zero else 0,
        recompute=recompute.policy,
        recompute_layers=recompute.layers,
        recompute_every=recompute.every,
        keep_gathered="parameters" if zero == 3 and blanks.value("keeps_gathered") else "none",
        sequence_parallel=tp > 1 and bool(stated.value("sequence_parallel", "sequence_parallel")),
        offload=_offload(row),
    )


def _offload(row: MeasuredRow) -> str:
    """What rests on the host, as a strategy has it."""
    import re

    said = row.words(("flags", "notes", "zero_stage", "recompute", "optimizer"))
    for rule in read_data("exclusions.toml")["offload"]:
        if re.search(rule["pattern"], said, re.IGNORECASE):
            if "reason" in rule:
                raise UnusableRowError(rule["reason"])
            return str(rule["means"])
    return ""


def _sharding(row: MeasuredRow, stated: Stated, blanks: Completion) -> Mapping[str, Any]:
    """What is sharded, and among how many. A number that nobody reads is told."""
    text, found = row.text("zero_stage"), stated.meaning("zero_stage").values
    if not {"zero_degree", "zero_copies", "zero_copies_too", "within_node"} & found.keys():
        found = {**found, **shards_of(text)}
    for number in numbers_unread(text, found.values()):
        blanks.note(f"zero_stage: {number} is not read in {text!r}")
    return {"zero": 0} if found.get("zero_degree") == 1 else found


def _zero(sharding: Mapping[str, Any], blanks: Completion, replicas: int, pp: int) -> int:
    """What is sharded: with pipeline stages the optimizer's state alone, as with ZeRO 1, unless
    parameters are gathered again for every microbatch."""
    if replicas == 1:
        return 0
    stated = int(blanks.value("zero", sharding.get("zero")))
    return stated if stated < 2 or pp == 1 or blanks.value("gathers_again") else 1


def _zero_degree(sharding: Mapping[str, Any], replicas: int, neighbours: int) -> int:
    """Devices that share what ZeRO shards, as a strategy has it, where 0 is all replicas: as many
    as the row says, or those of a node (`neighbours`), or a part of the replicas for each of the
    optimizer instances that the row says."""
    stated = sharding.get("zero_degree")
    copies = sharding.get("zero_copies") or sharding.get("zero_copies_too")
    if sharding.get("within_node"):
        stated = neighbours
    elif copies:
        if replicas % copies:
            raise UnusableRowError("optimizer instances do not divide dp · cp", str(copies))
        stated = replicas // copies
    if stated is None or stated >= replicas:
        return 0
    if stated < 1 or replicas % stated:
        raise UnusableRowError("the shard group does not divide dp · cp", f"{stated}, {replicas}")
    return stated


def _expert_layout(row: MeasuredRow, blanks: Completion, tp: int) -> tuple[int, str]:
    """Devices of `tp` that split each expert, and which devices share experts."""
    if not row.count("num_experts"):
        return 0, "replicas"
    etp = int(blanks.value("etp", row.count("etp")))
    return (etp if tp > 1 else 0), str(blanks.value("expert_order"))


def _expert_degree(row: MeasuredRow, dp: int, cp: int, tp: int, etp: int, order: str) -> int:
    """Devices that share the experts."""
    if not row.count("num_experts"):
        return 1
    stated = row.needed("ep")
    if expert_factors(stated, dp, cp, tp, etp, order) is None:
        raise UnusableRowError("ep does not fit", f"ep {stated}, dp {dp}, cp {cp}, tp {tp}")
    return stated


@dataclass(frozen=True, slots=True)
class _Recompute:
    """What a strategy recomputes, and where."""

    policy: str
    layers: int = 0
    every: int = 1


def _recompute(stated: Stated, blanks: Completion, stages: int) -> _Recompute:
    """What is recomputed; how far full recomputation goes, and what is selected, is the
    software's."""
    meaning = stated.meaning("recompute").values
    found = str(blanks.value("recompute", meaning.get("recompute")))
    if found == "none":
        return _Recompute(found)
    policy = str(blanks.value(f"{found}_recompute"))
    layers = int(meaning.get("recompute_layers", 0))
    every = int(meaning.get("recompute_every", 1))
    some, of_all = meaning.get("some_layers"), meaning.get("all_layers")
    if some is None or some == of_all:
        return _Recompute(policy, layers, every)
    if some % stages:
        raise UnusableRowError("recomputation of some layers only", f"{some} on {stages} stages")
    return _Recompute(policy, some // stages) if some else _Recompute("none")


def _schedule(row: MeasuredRow, stated: Stated, blanks: Completion, pp: int) -> tuple[str, int]:
    """The pipeline schedule and the chunks per rank."""
    if pp == 1:
        return "1f1b", 1
    chunks = row.count("vpp")
    named = stated.meaning("schedule").values.get("schedule")
    if named is None and chunks is not None:
        named = "interleaved" if chunks > 1 else "1f1b"
    if named is None:
        named = blanks.value("schedule")
    if named == "interleaved":
        if chunks is None:
            raise UnusableRowError("chunks per pipeline rank not stated")
        return (named, chunks) if chunks > 1 else ("1f1b", 1)
    return str(named), find_schedule(named).default_chunks
