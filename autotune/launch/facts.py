"""What a launch states, as facts: flat names with plain values, for any framework.

    dp, tp, pp, …                  the fields of a `Strategy`
    devices, micro_batch, cuts     what follows from it: see `LAUNCH_FACTS`
    batch_size, precision, …       the workload
    model.hidden, …                the sizes and choices of a transformer

A target's table turns facts into options and options into facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.launch.nodes import launched_size
from distir.ir.types import DType
from distir.models.experts import Experts
from distir.models.latent import Latent
from distir.models.transformer import TransformerConfig
from distir.strategy import Strategy

if TYPE_CHECKING:
    from autotune.problem import Problem
    from distir.cost import Cluster
    from distir.ir import Value
    from distir.plan import Plan

Facts: TypeAlias = Mapping[str, Any]
"""What a launch states, by the names of this file."""

MODEL = "model."
"""The beginning of the names of facts about a model."""

SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "experts.count")
"""Facts about a model by which two are told to be others."""

STRATEGY_FACTS = tuple(each.name for each in fields(Strategy))
"""Facts that make a strategy."""

LAUNCH_FACTS = ("devices", "micro_batch", "cuts")
"""Facts that follow from a strategy and its plan: the product of its degrees, the samples of a
microbatch on one replica, and the layers of every pipeline stage (see `Cuts`), None where the
framework may cut as it does by default."""

WORKLOAD_FACTS = (
    "batch_size",
    "sequence_length",
    "precision",
    "gradient_precision",
    "optimizer",
    "mode",
    "vocabulary_multiple",
)
"""Facts that make a workload, beside those of its model."""

_NOT_FACTS = ("name", "notes", "experts", "latent", "sequence_length")


@dataclass(frozen=True, slots=True)
class Cuts:
    """How the layers of a model lie on pipeline stages: per stage, in order, the number of layers.
    The first stage has the embedding too, the last one the head; alone if their number is 0."""

    layers: tuple[int, ...]

    @property
    def even(self) -> bool:
        """Whether all stages have the same number of layers."""
        return len(set(self.layers)) == 1


def model_facts(config: TransformerConfig) -> dict[str, Any]:
    """The facts of a model. Sizes that a configuration may leave to others are stated."""
    whole = replace(
        config,
        kv_heads=config.num_kv_heads,
        head_dim=config.depth,
        ffn=config.ffn_width,
        attention_dropout=config.dropout
        if config.attention_dropout is None
        else config.attention_dropout,
    )
    found = {f"{MODEL}{name}": getattr(whole, name) for name in _own(TransformerConfig)}
    found[f"{MODEL}positions"] = config.sequence_length
    for part, value in (("experts", config.experts), ("latent", config.latent)):
        if value is not None:
            found |= {f"{MODEL}{part}.{e.name}": getattr(value, e.name) for e in fields(value)}
    return found


def model_of(facts: Facts, name: str) -> TransformerConfig:
    """The model that facts describe: the inverse of `model_facts`, but for what they leave out."""
    own = {n: facts[MODEL + n] for n in _own(TransformerConfig) if MODEL + n in facts}
    own.setdefault("fused_qkv", own.get("kv_heads", 0) in (0, own["heads"]))
    parts: dict[str, Any] = {
        part: made(**_of_part(facts, part))
        for part, made in (("experts", Experts), ("latent", Latent))
        if _of_part(facts, part)
    }
    return TransformerConfig(name=name, sequence_length=facts[f"{MODEL}positions"], **own, **parts)


def facts_given(model: Any) -> dict[str, Any]:
    """The facts of a model that a user names; nothing for one that is no known transformer, such as
    an ONNX file, which is not read for that."""
    from distir.importers.load import load_source, names_onnx_file

    if names_onnx_file(model):
        return {}
    config = load_source(model).config
    return model_facts(config) if isinstance(config, TransformerConfig) else {}


def _own(config: type[TransformerConfig]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(config) if each.name not in _NOT_FACTS)


def _of_part(facts: Facts, part: str) -> dict[str, Any]:
    start = f"{MODEL}{part}."
    return {
        name.removeprefix(start): value for name, value in facts.items() if name.startswith(start)
    }


def strategy_of(facts: Facts) -> Strategy:
    """The strategy that facts state."""
    return Strategy.from_dict({name: facts[name] for name in STRATEGY_FACTS if name in facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is launched: a plan of a problem, as facts, on a cluster."""

    facts: Facts
    strategy: Strategy
    plan: Plan
    cluster: Cluster
    title: str
    """The problem in one line."""
    attention: str | None = None
    """How the problem says that attention is computed, if it does."""

    @property
    def nodes(self) -> tuple[int, int]:
        """Nodes, and devices of each. All have as many, as launchers expect."""
        each = launched_size(self.cluster, self.plan.grid)
        return self.strategy.devices // each, each


