"""A row as a simulator understands it: model, workload, strategy, hardware, software stack."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.validation.flops import parameters_of, seconds_of_rate
from autotune.validation.hardware import Hardware, hardware_of
from autotune.validation.rows import MeasuredRow, UnusableRowError
from autotune.validation.software import (
    Completion,
    Software,
    facts_of,
    software_of,
    unknown_software,
    values_of,
)
from autotune.validation.words import (
    Meaning,
    check_kind_of_run,
    meaning_of,
    numbers_unread,
    read_data,
    shards_of,
)
from distir.errors import DistirError
from distir.factoring import expert_factors
from distir.models.experts import Experts
from distir.models.layers import AttentionKind
from distir.models.transformer import TransformerConfig, llama_config
from distir.models.zoo import find_model
from distir.schedules import find_schedule
from distir.strategy import Strategy
from distir.workload import PRECISIONS

__all__ = ["Case", "Exclusion", "Measured", "ModelKey", "make_case", "without_copies"]

_UNITS = {"gib": 2.0**30, "mib": 2.0**20, "mb": 1e6}
"""Bytes of the units of memory other than gigabytes."""

MOST_LAYERS = 2000
MOST_ACTIONS = 1_000_000
"""Layers of a model, and stages times microbatches of a schedule: more are a slip in the file."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A row that cannot be used, and why. `reason` is one of few, `detail` particular to it."""

    row: MeasuredRow
    reason: str
    detail: str = ""


COPY = "it says what an earlier row says"
"""The reason for which a row that stands in a file twice counts once."""


def without_copies(rows: Iterable[MeasuredRow]) -> tuple[list[MeasuredRow], list[Exclusion]]:
    """The rows, and those that state in every column what an earlier one states: one run, written
    down twice, must not weigh as much as two."""
    first: dict[frozenset[tuple[str, str]], MeasuredRow] = {}
    copies: list[Exclusion] = []
    for row in rows:
        known = first.setdefault(frozenset(row.values.items()), row)
        if known is not row:
            copies.append(Exclusion(row, COPY, f"line {row.number} says what {known.number} says"))
    return list(first.values()), copies


