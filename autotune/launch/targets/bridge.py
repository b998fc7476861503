"""Megatron-Bridge 0.3: words such as `model.tensor_model_parallel_size=4` behind a recipe's name.

They are Megatron-LM's options under other names. A recipe has defaults of its own, so every word is
written, also where it says what Megatron-Core would do anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.launch.common import adds_up_in_fp32
from autotune.launch.errors import LaunchError, UnstatedError
from autotune.launch.facts import MODEL, Facts, Launch, facts_given
from autotune.launch.known import known_options
from autotune.launch.rows import Options, Row, Table, row, shown, truth, typed
from autotune.launch.scripts import header, one_line, script, torchrun
from autotune.launch.target import Files, Note, Target, add_target
from autotune.launch.targets.megatron import (
    GROUP,
    LAYERS,
    STRATEGY_ROWS,
    environment,
    recomputes_otherwise,
)
from autotune.launch.targets.megatron_core import LIMITS, approximations
from distir.factoring import EXPERT_ORDERS

if TYPE_CHECKING:
    from autotune.launch.sources import Source

PROGRAM = "run_recipe.py"

RECIPES = {
    "gpt3-175B": "gpt3_175b_pretrain_config",
    "llama2-7b": "llama2_7b_pretrain_config",
    "llama3.2-1b": "llama32_1b_pretrain_config",
    "llama3.2-3b": "llama32_3b_pretrain_config",
    "llama3-8b": "llama3_8b_pretrain_config",
    "llama3-70b": "llama3_70b_pretrain_config",
    "llama3-405b": "llama31_405b_pretrain_config",
    "qwen2.5-0.5b": "qwen25_500m_pretrain_config",
    "qwen2.5-1.5b": "qwen25_1p5b_pretrain_config",
    "qwen2.5-7b": "qwen25_7b_pretrain_config",
    "qwen2.5-14b": "qwen25_14b_pretrain_config",
    "qwen2.5-32b": "qwen25_32b_pretrain_config",
    "qwen2.5-72b": "qwen25_72b_pretrain_config",
    "qwen3-0.6b": "qwen3_600m_pretrain_config",
    "qwen3-1.7b": "qwen3_1p7b_pretrain_config",
    "qwen3-4b": "qwen3_4b_pretrain_config",
    "qwen3-8b": "qwen3_8b_pretrain_config",
    "qwen3-14b": "qwen3_14b_pretrain_config",
    "qwen3-32b": "qwen3_32b_pretrain_config",
    "qwen3-30b-a3b": "qwen3_30b_a3b_pretrain_config",
    "qwen3-235b-a22b": "qwen3_235b_a22b_pretrain_config",
    "deepseek-v2-lite": "deepseek_v2_lite_pretrain_config",
    "deepseek-v2": "deepseek_v2_pretrain_config",
    "deepseek-v3": "deepseek_v3_pretrain_config",
}
"""Recipes by the zoo's name (megatron/bridge/recipes)."""

NAMES = {
    "--tensor-model-parallel-size": "model.tensor_model_parallel_size",
    "--pipeline-model-parallel-size": "model.pipeline_model_parallel_size",
    "--context-parallel-size": "model.context_parallel_size",
    "--cp-comm-type": "model.cp_comm_type",
    "--sequence-parallel": "model.sequence_parallel",
    "--use-tp-pp-dp-mapping": "dist.use_tp_pp_dp_mapping",
    "--seq-length": "model.seq_length",
    "--micro-batch-size": "train.micro_batch_size",
    "--global-batch-size": "train.global_batch_size",
    "--rampup-batch-size": "train.rampup_batch_size",
    "--expert-model-parallel-size": "model.expert_model_parallel_size",
    "--expert-tensor-parallel-size": "model.expert_tensor_parallel_size",
    "--pipeline-model-parallel-layout": "model.pipeline_model_parallel_layout",
    "--num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    GROUP: "model.microbatch_group_size_per_vp_stage",
    "--decoder-first-pipeline-num-layers": "model.num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "model.num_layers_in_last_pipeline_stage",
    "--account-for-embedding-in-pipeline-split": "model.account_for_embedding_in_pipeline_split",
    "--account-for-loss-in-pipeline-split": "model.account_for_loss_in_pipeline_split",
    "--use-distributed-optimizer": "ddp.use_distributed_optimizer",
    "--use-megatron-fsdp": "ddp.use_megatron_fsdp",
    "--data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "--num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
    "--overlap-grad-reduce": "ddp.overlap_grad_reduce",
    "--overlap-param-gather": "ddp.overlap_param_gather",
    "--ckpt-format": "checkpoint.ckpt_format",
    "--recompute-granularity": "model.recompute_granularity",
    "--recompute-method": "model.recompute_method",
    "--recompute-num-layers": "model.recompute_num_layers",
    "--recompute-modules": "model.recompute_modules",
    "--optimizer": "optimizer.optimizer",
    "--sgd-momentum": "optimizer.sgd_momentum",
    "--make-vocab-size-divisible-by": "model.make_vocab_size_divisible_by",
}
"""Bridge's names of Megatron-LM's options."""

