"""nanotron: the YAML file of `run_train.py --config-file` (nanotron/config), 2411b022."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from autotune.launch.common import (
    CONTEXT_DIVIDES,
    HEADS_DIVIDE,
    ONLY_TRAINING,
    USUAL_PLACEMENT,
    accumulated,
    adds_up_in_fp32,
    exchanges,
    length_of_text,
    notes_on_both,
    one_schedule,
    unsaid,
    width_of_heads,
)
from autotune.launch.errors import LaunchError
from autotune.launch.facts import MODEL, Facts, Launch
from autotune.launch.known import known_options
from autotune.launch.limits import Limit, only
from autotune.launch.nested import as_yaml, flattened
from autotune.launch.rows import (
    Options,
    Row,
    Table,
    row,
    shown,
    switch,
    truth,
    typed,
    value,
    words,
)
from autotune.launch.scripts import header, one_line, script, torchrun
from autotune.launch.sources import LAUNCHER, devices_of
from autotune.launch.target import Files, Note, Target, add_target
from distir.strategy import PLACEMENT

if TYPE_CHECKING:
    from autotune.launch.sources import Source

CONFIG = "config.yaml"
_P = "parallelism."
_M = "model.model_config."

_ENGINE = words(
    "schedule", f"{_P}pp_engine", {"1f1b": "1f1b", "gpipe": "afab"}, "gpipe", always=True
)


def _read_engine(options: Options, facts: Facts) -> Facts:
    return _ENGINE.read(options, facts) if facts["pp"] > 1 else {"schedule": "1f1b"}


_MODES = {True: "REDUCE_SCATTER", False: "ALL_REDUCE"}
_ASYNC = f"{_P}tp_linear_async_communication"
_MODE, _AGAIN = f"{_P}tp_mode", f"{_P}tp_recompute_allgather"


def _read_mode(options: Options, facts: Facts) -> Facts:
    word = str(options.get(_MODE, "ALL_REDUCE")).upper()
    if word not in _MODES.values():
        raise LaunchError(f"{_MODE} is {shown(word)}; expected one of {', '.join(_MODES.values())}")
    resting = word == "REDUCE_SCATTER" and facts["tp"] > 1
    kept = resting and not truth(_AGAIN, options.get(_AGAIN, True))
    return {"sequence_parallel": resting, "keep_gathered": "activations" if kept else "none"}


def _write_mode(facts: Facts) -> Options:
    return {
        _MODE: _MODES[facts["sequence_parallel"]],
        _AGAIN: facts["keep_gathered"] == "none",
        _ASYNC: False,
    }


_ATTENTION = f"{_M}_attn_implementation"


def _read_exchange(options: Options, facts: Facts) -> Facts:
    return {"cp_exchange": "ring" if facts["cp"] > 1 else "gather"}


def _write_exchange(facts: Facts) -> Options:
    ring = facts["cp"] > 1
    return {_ATTENTION: "ring_flash_triton" if ring else "flash_attention_2"}


_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_IN_FP32 = "optimizer.accumulate_grad_in_fp32"


def _read_gradients(options: Options, facts: Facts) -> Facts:
    wide = truth(_IN_FP32, options.get(_IN_FP32, True)) and facts["precision"] != "fp32"
    return {"gradient_precision": "fp32" if wide else "compute"}


def _write_optimizer(facts: Facts) -> Options:
    if facts["optimizer"] != "adam":
        raise LaunchError(f"optimizer = {facts['optimizer']}: nanotron's recipes have AdamW")
    return {"optimizer.optimizer_factory.name": "adamW"}


def _read_optimizer(options: Options, facts: Facts) -> Facts:
    name = str(options.get("optimizer.optimizer_factory.name", "adamW"))
    if name.lower() != "adamw":
        raise LaunchError(f"optimizer_factory.name is {shown(name)}; only adamW is simulated")
    return {"optimizer": "adam"}


_ZERO = "optimizer.zero_stage"


def _read_stage(options: Options) -> int:
    stage = typed(int, _ZERO, options.get(_ZERO, 0))
    if not 0 <= stage <= 3:
        raise LaunchError(
            f"{_ZERO} is {stage}; expected 0 or 1, the only values that nanotron supports"
        )
    return stage


def _read_zero(options: Options, facts: Facts) -> Facts:
    """nanotron takes 2 and 3 as well, and shards the optimizer alone."""
    return {"zero": min(1, _read_stage(options))}


def _llama(facts: Facts) -> None:
    """Raises `LaunchError` for a model that the Qwen class of nanotron is not."""
    usual: dict[str, Any] = {
        "norm": "rms", "gated": True, "activation": "silu", "causal": True, "norm_first": True,
        "learned_positions": False, "rotary_fraction": 1.0, "ffn_bias": False, "output_bias": False,
        "qk_norm": False, "dropout": 0.0, "parallel": False, "part_norms": False,
        "qk_norm_joint": False, "windows": (), "embedding_scale": 1.0, "attention_dropout": 0.0,
    }  # fmt: skip
    for name, wanted in usual.items():
        given = facts.get(MODEL + name, wanted)
        if given != wanted:
            raise LaunchError(f"nanotron's models have {name} = {wanted}, not {given}")
    if MODEL + "experts.count" in facts or MODEL + "latent.key_rank" in facts:
        raise LaunchError("nanotron's models have neither experts nor latent attention")
    if facts[MODEL + "head_dim"] * facts[MODEL + "heads"] != facts[MODEL + "hidden"]:
        raise LaunchError("nanotron's heads have the width hidden / heads")


def _write_class(facts: Facts) -> Options:
    _llama(facts)
    return {f"{_M}is_qwen2_config": True, f"{_M}attention_bias": facts[f"{MODEL}qkv_bias"]}


_EXPERTS = ("num_experts", "num_local_experts")


def _read_class(options: Options, facts: Facts) -> Facts:
    for name, given in options.items():
        if name.startswith(_M) and name.endswith(_EXPERTS) and typed(int, name, given or 1) > 1:
            raise LaunchError(f"{name} is {given}; nanotron's models with experts cannot be read")
    bias = truth(f"{_M}attention_bias", options.get(f"{_M}attention_bias", False))
    found = {
        "norm": "rms",
        "gated": True,
        "activation": "silu",
        "learned_positions": False,
        "rotary_fraction": 1.0,
        "ffn_bias": False,
        "output_bias": False,
        "qkv_bias": bias,
        "head_dim": width_of_heads(facts, f"{_M}hidden_size", f"{_M}num_attention_heads"),
        "fused_qkv": False,
    }
    return {MODEL + name: each for name, each in found.items()}


_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
}

ROWS: tuple[Row, ...] = (
    value("dp", f"{_P}dp", least=1),
    value("tp", f"{_P}tp", least=1),
    value("pp", f"{_P}pp", least=1),
    value("cp", f"{_P}context_parallel_size", 1, always=True, least=1),
    value("ep", f"{_P}expert_parallel_size", 1, always=True, least=1),
    row(("cp_exchange",), (_ATTENTION,), _write_exchange, _read_exchange),
    row(("schedule",), (f"{_P}pp_engine",), _ENGINE.write, _read_engine),
    unsaid("chunks", 1, "one stage per rank"),
    row(
        ("sequence_parallel", "keep_gathered"),
        (_MODE, _AGAIN, _ASYNC),
        _write_mode,
        _read_mode,
    ),
    row(
        ("recompute",),
        (f"{_P}recompute_layer",),
        lambda facts: {f"{_P}recompute_layer": facts["recompute"] == "full"},
        lambda options, facts: {
            "recompute": "full"
            if truth(f"{_P}recompute_layer", options.get(f"{_P}recompute_layer", False))
            else "none"
        },
    ),
    unsaid("placement", PLACEMENT, "tp, cp, dp, pp from the nearest"),
    accumulated("tokens.micro_batch_size", "tokens.batch_accumulation_per_replica"),
    length_of_text("tokens.sequence_length", "nanotron"),
    row(("zero",), (_ZERO,), lambda facts: {_ZERO: facts["zero"]}, _read_zero),
    words("precision", "model.dtype", _DTYPES, always=True),
    row(
        ("gradient_precision",),
        (_IN_FP32,),
        lambda facts: {_IN_FP32: facts["gradient_precision"] != "compute"},
        _read_gradients,
    ),
    row(("optimizer",), ("optimizer.optimizer_factory.name",), _write_optimizer, _read_optimizer),
    unsaid("mode", "training", "run_train.py trains"),
    value("vocabulary_multiple", "model.make_vocab_size_divisible_by", 1, always=True),
    *(value(MODEL + ours, _M + theirs, always=True, least=1) for ours, theirs in _SIZES.items()),
    value(f"{MODEL}norm_epsilon", f"{_M}rms_norm_eps", 1e-6, kind=float, always=True),
    value(f"{MODEL}rotary_base", f"{_M}rope_theta", 10000.0, kind=float, always=True),
    switch(f"{MODEL}tied_embeddings", f"{_M}tie_word_embeddings"),
    row(
        (f"{MODEL}qkv_bias",),
        (f"{_M}attention_bias", f"{_M}is_qwen2_config"),
        _write_class,
        _read_class,
    ),
)


def _zero(zero: int, cp: int) -> str | None:
    if zero > 1:
        return f"zero = {zero} is accepted, but has the effect of 1"
    if zero == 1 and cp > 1:
        return f"zero = 1 shards over dp alone, not also over cp = {cp}"
    return None


LIMITS: tuple[Limit, ...] = (
    ONLY_TRAINING,
    USUAL_PLACEMENT,
    Limit("ZeRO 0 or 1", _zero, ({"zero": 1, "keep_gathered": "none"}, {"zero": 0})),
    only("ep", (1,), "any value is accepted, and then the rank grid must hold it", {"ep": 1}),
    one_schedule("1f1b", "gpipe"),
    HEADS_DIVIDE,
    CONTEXT_DIVIDES,
    exchanges({"ring": "_attn_implementation of the Qwen model"}),
    only(
        "keep_gathered",
        ("none", "activations"),
        "parameters are never sharded",
        {"keep_gathered": "none"},
    ),
    only(
        "recompute",
        ("none", "full"),
        "whole layers run again",
        {"recompute": "full"},
        {"recompute": "none"},
    ),
)


def _approximated(facts: Facts) -> Iterator[Note]:
    yield from notes_on_both(facts)
    if facts["pp"] > 1:
        yield Note(
            "stages",
            "nanotron cuts layers by its own estimate of the cost of a block; no option states "
            "where",
        )


def _missing(facts: Facts) -> Iterator[Note]:
    yield Note("data", "data_stages: the data set, and when training uses which part")
    yield Note("tokenizer", "tokenizer.tokenizer_name_or_path")
    yield Note("training", "tokens.train_steps, optimizer.learning_rate_scheduler, checkpoints")
    if MODEL + "layers" not in facts:
        yield Note("model", "model.model_config: the sizes of the model")


def _assumed(options: Options, facts: Facts) -> Iterator[Note]:
    stage = _read_stage(options)
    if stage > 1:
        reason = (
            "nanotron has only 0 and 1: it shards just the optimizer's state, which is simulated"
        )
        yield Note(_ZERO, reason, stage)
    if stage and facts["cp"] > 1:
        reason = (
            f"nanotron shards over dp = {facts['dp']} alone; the simulation also shards over cp = "
            f"{facts['cp']}"
        )
        yield Note(_ZERO, reason, stage)
    if facts["tp"] > 1 and truth(_ASYNC, options.get(_ASYNC, True)):
        reason = "the software stack decides how far tp communication is hidden: see --stack"
        yield Note(_ASYNC, reason)


def _write(launch: Launch, options: Options) -> Files:
    command = [*torchrun(launch, "run_train.py"), ["--config-file", CONFIG]]
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    title = header(launch, NANOTRON.label)
    text = script(title, command, environment)
    general = {
        "general.project": "launch",
        "general.run": launch.strategy.label,
        "general.seed": 42,
    }
    file = as_yaml({**general, **options}, title)
    return Files(one_line(command, environment), {"launch.sh": text, CONFIG: file})


def _read(source: Source) -> Options | None:
    if source.table is not None:
        if not {"parallelism", "tokens"} <= set(source.table):
            return None
        return _with_devices(flattened(source.table))
    said = source.options(frozenset(("--config-file",)))
    if said is None:
        return None
    beside = source.beside(str(said["--config-file"]))
    if beside is None or beside.table is None:
        raise LaunchError(f"{source.path}: {said['--config-file']} is not beside it")
    found = _with_devices(flattened(beside.table))
    started, needed = devices_of(said), devices_of(found)
    if None not in (started, needed) and started != needed:
        raise LaunchError(
            f"{source.path}: it starts {started} processes, but the degrees in {beside.path.name} "
            f"need {needed}, which nanotron refuses; change one of them"
        )
    others = {n: v for n, v in said.items() if n not in LAUNCHER and n != "--config-file"}
    nodes = {n: v for n, v in said.items() if n in ("--nnodes", "--nproc-per-node")}
    return {**found, **others, **(nodes if started is not None else {})}


def _with_devices(options: dict[str, Any]) -> dict[str, Any]:
    """The degrees say themselves how many devices there are, if they are numbers."""
    names = [f"{_P}{name}" for name in ("dp", "tp", "pp", "context_parallel_size")]
    try:
        count = math.prod(typed(int, name, options.get(name, 1), 1) for name in names)
    except LaunchError:  # said of the option itself, later
        return options
    return {**options, "--nproc-per-node": count}


KNOWN = known_options("nanotron")

NANOTRON = add_target(
    Target(
        name="nanotron",
        version="2411b022",
        summary="nanotron (April 2026): the YAML file of run_train.py",
        stack="nanotron",
        fuses_qkv=False,
        table=Table(ROWS),
        limits=LIMITS,
        write=_write,
        read=_read,
        approximated=_approximated,
        as_run=adds_up_in_fp32,
        missing=_missing,
        assumed=_assumed,
        is_neutral=KNOWN.is_neutral,
        not_modelled=KNOWN.not_modelled,
        known=KNOWN.names,
    ),
    order=6,
)
