"""accelerate 1.15: the YAML file of `accelerate launch --config_file`
(accelerate/commands/config/config_args.py, accelerate/parallelism_config.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from autotune.launch.common import (
    CHECKPOINTING,
    CONTEXT_DIVIDES,
    FSDP_OFFLOADS,
    HEADS_DIVIDE,
    LENGTHS,
    ONLY_TRAINING,
    PART_OF_REPLICAS,
    USUAL_PLACEMENT,
    accumulated,
    exchanges,
    length_of_script,
    model_file,
    no_pipeline,
    not_padded,
    offloaded_by_fsdp,
    one_schedule,
    refuse_precision_of_scripts,
    unsaid,
)
from autotune.launch.errors import LaunchError
from autotune.launch.facts import Facts, Launch
from autotune.launch.known import known_options
from autotune.launch.limits import Limit, only
from autotune.launch.nested import as_yaml, flattened
from autotune.launch.rows import Options, Row, Table, row, shown, truth, typed, value, words
from autotune.launch.script_options import not_simulated, reason_of
from autotune.launch.scripts import header, one_line, script
from autotune.launch.sources import processes_of
from autotune.launch.target import Files, Note, Target, add_target
from distir.strategy import PLACEMENT

if TYPE_CHECKING:
    from autotune.launch.sources import Source

CONFIG = "accelerate.yaml"
_P = "parallelism_config.parallelism_config_"
_F = "fsdp_config.fsdp_"
_COPIES, _SHARD = f"{_P}dp_replicate_size", f"{_P}dp_shard_size"
_RESHARD, _VERSION = f"{_F}reshard_after_forward", f"{_F}version"
_SHARDING = f"{_F}sharding_strategy"
_KEEPS = {"FULL_SHARD": False, "1": False, "SHARD_GRAD_OP": True, "2": True}
"""Whether parameters stay gathered from the forward to the backward pass, by strategies of FSDP 1.
"""
_RESHARDED = {"TRUE": "FULL_SHARD", "FALSE": "SHARD_GRAD_OP"}
_EXCHANGE = f"{_P}cp_comm_strategy"


def _write_replicas(facts: Facts) -> Options:
    if facts["zero"] == 0:
        kind = "MULTI_GPU" if facts["dp"] > 1 else "NO"
        return {"distributed_type": kind}
    shard = facts["zero_degree"] or facts["dp"]
    return {
        "distributed_type": "FSDP",
        _COPIES: facts["dp"] // shard,
        _SHARD: shard,
        _VERSION: 2,
        _RESHARD: facts["keep_gathered"] == "none",
        f"{_F}auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    }


def _read_replicas(options: Options, facts: Facts) -> Facts:
    others = facts["tp"] * facts["cp"]
    dp, rest = divmod(facts["devices"], others)
    if rest or not dp:
        raise LaunchError(
            f"{facts['devices']} devices are not divisible by tp {facts['tp']} × cp {facts['cp']}; "
            "state their number with --devices"
        )
    kind = str(options.get("distributed_type", "NO")).upper()
    if kind not in ("NO", "MULTI_GPU", "FSDP"):
        raise LaunchError(f"distributed_type is {shown(kind)}; expected FSDP or MULTI_GPU")
    if kind != "FSDP":
        return {"dp": dp, "zero": 0, "zero_degree": 0, "keep_gathered": "none"}
    version = typed(int, _VERSION, options.get(_VERSION, 1))
    if version not in (1, 2):
        raise LaunchError(f"{_VERSION} is {version}; expected 1 or 2")
    if version == 1:
        option = next((n for n in (_SHARDING, _RESHARD) if n in options), _SHARDING)
        word = str(options.get(option, "FULL_SHARD")).upper()
        word = word if option == _SHARDING else _RESHARDED.get(word, word)
        if word not in _KEEPS:
            known = ", ".join(name for name in _KEEPS if not name.isdigit())
            raise LaunchError(f"{option} is {shown(word)}; expected, for FSDP 1, {known}")
        kept = _KEEPS[word]
    else:
        kept = not truth(_RESHARD, options.get(_RESHARD, True))
    copies = typed(int, _COPIES, options.get(_COPIES, 1))
    shard = typed(int, _SHARD, options.get(_SHARD, dp // max(1, copies)))
    if copies * shard != dp:
        raise LaunchError(
            f"dp_replicate {copies} × dp_shard {shard} × tp {facts['tp']} × cp {facts['cp']} are "
            f"not {facts['devices']} devices; state their number with --devices"
        )
    if shard * facts["cp"] == 1:
        return {"dp": dp, "zero": 0, "zero_degree": 0, "keep_gathered": "none"}
    return {
        "dp": dp,
        "zero": 3,
        "zero_degree": shard if copies > 1 else 0,
        "keep_gathered": "parameters" if kept else "none",
    }


# torch rotates shards by an all-to-all, which is a ring here.
_TRAVEL = words("cp_exchange", _EXCHANGE, {"gather": "allgather", "ring": "alltoall"}, "gather")


def _write_exchange(facts: Facts) -> Options:
    return {_EXCHANGE: _TRAVEL.write(facts).get(_EXCHANGE, "allgather")} if facts["cp"] > 1 else {}


def _read_exchange(options: Options, facts: Facts) -> Facts:
    return _TRAVEL.read(options, facts) if facts["cp"] > 1 else {"cp_exchange": "gather"}


_CHECKPOINTED = f"{_F}activation_checkpointing"
_MIXED = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}


def _write_precision(facts: Facts) -> Options:
    refuse_precision_of_scripts("accelerate", facts["precision"])
    if facts["precision"] not in _MIXED:
        raise LaunchError(
            f"precision = {facts['precision']} needs a backend of its own: see fp8_config"
        )
    if facts["gradient_precision"] != "compute" and facts["precision"] != "fp32":
        raise LaunchError(
            f"gradient_precision = {facts['gradient_precision']} is not an option of accelerate: "
            "the script's mixed-precision policy states it"
        )
    return {"mixed_precision": _MIXED[facts["precision"]]}


def _sizes() -> tuple[Row, ...]:
    return (
        value("tp", f"{_P}tp_size", 1, least=1),
        value("cp", f"{_P}cp_size", 1, least=1),
        row(("cp_exchange",), (_EXCHANGE,), _write_exchange, _read_exchange),
        row(
            ("dp", "zero", "zero_degree", "keep_gathered"),
            (
                "distributed_type",
                _COPIES,
                _SHARD,
                _VERSION,
                _RESHARD,
                f"{_F}auto_wrap_policy",
                _SHARDING,
            ),
            _write_replicas,
            _read_replicas,
        ),
    )


MICRO, TIMES = "--per_device_train_batch_size", "--gradient_accumulation_steps"

ROWS: tuple[Row, ...] = (
    *_sizes(),
    accumulated(MICRO, TIMES),
    length_of_script(),
    row(
        ("recompute",),
        (_CHECKPOINTED, CHECKPOINTING),
        lambda facts: {_CHECKPOINTED: True} if facts["recompute"] == "full" else {},
        lambda options, facts: {
            "recompute": "full"
            if any(truth(n, options.get(n, False)) for n in (_CHECKPOINTED, CHECKPOINTING))
            else "none"
        },
    ),
    offloaded_by_fsdp(f"{_F}offload_params"),
    unsaid("pp", 1, "there is no option for a pipeline"),
    unsaid("schedule", "1f1b", "there is no pipeline"),
    unsaid("chunks", 1, "there is no pipeline"),
    unsaid("placement", PLACEMENT, "tp, cp, dp from the nearest"),
    row(
        ("precision",),
        ("mixed_precision",),
        _write_precision,
        words("precision", "mixed_precision", _MIXED, "fp32").read,
    ),
    unsaid("gradient_precision", "compute", "the script's mixed-precision policy"),
    unsaid("optimizer", "adam", "the script"),
    unsaid("mode", "training", "the script trains"),
    not_padded("accelerate"),
)


def _no_pipeline(pp: int) -> str | None:
    return None if pp == 1 else f"pp = {pp} cannot be stated: accelerate has no pipeline"


def _sharded(zero: int, zero_degree: int, dp: int, tp: int, cp: int) -> str | None:
    if zero not in (0, 3):
        return f"FSDP2 shards parameters: zero = {zero} cannot be stated"
    if zero == 0 and tp * cp > 1:
        return f"tp = {tp} and cp = {cp} need FSDP2, which shards: zero = 0 cannot be stated"
    shard = zero_degree or dp
    if zero and shard * cp == 1:
        return "zero would shard over one device, which is the same as zero = 0"
    if zero and dp > shard == 1 and tp * cp > 1:
        return f"{dp} copies without shards do not go together with tp = {tp} and cp = {cp}"
    return None


LIMITS: tuple[Limit, ...] = (
    ONLY_TRAINING,
    USUAL_PLACEMENT,
    Limit("no pipeline", _no_pipeline, no_pipeline),
    one_schedule("1f1b"),
    Limit(
        "FSDP shards parameters",
        _sharded,
        lambda strategy: (
            {"zero": 3, "zero_degree": 0, "keep_gathered": "parameters"},
            {"zero": 3, "zero_degree": 0, "keep_gathered": "none"},
            {"zero": 0, "zero_degree": 0, "keep_gathered": "none"},
            {
                "dp": strategy.dp * strategy.tp * strategy.cp,
                "tp": 1,
                "cp": 1,
                "cp_exchange": "gather",
                "sequence_parallel": False,
            },
        ),
    ),
    FSDP_OFFLOADS,
    PART_OF_REPLICAS,
    HEADS_DIVIDE,
    CONTEXT_DIVIDES,
    exchanges({"gather": "allgather", "ring": "alltoall, which rotates shards"}),
    only(
        "keep_gathered",
        ("none", "parameters"),
        "gathered activations are not kept",
        {"keep_gathered": "none"},
    ),
    only(
        "recompute",
        ("none", "full"),
        "activation checkpointing applies to whole layers",
        {"recompute": "full"},
        {"recompute": "none"},
    ),
)


def _missing(facts: Facts) -> Iterator[Note]:
    yield Note(
        "script",
        f"train.py: your own script, which takes {MICRO}, {TIMES} and {LENGTHS[0]}, as "
        "transformers' Trainer does",
    )
    yield Note("model", "the script loads model, data and tokenizer, and makes the optimizer")
    if facts["tp"] > 1:
        yield Note("tp", "the model needs a tp plan (from_pretrained(tp_plan=…))")


def _approximated(facts: Facts) -> Iterator[Note]:
    if facts["recompute"] == "full":
        yield Note(
            "recompute", "a layer runs again only as far as its backward pass needs (needed)"
        )
    if facts["optimizer"] != "adam":
        yield Note("optimizer", f"{facts['optimizer']} must be made by the script")


_SCRIPT = (MICRO, TIMES, *LENGTHS, CHECKPOINTING)


def _write(launch: Launch, options: Options) -> Files:
    nodes, per_node = launch.nodes
    machine: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": nodes,
        "num_processes": nodes * per_node,
    }
    file = {**machine, **{n: v for n, v in options.items() if n not in _SCRIPT}}
    command = [
        ["accelerate", "launch", "--config_file", CONFIG],
        ["--machine_rank", "${NODE_RANK:-0}", "--main_process_ip", "${MASTER_ADDR:-localhost}"],
        ["--main_process_port", "${MASTER_PORT:-29500}"],
        ["train.py", *(w for n in _SCRIPT if n in options for w in (n, str(options[n])))],
    ]
    environment: Mapping[str, str] = {}
    title = header(launch, ACCELERATE.label)
    text = script(title, command, environment)
    files = {"launch.sh": text, CONFIG: as_yaml(file, title), **model_file(launch)}
    return Files(one_line(command, environment), files)


SIGNS = frozenset(
    ("--config_file", "--config-file", "--use_fsdp", "--multi_gpu", "--use_parallelism_config")
)
_KEYS = ("distributed_type", "parallelism_config", "fsdp_config")


def _read(source: Source) -> Options | None:
    if source.table is not None:
        if not any(key in source.table for key in _KEYS):
            return None
        return _with_devices(flattened(source.table))
    command = source.command(SIGNS)
    if command is None or not any(name in command.launcher for name in SIGNS):
        return None
    starter, rest = command.launcher, {}
    file: dict[str, Any] = {}
    for name in ("--config_file", "--config-file"):
        if name in starter:
            beside = source.beside(starter[name])
            if beside is None or beside.table is None:
                raise LaunchError(f"{source.path}: {starter[name]} is not beside it")
            if not any(key in beside.table for key in _KEYS):
                return None
            file = flattened(beside.table)
    rest = {name: given for name, given in command.options.items() if name in _SCRIPT}
    told = not_simulated(command.options)
    stated = {n: g for n, g in stated_by(starter).items() if not n.startswith("deepspeed_config.")}
    return {**_with_devices({**file, **stated}), **rest, **told}


_OF_DEEPSPEED = (
    "zero_stage", "offload_optimizer_device", "offload_param_device", "offload_optimizer_nvme_path",
    "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping",
    "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_config_file",
    "deepspeed_moe_layer_cls_names",
)  # fmt: skip
"""Options of `accelerate launch` that are keys of the file's section about DeepSpeed."""