UNSET: dict[str, Any] = {
    "--context-parallel-size": 1,
    "--cp-comm-type": "p2p",
    "--sequence-parallel": False,
    "--use-tp-pp-dp-mapping": False,
    "--expert-model-parallel-size": 1,
    "--pipeline-model-parallel-layout": None,
    "--num-virtual-stages-per-pipeline-rank": None,
    "--use-distributed-optimizer": False,
    "--use-megatron-fsdp": False,
    "--num-distributed-optimizer-instances": 1,
    "--overlap-grad-reduce": False,
    "--overlap-param-gather": False,
    "--recompute-granularity": None,
    "--recompute-method": None,
    "--recompute-num-layers": None,
}
"""What options are where Megatron-LM's would be left out."""

_THEIRS = {name: option for option, name in NAMES.items()}


def _renamed(original: Row) -> Row:
    """A row of Megatron-LM under Bridge's names."""

    def write(facts: Facts) -> Options:
        said = _in_own_words(original.write, facts)
        unset = {name: UNSET[name] for name in original.options if name in UNSET}
        return {NAMES[name]: given for name, given in {**unset, **said}.items()}

    def read(options: Options, facts: Facts) -> Facts:
        return _in_own_words(original.read, _of_megatron(options), facts)

    options = tuple(NAMES[name] for name in original.options if name in NAMES)
    return row(original.facts, options, write, read, original.unsaid)


def _of_megatron(options: Options) -> Options:
    """The words that say what Megatron-LM's options say, under the names of these."""
    stated = {**_USUAL, **options}
    known = {_THEIRS[n]: _parsed(given) for n, given in stated.items() if n in _THEIRS}
    return {name: given for name, given in known.items() if given is not None}


def _in_own_words(work: Callable[..., Mapping[str, Any]], *given: Any) -> Mapping[str, Any]:
    """What a row of Megatron-LM makes; its errors name options as Megatron-Bridge does."""
    try:
        return work(*given)
    except LaunchError as error:
        raise LaunchError(_OPTION.sub(_as_bridge_says, str(error))) from error


_OPTION = re.compile(r"(--set )([a-z-]+)|--[a-z-]+")
"""An option of Megatron-LM in a message, or what it says to state, without dashes."""


def _as_bridge_says(option: re.Match[str]) -> str:
    if option[2] is not None:
        return option[1] + NAMES.get(f"--{option[2]}", option[2])
    return NAMES.get(option[0], option[0])


# --- the model ------------------------------------------------------------------------------------


def _write_recipe(facts: Facts) -> Options:
    return {"--recipe": RECIPES.get(facts["zoo"], "RECIPE")}


def _read_recipe(options: Options, facts: Facts) -> Facts:
    recipe = str(options.get("--recipe", ""))
    for name, known in RECIPES.items():
        if known == recipe:
            return {"zoo": name, "model_source": name, **_of_model(facts_given(name))}
    given = facts.get("model_given")
    if given is None:
        raise LaunchError(
            f"--recipe {shown(recipe)} is not a known recipe; state the model with --model"
        )
    return {"zoo": given, **_of_model(facts_given(given))}


