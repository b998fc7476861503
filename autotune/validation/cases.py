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
from autotune.validation.strategies import Stated, strategy_of
from autotune.validation.words import (
    Meaning,
    check_kind_of_run,
    meaning_of,
    read_data,
)
from distir.errors import DistirError
from distir.models.experts import Experts
from distir.models.layers import AttentionKind
from distir.models.transformer import TransformerConfig, llama_config
from distir.models.zoo import find_model
from distir.strategy import Strategy
from distir.workload import PRECISIONS

__all__ = ["Case", "Exclusion", "Measured", "ModelKey", "make_case", "without_copies"]

_UNITS = {"gib": 2.0**30, "mib": 2.0**20, "mb": 1e6}
"""Bytes of the units of memory other than gigabytes."""

MOST_LAYERS = 2000
"""Layers of a model: more are a slip in the file."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A row that cannot be used, and why. `reason` is one of few, `detail` particular to it."""

    row: MeasuredRow
    reason: str
    detail: str = ""


COPY = "it repeats an earlier row"
"""The reason for which a row that stands in a file twice counts once."""


def without_copies(rows: Iterable[MeasuredRow]) -> tuple[list[MeasuredRow], list[Exclusion]]:
    """The rows, and those that state in every column what an earlier one states: one run, written
    down twice, must not weigh as much as two."""
    first: dict[frozenset[tuple[str, str]], MeasuredRow] = {}
    copies: list[Exclusion] = []
    for row in rows:
        known = first.setdefault(frozenset(row.values.items()), row)
        if known is not row:
            copies.append(Exclusion(row, COPY, f"line {row.number} repeats line {known.number}"))
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
    stated = Stated(row, blanks)
    precision = _precision(stated, blanks)
    node = row.count("gpus_per_node") or hardware.cluster.levels[0].size or 1
    strategy = strategy_of(row, stated, blanks, node)
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


def _precision(stated: Stated, blanks: Completion) -> str:
    precision = stated.value("precision", "precision")
    if precision == "bf16" and blanks.value("bf16_optimizer") == "bf16":
        return "pure-bf16"
    if precision not in PRECISIONS:
        raise UnusableRowError(f"precision {precision} is not simulated")
    return precision


def _model(row: MeasuredRow, stated: Stated, blanks: Completion, strategy: Strategy) -> ModelKey:
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
    stated: Stated,
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
