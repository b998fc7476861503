"""DeepSpeed 0.19: the JSON file that `--deepspeed_config` names (deepspeed/runtime/config.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from autotune.launch.common import (
    CHECKPOINTING,
    LENGTHS,
    ONLY_TRAINING,
    USUAL_PLACEMENT,
    accumulated,
    adds_up_in_fp32,
    exchanges,
    length_of_script,
    model_file,
    no_pipeline,
    not_padded,
    notes_on_both,
    one_schedule,
    refuse_precision_of_scripts,
    replicas_left,
    unsaid,
)
from autotune.launch.errors import LaunchError
from autotune.launch.facts import Facts, Launch
from autotune.launch.known import known_options
from autotune.launch.limits import Limit, only
from autotune.launch.nested import as_json, flattened
from autotune.launch.rows import AUTO, Options, Row, Table, row, shown, truth, typed, value
from autotune.launch.script_options import OPTIMIZER, not_simulated, reason_of
from autotune.launch.scripts import header, one_line, script
from autotune.launch.sources import processes_of
from autotune.launch.target import Files, Note, Target, add_target
from autotune.launch.targets.accelerate import stated_by
from distir.strategy import PLACEMENT

if TYPE_CHECKING:
    from autotune.launch.sources import Source

CONFIG = "ds_config.json"


def _read_exchange(options: Options, facts: Facts) -> Facts:
    return {"cp_exchange": "all-to-all" if facts["cp"] > 1 else "gather"}


def _read_precision(options: Options, facts: Facts) -> Facts:
    names = {f"{name}.enabled": name for name in ("bf16", "fp16")}
    on = [name for n, name in names.items() if truth(n, options.get(n, False))]
    if len(on) > 1:
        raise LaunchError("bf16.enabled and fp16.enabled are both true; expected one")
    return {"precision": on[0] if on else "fp32"}


def _write_precision(facts: Facts) -> Options:
    name = facts["precision"]
    if name == "fp8":
        raise LaunchError(
            "precision = fp8 is not an option of DeepSpeed: the model's layers state it"
        )
    refuse_precision_of_scripts("DeepSpeed", name)
    return {} if name == "fp32" else {f"{name}.enabled": True}


_ACCUMULATED, _SENT = "data_types.grad_accum_dtype", "communication_data_type"
_DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
}
"""Precisions by what DeepSpeed calls them."""


def _adds_up_as_computed(facts: Facts) -> bool:
    """Whether gradients can be added up in no other type than they are computed in: without ZeRO
    DeepSpeed refuses others."""
    return facts["zero"] == 0 and facts["precision"] != "fp32"


def _write_gradients(facts: Facts) -> Options:
    compute = facts["gradient_precision"] == "compute" or _adds_up_as_computed(facts)
    word = facts["precision"] if compute else "fp32"
    return {_ACCUMULATED: word, _SENT: word}


def _gradient_type(option: str, options: Options, facts: Facts) -> str:
    """The type of an option, by default that in which the model computes."""
    given = options.get(option)
    word = facts["precision"] if given is None else typed(str, option, given).lower()
    if _DTYPES.get(word) not in ("fp32", facts["precision"]):
        known = " and ".join(dict.fromkeys(("fp32", facts["precision"])))
        raise LaunchError(
            f"{option} is {shown(given)}; for a model in {facts['precision']}, only {known} can be "
            "simulated"
        )
    return _DTYPES[word]


def _read_gradients(options: Options, facts: Facts) -> Facts:
    compute = _gradient_type(_ACCUMULATED, options, facts) == facts["precision"]
    if not compute and _adds_up_as_computed(facts):
        raise LaunchError(
            f"{_ACCUMULATED} is {shown(options[_ACCUMULATED])} without ZeRO, which DeepSpeed "
            f"refuses; expected {facts['precision']}, or zero_optimization.stage of 1 to 3"
        )
    return {"gradient_precision": "compute" if compute else "fp32"}


_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("AdamW", {}),
    "momentum": ("SGD", {"optimizer.params.momentum": 0.9}),
    "sgd": ("SGD", {"optimizer.params.momentum": 0.0}),
}


def _write_optimizer(facts: Facts) -> Options:
    kind, others = _OPTIMIZERS[facts["optimizer"]]
    return {"optimizer.type": kind, **others}


def _read_optimizer(options: Options, facts: Facts) -> Facts:
    kind = str(options.get("optimizer.type", "AdamW")).lower()
    if kind == "sgd":
        momentum = options.get("optimizer.params.momentum", 0.0)
        return {"optimizer": "momentum" if momentum else "sgd"}
    if "adam" not in kind:
        raise LaunchError(f"optimizer.type is {kind!r}; only Adam and SGD are simulated")
    return {"optimizer": "adam"}


_ON_HOST = {
    "optimizer": "zero_optimization.offload_optimizer.device",
    "parameters": "zero_optimization.offload_param.device",
}
"""By what is offloaded the option that says where to."""

_CHECKPOINTS_ON_HOST = "activation_checkpointing.cpu_checkpointing"


def _write_offload(facts: Facts) -> Options:
    offloads = facts["offload"].split(",")
    found: Options = {option: "cpu" for name, option in _ON_HOST.items() if name in offloads}
    return found | ({_CHECKPOINTS_ON_HOST: True} if "activations" in offloads else {})


def _read_offload(options: Options, facts: Facts) -> Facts:
    found: list[str] = []
    for name, option in _ON_HOST.items():
        device = str(options.get(option, "none")).lower()
        if device not in ("none", "cpu"):
            raise LaunchError(f"{option} is {shown(device)}; only cpu and none are simulated")
        found += [name] if device == "cpu" else []
    if truth(_CHECKPOINTS_ON_HOST, options.get(_CHECKPOINTS_ON_HOST, False)):
        found.append("activations")
    return {"offload": ",".join(found)}


_OVERLAP = "zero_optimization.overlap_comm"


def _write_overlap(facts: Facts) -> Options:
    """Gradients are reduced beside the backward pass; by default with ZeRO 3 alone."""
    return {_OVERLAP: True} if facts["zero"] and facts["dp"] * facts["cp"] > 1 else {}


_RECOMPUTED = "activation_checkpointing.partition_activations"


def _read_recompute(options: Options, facts: Facts) -> Facts:
    """The section says how, an option of transformers' Trainer whether."""
    there = any(name.startswith("activation_checkpointing") for name in options)
    whole = truth(CHECKPOINTING, options.get(CHECKPOINTING, there))
    return {"recompute": "full" if whole else "none"}