def _of_model(known: Facts) -> Facts:
    """What is to be known of a model that a recipe makes."""
    wanted = (LAYERS, f"{MODEL}experts.count", f"{MODEL}latent.key_rank", *DROPOUT)
    return {name: known[name] for name in wanted if name in known}


DROPOUT = {
    f"{MODEL}dropout": "model.hidden_dropout",
    f"{MODEL}attention_dropout": "model.attention_dropout",
}


def _read_dropout(options: Options, facts: Facts) -> Facts:
    """Whether the model drops what it usually does. A recipe's own fraction is taken for the
    model's."""
    off = [
        fact
        for fact, option in DROPOUT.items()
        if option in options and not typed(float, option, options[option])
    ]
    usual = [fact for fact in DROPOUT if facts.get(fact)]
    return {**dict.fromkeys(off, 0.0), "dropout": not usual or any(f not in off for f in usual)}


# --- what a recipe decides ------------------------------------------------------------------------

_USUAL: Options = {
    "ddp.use_distributed_optimizer": True,
    "ddp.overlap_grad_reduce": True,
    "ddp.overlap_param_gather": True,
    "ddp.grad_reduce_in_fp32": True,
    "mixed_precision": "bf16_mixed",
}
"""What most recipes state, and is taken where a command does not say it."""

_TP, _PP = "model.tensor_model_parallel_size", "model.pipeline_model_parallel_size"
_EP, _ETP = "model.expert_model_parallel_size", "model.expert_tensor_parallel_size"
_ALWAYS = (
    _TP, _PP, "model.context_parallel_size", "model.recompute_granularity", "model.seq_length",
    "train.micro_batch_size",
)  # fmt: skip
_ONLY_WITH = {
    "model.sequence_parallel": _TP,
    "model.virtual_pipeline_model_parallel_size": _PP,
    "train.global_batch_size": "",
    _EP: "",
    _ETP: _TP,
}
"""Words, and the degrees of which they say nothing where these are 1."""


def _said_otherwise(options: Options, facts: Facts) -> Iterator[str]:
    """The words that need not be there, as others say the same, or there is nothing to say."""
    if "model.pipeline_model_parallel_layout" in options:
        yield "model.virtual_pipeline_model_parallel_size"
    if "batch_size" in facts or "train.rampup_batch_size" in options:
        yield "train.global_batch_size"
    if f"{MODEL}experts.count" not in facts:
        yield from (_EP, _ETP)


def _decided(options: Options, facts: Facts) -> Iterator[str]:
    """The words whose values differ from recipe to recipe, and count."""
    yield from _ALWAYS
    others = [name for name, degree in _ONLY_WITH.items() if str(options.get(degree)) != "1"]
    needless = set(_said_otherwise(options, facts))
    yield from (name for name in others if name not in needless)


def _read_decided(options: Options, facts: Facts) -> Facts:
    """Raises `UnstatedError` if a recipe decides what counts: its own values are not read."""
    left = [name for name in _decided(options, facts) if name not in options]
    if not left:
        return {}
    are, them = ("is", "it") if len(left) == 1 else ("are", "them")
    raise UnstatedError(
        f"{', '.join(left)} {are} not stated, and the recipe's own values are not read; state "
        f"{them} by {' '.join(f'--set {name}=VALUE' for name in left)}"
    )


# --- numbers --------------------------------------------------------------------------------------

_MIXED = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
}


def _write_precision(facts: Facts) -> Options:
    if facts["precision"] not in _MIXED:
        raise LaunchError(f"precision = {facts['precision']} is not a recipe of mixed precision")
    return {"mixed_precision": _MIXED[facts["precision"]]}


def _read_precision(options: Options, facts: Facts) -> Facts:
    word = options.get("mixed_precision", _USUAL["mixed_precision"])
    found = next((ours for ours, theirs in _MIXED.items() if theirs == word), None)
    if found is None:
        known = ", ".join(_MIXED.values())
        raise LaunchError(f"mixed_precision is {shown(word)}; only {known} can be simulated")
    return {"precision": found}


_WIDE = "ddp.grad_reduce_in_fp32"


def _read_gradients(options: Options, facts: Facts) -> Facts:
    wide = truth(_WIDE, options.get(_WIDE, _USUAL[_WIDE]))
    return {"gradient_precision": "fp32" if wide else "compute"}