@dataclass(frozen=True, slots=True)
class ModelKey:
    """All that a model is built from; rows with equal keys share it."""

    config: TransformerConfig
    attention: AttentionKind

    @property
    def parameters(self) -> int:
        """Trained numbers of the layers, the embedding and the head, without norms and biases."""
        return parameters_of(self.config)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a row measured. `counter` says what its memory counts; None: not measured."""

    seconds: float | None
    memory_bytes: float | None
    counter: str
    out_of_memory: bool


@dataclass(frozen=True, slots=True)
class Case:
    """A row that can be predicted."""

    row: MeasuredRow
    model: ModelKey
    batch_size: int
    sequence_length: int
    precision: str
    gradient_precision: str
    optimizer: str
    strategy: Strategy
    cuts: tuple[int, ...] | None
    """Blocks at which stages begin, as the software cuts; None: balanced by cost."""
    hardware: Hardware
    software: Software
    facts: Mapping[str, Any]
    """What the row itself says about the stack: fields of a `SoftwareStack`."""
    software_known: bool
    """Whether the row says which software it was measured with."""
    measured: Measured
    experts: int
    stated_spread: float
    """The source's own relative uncertainty of its times; 0 where it states none."""
    memory_stated: bool
    """Whether the row itself says what is recomputed and sharded, which decides whether it fits."""
    assumptions: tuple[str, ...]

    @property
    def dispatcher_known(self) -> bool:
        """Whether the row says how tokens are sent to experts."""
        return "sends_copies_once" in self.facts

    @property
    def stack_fields(self) -> Mapping[str, Any]:
        """Fields of the software's stack that the row states, or that are otherwise with its
        software."""
        return {**self.software.does, **self.facts}

    @property
    def nodes(self) -> int:
        """Innermost groups of devices."""
        return -(-self.strategy.devices // (self.hardware.cluster.levels[0].size or 1))

    @property
    def choice_group(self) -> tuple[object, ...]:
        """Rows that differ in how the work is distributed alone, and so compete."""
        return (
            self.row.group,
            self.hardware.cluster,
            self.strategy.devices,
            self.batch_size,
            self.sequence_length,
            self.row.count("vocab"),
            self._undistributed_model,
            self.precision,
            self.optimizer,
        )

    @property
    def _undistributed_model(self) -> ModelKey:
        """The model without what a strategy adds to it: `tp` pads the vocabulary, `ep` evens out
        the loads of experts."""
        experts = self.model.config.experts
        even = None if experts is None else replace(experts, imbalance=1.0)
        return replace(self.model, config=replace(self.model.config, vocabulary=1, experts=even))


def make_case(row: MeasuredRow, *, tells_software: bool = True) -> Case | Exclusion:
    """The row as a case, or why it is none. Without `tells_software` it is taken for a row that
    does not say which software it was measured with."""
    try:
        return _case(row, software_of(row) if tells_software else unknown_software(row))
    except UnusableRowError as unusable:
        return Exclusion(row, unusable.reason, unusable.detail)
    except DistirError as error:
        return Exclusion(row, "the configuration contradicts itself", str(error))


def _case(row: MeasuredRow, software: Software) -> Case:
    _check_kind(row)
    _check_measured(row)
    blanks = Completion(software, values_of(row))
    hardware = hardware_of(row)
    stated = _Stated(row, blanks)
    precision = _precision(stated)
    node = row.count("gpus_per_node") or hardware.cluster.levels[0].size or 1
    strategy = _strategy(row, stated, blanks, node)
    if strategy.offload and hardware.cluster.host is None:
        raise UnusableRowError("offload to a host that is not known")
    model = _model(row, stated, blanks, strategy)
    measured = _measured(row, model.config, strategy.recompute)
    for assumption in hardware.assumptions:
        blanks.note(assumption)
    if row.text("peak_memory_gb") and _memory_unit(row) is None and row.text("mem_unit"):
        blanks.note(f"peak_memory_gb is not compared: {row.text('mem_unit')!r} is not understood")
    facts = _facts(row, software, blanks)
    if row.count("num_experts") and "sends_copies_once" not in facts:
        blanks.note("token dispatcher = as in the stack: not stated")
    return Case(
        row=row,
        model=model,
        batch_size=row.needed("global_batch"),
        sequence_length=row.needed("seq_len"),
        precision=precision,
        gradient_precision=(
            blanks.value("bf16_gradients") if precision in ("bf16", "fp8") else "compute"
        ),
        optimizer=stated.value("optimizer", "optimizer"),
        strategy=strategy,
        cuts=_cuts(blanks, model.config.layers, strategy.stages),
        hardware=hardware,
        software=software,
        facts=facts,
        software_known=software.is_known,
        measured=measured,
        experts=row.count("num_experts") or 0,
        stated_spread=_stated_spread(row),
        memory_stated=bool(
            row.text("recompute") and (row.text("zero_stage") or strategy.dp * strategy.cp == 1)
        ),
        assumptions=tuple(blanks.used),
    )


def _facts(row: MeasuredRow, software: Software, blanks: Completion) -> dict[str, Any]:
    """What the row says about the stack; this is noted, and what its software does besides."""
    stated = facts_of(row)
    found = {fact.name: fact.value for fact in stated}
    reasons = {**software.because, **{fact.name: fact.because for fact in stated}}
    for name, value in {**software.does, **found}.items():
        blanks.note(f"{name} = {str(value).lower()}: {reasons[name]}")
    return found


def _check_kind(row: MeasuredRow) -> None:
    """Raises for runs that are no plain training step."""
    import re

    for rule in read_data("exclusions.toml")["rows"]:
        known = rule.get("but_models")
        if known is not None and re.search(known, row.text("model"), re.IGNORECASE):
            continue
        if re.search(rule["pattern"], row.text(rule["column"]), re.IGNORECASE):
            raise UnusableRowError(rule["reason"])
    check_kind_of_run(row, "flags")


def _stated_spread(row: MeasuredRow) -> float:
    """By which fraction the source says that times vary from run to run."""
    import re

    for rule in read_data("exclusions.toml")["doubts"]:
        found = re.search(rule["pattern"], row.text(rule["column"]), re.IGNORECASE)
        if found is not None:
            return int(found["percent"]) / 100
    return 0.0


def _check_measured(row: MeasuredRow) -> None:
    """Raises if the row has nothing to compare with."""
    columns = ("tokens_per_sec_per_gpu", "tflops_per_gpu", "peak_memory_gb", "flags")
    if row.measured_seconds is None and not any(row.text(column) for column in columns):
        raise UnusableRowError("nothing measured")


def _measured(row: MeasuredRow, config: TransformerConfig, recompute: str) -> Measured:
    """What was measured; raises if there is nothing to compare with."""
    flags = meaning_of(row, "flags")
    out_of_memory = bool(flags and flags.values.get("oom"))
    unit = _memory_unit(row)
    stated = row.number_of("peak_memory_gb")
    memory: float | None = None
    if stated is not None and unit is not None and not out_of_memory:
        scale = next((_UNITS[name] for name in _UNITS if name in unit.values), 1e9)
        memory = stated * scale
    seconds = None if out_of_memory else row.measured_seconds
    if seconds is None and not out_of_memory:
        seconds = _seconds_of_rate(row, config, recompute, needed=memory is None)
    if seconds is None and memory is None and not out_of_memory:
        raise UnusableRowError("nothing measured")
    counter = unit.values["counter"] if unit is not None and memory is not None else ""
    return Measured(seconds, memory, counter, out_of_memory)


def _seconds_of_rate(
    row: MeasuredRow, config: TransformerConfig, recompute: str, *, needed: bool
) -> float | None:
    """Seconds by the rate of FLOPs; where nobody knows what was counted there are none, unless the
    row has nothing else (`needed`)."""
    batch, length = row.needed("global_batch"), row.needed("seq_len")
    try:
        return seconds_of_rate(row, config, batch, length, recompute)
    except UnusableRowError:
        if needed:
            raise
        return None


def _memory_unit(row: MeasuredRow) -> Meaning | None:
    """What the figure of memory counts; where that is not understood, there is no such figure,
    unless the row has nothing else."""
    try:
        return meaning_of(row, "mem_unit")
    except UnusableRowError:
        if row.measured_seconds is None:
            raise
        return None


class _Stated:
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


def _precision(stated: _Stated) -> str:
    precision = stated.value("precision", "precision")
    if precision not in PRECISIONS:
        raise UnusableRowError(f"precision {precision} is not simulated")
    return precision


def _strategy(row: MeasuredRow, stated: _Stated, blanks: Completion, node: int) -> Strategy:
    devices, batch = row.needed("num_gpus"), row.needed("global_batch")
    tp, pp = row.needed("tp"), row.needed("pp")
    cp = row.count("cp") or 1
    dp = row.count("dp") or max(1, devices // (tp * pp * cp))
    if dp * tp * pp * cp != devices:
        raise UnusableRowError("the degrees do not multiply to num_gpus", f"{dp}·{tp}·{pp}·{cp}")
    micro = row.needed("micro_batch")
    if batch % (dp * micro):
        raise UnusableRowError("global_batch does not divide by dp · micro_batch")
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


def _sharding(row: MeasuredRow, stated: _Stated, blanks: Completion) -> Mapping[str, Any]:
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


def _recompute(stated: _Stated, blanks: Completion, stages: int) -> _Recompute:
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


def _schedule(row: MeasuredRow, stated: _Stated, blanks: Completion, pp: int) -> tuple[str, int]:
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


def _model(row: MeasuredRow, stated: _Stated, blanks: Completion, strategy: Strategy) -> ModelKey:
    tp = strategy.tp
    layers, hidden, heads = (row.needed(name) for name in ("num_layers", "hidden", "heads"))
    if layers > MOST_LAYERS:
        raise UnusableRowError(f"more than {MOST_LAYERS:,} layers", str(layers))
    gated = bool(stated.value("gated_mlp", "gated"))
    ffn = row.count("ffn_hidden")
    if ffn is None:
        if gated:
            raise UnusableRowError("ffn_hidden not stated")
        ffn = 4 * hidden
        blanks.note("ffn_hidden = 4 · hidden")
    multiple = int(blanks.value("pads_vocabulary")) * tp if tp > 1 else 1
    vocabulary = -(-int(blanks.value("vocab", row.count("vocab"))) // multiple) * multiple
    length = row.needed("seq_len")
    kv_heads = row.count("kv_heads") or heads
    attention: AttentionKind = blanks.value("attention")
    if gated:
        config = llama_config(
            "gated",
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            ffn=ffn,
            vocabulary=vocabulary,
            sequence_length=length,
        )
        return ModelKey(_with_experts(row, stated, blanks, config, strategy), attention)
    biases = bool(blanks.value("biases"))
    config = TransformerConfig(
        name="gpt",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocabulary=vocabulary,
        sequence_length=length,
        fused_qkv=kv_heads == heads,
        qkv_bias=biases,
        output_bias=biases,
        ffn_bias=biases,
        dropout=float(blanks.value("dropout")),
    )
    return ModelKey(_with_experts(row, stated, blanks, config, strategy), attention)


def _with_experts(
    row: MeasuredRow,
    stated: _Stated,
    blanks: Completion,
    config: TransformerConfig,
    strategy: Strategy,
) -> TransformerConfig:
    """The model with the experts that the row states, and with what is known of models by their
    names and has no column: widths of heads, latents, shared experts, dense layers."""
    count = row.count("num_experts")
    if not count:
        return config
    named = stated.meaning("model").values.get("zoo")
    known = find_model(named) if named is not None else None
    if not isinstance(known, TransformerConfig):
        known = replace(config, experts=Experts(count=count, top_k=1, ffn=config.ffn))
    elif row.count("kv_heads") is None and known.latent is None:
        raise UnusableRowError("kv_heads not stated")
    assert known.experts is not None
    own = replace(
        known.experts,
        count=count,
        top_k=row.needed("moe_topk"),
        ffn=row.needed("ffn_hidden"),
        imbalance=device_imbalance(float(blanks.value("imbalance")), count // strategy.ep),
    )
    return replace(
        known,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        vocabulary=config.vocabulary,
        sequence_length=config.sequence_length,
        experts=own,
    )


def device_imbalance(of_experts: float, experts: int) -> float:
    """Tokens of the fullest device over the mean where a device has so many experts, and the
    fullest expert has `of_experts` times the mean: loads of experts that are independent of each
    other even out with the square root of their number."""
    return 1.0 + (of_experts - 1.0) / math.sqrt(max(1, experts))


def _cuts(blanks: Completion, layers: int, stages: int) -> tuple[int, ...] | None:
    """Where the software cuts stages; None: balanced by cost."""
    even = stages == 1 or blanks.value("stages") == "even"
    return even_cuts(layers, stages) if even else None


def even_cuts(layers: int, stages: int) -> tuple[int, ...] | None:
    """Where stages begin among embedding, layers and head, as stacks cut: every stage has as many
    layers, or, where only that divides, embedding and head count as a layer each. None where
    neither divides."""
    if layers % stages == 0:
        each = layers // stages
        return tuple(1 + each * stage for stage in range(1, stages))
    if (layers + 2) % stages == 0:
        each = (layers + 2) // stages
        return tuple(each * stage for stage in range(1, stages))
    return None