_STAGES = "pipeline.stages"

ROWS: tuple[Row, ...] = (
    value("tp", "tensor_parallel.autotp_size", 1, least=1),
    value("pp", _STAGES, 1, least=1),
    value("cp", "sequence_parallel_size", 1, least=1),
    row(("cp_exchange",), (), lambda facts: {}, _read_exchange, "Ulysses: heads are exchanged"),
    replicas_left(),
    length_of_script(),
    accumulated(
        "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
    ),
    value("zero", "zero_optimization.stage", 0, always=True),
    row(
        ("offload",),
        (*_ON_HOST.values(), _CHECKPOINTS_ON_HOST),
        _write_offload,
        _read_offload,
    ),
    row((), (_OVERLAP,), _write_overlap, lambda options, facts: {}),
    row(
        ("recompute",),
        (_RECOMPUTED, CHECKPOINTING),
        lambda facts: {_RECOMPUTED: False} if facts["recompute"] == "full" else {},
        _read_recompute,
    ),
    unsaid("schedule", "1f1b", "TrainSchedule, which is 1f1b"),
    unsaid("chunks", 1, "one stage per rank"),
    unsaid("placement", PLACEMENT, "pipe, data, model"),
    row(("precision",), ("bf16.enabled", "fp16.enabled"), _write_precision, _read_precision),
    row(("gradient_precision",), (_ACCUMULATED, _SENT), _write_gradients, _read_gradients),
    row(
        ("optimizer",),
        ("optimizer.type", "optimizer.params.momentum"),
        _write_optimizer,
        _read_optimizer,
    ),
    unsaid("mode", "training", "the script trains"),
    not_padded("DeepSpeed"),
)


def _pipeline_zero(zero: int, pp: int) -> str | None:
    if zero < 2 or pp == 1:
        return None
    return f"zero = {zero} with pp = {pp}: PipelineModule requires a stage below 2"