ROWS: tuple[Row, ...] = (
    row(("zoo",), ("--recipe",), _write_recipe, _read_recipe),
    row((), (), lambda facts: {}, _read_decided),
    *map(_renamed, STRATEGY_ROWS),
    row(("precision",), ("mixed_precision",), _write_precision, _read_precision),
    row(
        ("gradient_precision",),
        (_WIDE,),
        lambda facts: {_WIDE: facts["gradient_precision"] != "compute"},
        _read_gradients,
    ),
    row(
        tuple(DROPOUT),
        tuple(DROPOUT.values()),
        lambda facts: {option: facts[fact] for fact, option in DROPOUT.items()},
        _read_dropout,
    ),
    row(
        (),
        ("model.should_pad_vocab",),
        lambda facts: {"model.should_pad_vocab": True},
        lambda options, facts: {},
    ),
)


# --- files ----------------------------------------------------------------------------------------


def _word(given: Any) -> str:
    if given is None:
        return "null"
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, list):
        return f"[{','.join(map(str, given))}]"  # type: ignore[arg-type]
    return str(given)


def _parsed(word: Any) -> Any:
    """The value that a word of a command line says."""
    if not isinstance(word, str):
        return word
    if word in ("null", "None"):
        return None
    if word in ("true", "false", "True", "False"):
        return word.lower() == "true"
    if word.startswith("["):
        return [each.strip() for each in word.strip("[]").split(",")]
    return word.strip("\"'")


def _write(launch: Launch, options: Options) -> Files:
    said = [[f"{n}={_word(given)}"] for n, given in options.items() if n != "--recipe"]
    command = [*torchrun(launch, PROGRAM), ["--recipe", options["--recipe"]], *said]
    needed = environment(launch)
    text = script(header(launch, BRIDGE.label), command, needed)
    return Files(one_line(command, needed), {"launch.sh": text})


def _is_word(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return (
        bool(equals)
        and not name.startswith("-")
        and ("." in name or name == "mixed_precision")
        and "/" not in name
    )


SIGNS = frozenset((PROGRAM, "--recipe"))


def _read(source: Source) -> Options | None:
    found = source.command(SIGNS, _is_word)
    if found is None:
        return None
    said = (word.partition("=") for word in found.words if _is_word(word))
    return {**found.options, **{name: _parsed(given) for name, _, given in said}}


def _missing(facts: Facts) -> Iterator[Note]:
    if facts["zoo"] not in RECIPES:
        yield Note("model", "RECIPE: the name of your own recipe for this model")
    yield Note("data", "dataset.…: the recipe's own is mock data, or a path of its authors")
    yield Note("tokenizer", "tokenizer.…, unless the recipe's is used")
    yield Note(
        "training", "train.train_iters, checkpoint.save: how long to train, and where to save"
    )


def _assumed(options: Options, facts: Facts) -> Iterator[Note]:
    for name, usual in _USUAL.items():
        if name not in options:
            yield Note(name, "not stated: assumed as in most recipes", usual)
    for note in recomputes_otherwise(_of_megatron(options), facts):
        yield replace(note, what=NAMES[note.what])
    for fact, option in DROPOUT.items():
        if typed(float, option, options.get(option, 0.0)) and not facts.get(fact):
            yield Note(option, "the model is simulated without dropout", options[option])


KNOWN = known_options("bridge")

BRIDGE = add_target(
    Target(
        name="bridge",
        version="0.3",
        summary="Megatron-Bridge 0.3: a recipe with words such as model.context_parallel_size=2",
        stack="megatron",
        states_cuts=True,
        fuses_qkv=True,
        table=Table(ROWS),
        limits=LIMITS,
        write=_write,
        read=_read,
        approximated=approximations,
        as_run=adds_up_in_fp32,
        missing=_missing,
        assumed=_assumed,
        searches={"expert_order": EXPERT_ORDERS},
        own=("expert_order",),
        is_neutral=KNOWN.is_neutral,
        not_modelled=KNOWN.not_modelled,
        known=KNOWN.names,
    ),
    order=2,
)