def launch_of(problem: Problem, strategy: Strategy, plan: Plan) -> Launch:
    """The launch of a problem's strategy, whose plan the simulator has made."""
    simulator: Any = problem.simulator
    workload = simulator.workload
    config = workload.model.config
    facts: dict[str, Any] = {
        **strategy.to_dict(),
        "devices": strategy.devices,
        "micro_batch": problem.batch_size // (strategy.dp * strategy.microbatches),
        "batch_size": problem.batch_size,
        "sequence_length": workload.length,
        "precision": workload.precision,
        "gradient_precision": workload.gradient_precision,
        "optimizer": workload.optimizer,
        "mode": workload.mode,
        "vocabulary_multiple": workload.vocabulary_multiple,
        "zoo": zoo_name(config),
        "compiled": simulator.cost.stack.dispatch == "compiled",
        "dropout": workload.dropout,
        "reads": read_by(workload.model.function.inputs),
    }
    if isinstance(config, TransformerConfig):
        if not workload.dropout:
            config = replace(config, dropout=0.0, attention_dropout=0.0, inner_dropout=0.0)
        facts |= model_facts(config)
        facts["cuts"] = cuts_of(plan, config)
    return Launch(
        facts=facts,
        strategy=strategy,
        plan=plan,
        cluster=simulator.cost.cluster,
        title=problem.title,
        attention=problem.settings.get("attention"),
    )


TEXT = "one text"
"""What decoders and encoders of text read."""


def read_by(inputs: Sequence[Value]) -> str:
    """What a model reads: `TEXT`, or in words what else, and by which inputs.

    An encoder is told by the names of exports, in which inputs of the decoder beside it begin with
    `decoder`.
    """
    names = [each.name for each in inputs]
    decoders = [name for name in names if name.startswith("decoder")]
    others = [name for name in names if name not in decoders]
    if not any(_is_number(each.type.dtype) for each in inputs):
        return f"{', '.join(names) or 'nothing'} and no tokens"
    if decoders and others:
        return f"{', '.join(others)} by an encoder and {', '.join(decoders)} by a decoder"
    return TEXT


def _is_number(dtype: DType) -> bool:
    """Whether values of this type are whole numbers, as tokens are."""
    return not dtype.is_float and dtype is not DType.BOOL


def zoo_name(config: object) -> str:
    """The name that the zoo has a model under; an empty text for one that it has not."""
    from distir.models.zoo import ZOO

    found = (
        entry.name
        for entry in ZOO
        if isinstance(config, TransformerConfig)
        and isinstance(entry.value, TransformerConfig)
        and replace(config, name="", notes=()) == replace(entry.value, name="", notes=())
    )
    return next(found, "")


def cuts_of(plan: Plan, config: TransformerConfig) -> Cuts | None:
    """The layers of a plan's stages; None without a pipeline, or if a stage begins inside a
    layer."""
    pieces = blocks_of_layers(config, plan.workload.num_blocks)
    if len(plan.stages) == 1 or pieces is None:
        return None
    ends = list(accumulate(pieces, initial=1))  # the embedding is the block before the layers
    begins = [stage.blocks[0] for stage in plan.stages[1:]]
    if any(begin not in ends for begin in begins):
        return None
    bounds = [0, *(ends.index(begin) for begin in begins), config.layers]
    return Cuts(tuple(b - a for a, b in pairwise(bounds)))


def starts_of(cuts: Cuts, pieces: Sequence[int]) -> tuple[int, ...]:
    """The blocks before which a plan is cut, given the blocks of every layer: the inverse of
    `cuts_of`."""
    ends = list(accumulate(pieces, initial=1))
    return tuple(ends[count] for count in accumulate(cuts.layers[:-1]))


def blocks_of_layers(config: TransformerConfig, blocks: int) -> tuple[int, ...] | None:
    """The number of blocks that each layer is, in a model with an embedding before and a head
    behind the layers; None if that is not known.

    A layer is a block, but for a first layer that no other is like: it is as many blocks as are
    left.
    """
    more = blocks - 2 - config.layers
    if more == 0:
        return (1,) * config.layers
    alone = config.experts is not None and config.experts.dense_layers == 1
    return (1 + more, *(1,) * (config.layers - 1)) if alone and more > 0 else None