def _pipeline_alone(pp: int, tp: int, cp: int) -> str | None:
    if pp == 1 or tp * cp == 1:
        return None
    return f"pp = {pp} with tp = {tp} and cp = {cp}: the pipeline engine supports neither"


def _offload_of_zero(offload: str, zero: int) -> str | None:
    least = 3 if "parameters" in offload else 1 if "optimizer" in offload else 0
    if zero >= least:
        return None
    return f"offload = {offload} with zero = {zero}: only stage {least} or higher can offload that"


def _offload_of_checkpoints(offload: str, recompute: str) -> str | None:
    if "activations" not in offload or recompute == "full":
        return None
    return (
        f"offload = {offload} with recompute = {recompute}: cpu_checkpointing keeps only "
        "checkpoints on the host: the inputs of layers that are recomputed in full"
    )


LIMITS: tuple[Limit, ...] = (
    ONLY_TRAINING,
    USUAL_PLACEMENT,
    Limit("a pipeline has ZeRO 0 or 1", _pipeline_zero, ({"zero": 1},)),
    Limit("a pipeline is alone", _pipeline_alone, no_pipeline),
    Limit("ZeRO offloads", _offload_of_zero, ({"zero": 1}, {"zero": 3}, {"offload": ""})),
    Limit(
        "checkpoints are offloaded",
        _offload_of_checkpoints,
        ({"recompute": "full"}, {"offload": ""}),
    ),
    one_schedule("1f1b"),
    exchanges({"all-to-all": "Ulysses"}),
    only(
        "recompute",
        ("none", "full"),
        "the JSON states how, and the model states what: all layers",
        {"recompute": "full"},
        {"recompute": "none"},
    ),
)


def _missing(facts: Facts) -> Iterator[Note]:
    yield Note(
        "script",
        f"train.py: your own script, which calls deepspeed.initialize and takes {LENGTHS[0]}",
    )
    yield Note("optimizer", "optimizer.params.lr and the other parameters of the optimizer")
    if facts["pp"] > 1:
        yield Note(
            "pipeline",
            f"the script must build a PipelineModule(num_stages={facts['pp']}): pipeline.stages "
            "alone has no effect",
        )
    if facts["recompute"] == "full":
        yield Note("recompute", "the script must checkpoint every layer: the JSON states only how")
    if facts["cp"] > 1:
        yield Note("cp", "the script must use DistributedAttention (Ulysses)")


def _approximated(facts: Facts) -> Iterator[Note]:
    if facts["pp"] > 1:
        yield Note(
            "stages", "PipelineModule cuts layers by parameters (partition_method), not by time"
        )
    if facts["zero"] and facts["pp"] == 1 and facts["dp"] * facts["cp"] > 1:
        yield Note(
            "overlap",
            "gradients are reduced during the backward pass (overlap_comm); the stack deepspeed, "
            "which describes the pipeline engine, reduces them after it",
        )
    if facts["gradient_precision"] != "compute" and _adds_up_as_computed(facts):
        yield Note(
            "gradient_precision",
            f"gradients are accumulated and sent in {facts['precision']}: without ZeRO, DeepSpeed "
            "refuses any other type; see “as deepspeed runs it”",
        )
    else:
        yield from notes_on_both(facts)


def _as_run(facts: Facts) -> Mapping[str, Any]:
    if _adds_up_as_computed(facts):
        return {"gradient_precision": "compute"}
    return adds_up_in_fp32(facts)


def _assumed(options: Options, facts: Facts) -> Iterator[Note]:
    added, sent = (_gradient_type(name, options, facts) for name in (_ACCUMULATED, _SENT))
    if added != sent:
        reason = (
            f"gradients are accumulated in {added}, and the simulation sends them in that type too"
        )
        yield Note(_SENT, reason, options.get(_SENT, sent))
    overlaps = truth(_OVERLAP, options.get(_OVERLAP, facts["zero"] == 3))
    if facts["zero"] and facts["dp"] * facts["cp"] > 1 and not overlaps:
        yield Note(
            _OVERLAP,
            "gradients are reduced after the backward pass there; in the simulation the software "
            "stack decides that: see --stack",
            False,
        )
    if facts["recompute"] == "full" and CHECKPOINTING not in options:
        yield Note(
            "activation_checkpointing",
            "taken as recomputation of every layer: the JSON states how, the script states which",
        )