_SECTIONS = {
    "fsdp_": "fsdp_config", "parallelism_config_": "parallelism_config", "dynamo_": "dynamo_config",
    "fp8_": "fp8_config", "megatron_lm_": "megatron_lm_config",
}  # fmt: skip
"""By how such options begin the section of the file that has them."""

_KINDS = {
    "use_fsdp": "FSDP", "multi_gpu": "MULTI_GPU", "use_deepspeed": "DEEPSPEED",
    "use_megatron_lm": "MEGATRON_LM",
}  # fmt: skip


def stated_by(starter: Mapping[str, Any]) -> dict[str, Any]:
    """What options of `accelerate launch` say, by the names of the file, which they go before.
    Others are those of what starts accelerate."""
    found: dict[str, Any] = {}
    for name, given in starter.items():
        key = name.removeprefix("--").replace("-", "_")
        section = next((its for start, its in _SECTIONS.items() if key.startswith(start)), None)
        if key in ("num_processes", "num_machines", "mixed_precision"):
            found[key] = given
        elif key in _KINDS:
            found["distributed_type"] = _KINDS[key]
        elif key in _OF_DEEPSPEED:
            found[f"deepspeed_config.{key}"] = given
        elif section is not None:
            found[f"{section}.{key}"] = given
    return found


def _with_devices(options: dict[str, Any]) -> dict[str, Any]:
    count, machines = options.pop("num_processes", None), options.pop("num_machines", 1)
    return options if count in (None, -1) else {**options, **processes_of(count, machines)}


KNOWN = known_options("accelerate")

ACCELERATE = add_target(
    Target(
        name="accelerate",
        version="1.15",
        summary="accelerate 1.15: the YAML file of FSDP2 with tp and cp, and options of a script",
        stack="fsdp-eager",
        table=Table(ROWS),
        limits=LIMITS,
        write=_write,
        read=_read,
        approximated=_approximated,
        as_run_strategy=lambda facts: (
            {"recompute": "needed"} if facts["recompute"] == "full" else {}
        ),
        missing=_missing,
        is_neutral=KNOWN.is_neutral,
        not_modelled=lambda option: KNOWN.not_modelled(option) or reason_of(option),
        known=KNOWN.names,
    ),
    order=5,
)