def _write(launch: Launch, options: Options) -> Files:
    nodes, per_node = launch.nodes
    command = [
        ["deepspeed"],
        ["--num_nodes", str(nodes), "--num_gpus", str(per_node)],
        ["train.py", "--deepspeed", "--deepspeed_config", CONFIG],
        *([[name, str(options[name])] for name in LENGTHS if name in options]),
    ]
    stated = {name: value for name, value in options.items() if name not in LENGTHS}
    environment: Mapping[str, str] = {}
    text = script(header(launch, DEEPSPEED.label), command, environment)
    return Files(
        one_line(command, environment),
        {"launch.sh": text, CONFIG: as_json(stated), **model_file(launch)},
    )


SIGNS = frozenset(("--deepspeed_config", "--deepspeed"))
STARTED_BY = frozenset(("--config_file", "--config-file", "--use_deepspeed", "--use-deepspeed"))
"""Options of accelerate, which may have DeepSpeed run."""
_KEYS = ("train_micro_batch_size_per_gpu", "zero_optimization", "train_batch_size")


def _read(source: Source) -> Options | None:
    if source.table is not None:
        if source.table.get("distributed_type") == "DEEPSPEED":
            return _of_accelerate(source, source, {}, {})
        return flattened(source.table) if any(key in source.table for key in _KEYS) else None
    command = source.command(SIGNS | STARTED_BY)
    if command is None:
        return None
    said, starter = command.options, stated_by(command.launcher)
    named = (command.launcher.get(name) for name in ("--config_file", "--config-file"))
    name = next((each for each in named if each is not None), None)
    config = None if name is None else source.beside(name)
    file = (config.table if config is not None else None) or {}
    kind = starter.get("distributed_type", file.get("distributed_type"))
    if kind == "DEEPSPEED":
        return _of_accelerate(source, config or source, starter, said)
    if file:
        return None
    if not any(name in said for name in SIGNS):
        return None
    named = (said.get(option) for option in ("--deepspeed_config", "--deepspeed"))
    name = next((n for n in named if isinstance(n, str) and n.endswith(".json")), None)
    beside = source.beside(name) if name else None
    if name is None:
        raise LaunchError(
            f"{source.path}: --deepspeed names no file, so the script itself makes the "
            "configuration of DeepSpeed; write it into a JSON file, and name that with "
            "--deepspeed_config"
        )
    if beside is None or beside.table is None:
        raise LaunchError(f"{source.path}: {name}, DeepSpeed's file, is not beside it")
    found = _with_script(flattened(beside.table), said)
    if "--num-gpus" in said:
        found["--nproc-per-node"] = said["--num-gpus"]
        if "--hostfile" not in said or "--num-nodes" in said:
            found["--nnodes"] = said.get("--num-nodes", 1)
    for name in ("--nnodes", "--nproc-per-node", "--hostfile"):
        if name in said:
            found[name] = said[name]
    return found


_TRAINER = {
    "train_micro_batch_size_per_gpu": "--per_device_train_batch_size",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
    "bf16.enabled": "--bf16",
    "fp16.enabled": "--fp16",
}
"""What `auto` stands for: the options of transformers' Trainer, which puts them in."""
_ENABLED = tuple(name for name in _TRAINER if name.endswith(".enabled"))


def _with_script(file: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a file, with what the script's own options say in place of `auto`. Options
    that the Trainer is not given are off."""
    found = {name: given for name, given in file.items() if name != "train_batch_size"}
    if file.get("train_batch_size", AUTO) != AUTO:
        found["train_batch_size"] = file["train_batch_size"]
    for name, option in _TRAINER.items():
        if found.get(name) == AUTO and option in said:
            found[name] = said[option]
        elif found.get(name) == AUTO and name.endswith(".enabled") and said:
            found[name] = False
        elif found.get(name) == AUTO and name == "gradient_accumulation_steps" and said:
            del found[name]
    elsewhere = (OPTIMIZER,) if file.get("optimizer.type", AUTO) != AUTO else ()
    read = {name: said[name] for name in (*LENGTHS, CHECKPOINTING) if name in said}
    return {**found, **read, **not_simulated(said, *elsewhere)}


_READ_OF_ACCELERATE = ("distributed_type", "mixed_precision", "num_processes", "num_machines")
_READ_OF_SECTION = (
    "deepspeed_config_file", "zero_stage", "gradient_accumulation_steps",
    "offload_optimizer_device", "offload_param_device",
)  # fmt: skip


_OF_ACCELERATE = known_options("accelerate")


def _others_of_accelerate(table: Mapping[str, Any], section: Mapping[str, Any]) -> Options:
    """What a file of accelerate has beside what is read of it and what does not matter; of its
    section about DeepSpeed everything else."""
    rest = {name: given for name, given in table.items() if name not in _READ_OF_ACCELERATE}
    others = {
        name: given
        for name, given in flattened(rest).items()
        if given and not _OF_ACCELERATE.is_neutral(name)
    }
    more = {name: given for name, given in section.items() if name not in _READ_OF_SECTION}
    return {**others, **flattened({_SECTION: more} if more else {})}


_SECTION = "deepspeed_config"
_BY_SECTION = {
    "zero_optimization.stage": "zero_stage",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "zero_optimization.offload_optimizer.device": "offload_optimizer_device",
    "zero_optimization.offload_param.device": "offload_param_device",
}
"""What accelerate puts into DeepSpeed's file, or in place of `auto` there, by its own names."""


def _of_accelerate(
    source: Source, config: Source, starter: Mapping[str, Any], said: Mapping[str, Any]
) -> Options:
    """The options in a file of accelerate that has DeepSpeed run, in a file that it names or in
    words of its own; before it goes what the options of `accelerate launch` say."""
    start = f"{_SECTION}."
    stated = {n.removeprefix(start): g for n, g in starter.items() if n.startswith(start)}
    table = {**(config.table or {}), **{n: starter[n] for n in starter if not n.startswith(start)}}
    listed: object = table.pop(_SECTION, None)
    section = {**(cast("dict[str, Any]", listed) if isinstance(listed, dict) else {}), **stated}
    precision = str(said.get("--mixed_precision", table.get("mixed_precision", "no")))
    file = _file_of_accelerate(source, config, section)
    file |= _others_of_accelerate(table, section)
    file |= {n: n == f"{precision}.enabled" for n in _ENABLED if file.get(n) == AUTO}
    found = _with_script(file, said)
    count, machines = (table.get(f"num_{name}") for name in ("processes", "machines"))
    return found if count is None else {**found, **processes_of(count, machines)}


def _file_of_accelerate(
    source: Source, config: Source, section: Mapping[str, Any]
) -> dict[str, Any]:
    """The file that DeepSpeed gets: one that accelerate is told, or one that it makes."""
    said = {name: section[ours] for name, ours in _BY_SECTION.items() if ours in section}
    named: object = section.get("deepspeed_config_file")
    if named is None:
        left = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        usual = {"zero_optimization.stage": 2, **dict.fromkeys((*left, *_ENABLED), AUTO)}
        return {**usual, **said}
    beside = source.beside(named)
    if beside is None or beside.table is None:
        raise LaunchError(f"{config.path}: {shown(named)} is not beside it")
    file = flattened(beside.table)
    return {name: said.get(name, AUTO) if given == AUTO else given for name, given in file.items()}


KNOWN = known_options("deepspeed")


def _not_modelled(option: str) -> str | None:
    """Why an option is not simulated: one of DeepSpeed, of a script, or of accelerate."""
    found = KNOWN.not_modelled(option) or reason_of(option)
    if found is not None or option.startswith(f"{_SECTION}."):
        return found
    return _OF_ACCELERATE.not_modelled(option)


DEEPSPEED = add_target(
    Target(
        name="deepspeed",
        version="0.19",
        summary="DeepSpeed 0.19: the JSON file, and what the script must do",
        stack="deepspeed",
        table=Table(ROWS),
        limits=LIMITS,
        write=_write,
        read=_read,
        approximated=_approximated,
        as_run=_as_run,
        missing=_missing,
        assumed=_assumed,
        is_neutral=KNOWN.is_neutral,
        not_modelled=_not_modelled,
        known=KNOWN.names,
    ),
    order=4,
)
