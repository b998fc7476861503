"""torchtitan 0.3: `--module M --config F`, and options of the form `--section.key`
(torchtitan/config/configs.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from autotune.launch.common import (
    length_of_text,
    nearest_experts,
    neighbours_share_experts,
    not_padded,
    offloaded_by_fsdp,
    refuse_precision_of_scripts,
)
from autotune.launch.errors import LaunchError
from autotune.launch.facts import MODEL, Facts, Launch
from autotune.launch.rows import Options, Row, Table, row, shown, truth, typed
from autotune.launch.scripts import header, one_line, option_lines, script, torchrun
from autotune.launch.target import Files, Note, Target, add_target
from autotune.launch.targets.torchtitan_limits import LIMITS, POLICIES
from autotune.launch.targets.torchtitan_models import REGISTERED, model_called, registered
from autotune.launch.targets.torchtitan_pipeline import CSV, PIPELINE_ROWS, SINGLE
from autotune.launch.torch_schedule import (
    format_csv,
    schedule_of,
)
from distir.factoring import EXPERT_ORDERS
from distir.schedules import find_schedule
from distir.strategy import PLACEMENT

if TYPE_CHECKING:
    from autotune.launch.sources import Source

_P = "--parallelism."
_T = "--training."
PROGRAM = "torchtitan.train"
RECOMPUTE = "activation_checkpoint"
"""The word that ends a command line: `activation_checkpoint:full`."""


# --- the model ------------------------------------------------------------------------------------


def _write_model(facts: Facts) -> Options:
    known = registered(facts)
    if known is None:
        return {"--module": "MODULE", "--config": "CONFIG"}
    return {"--module": known.module, "--config": known.config}


def _read_model(options: Options, facts: Facts) -> Facts:
    module, config = str(options.get("--module", "")), str(options.get("--config", ""))
    name = model_called(module, config)
    if name is None and not facts.get("model_given"):
        given = f"--module {module} --config {config} is not a known registry function"
        fault = given if module or config else "neither --module nor --config is stated"
        raise LaunchError(f"{fault}; state the model with --model")
    return {"zoo": name, **({"model_source": name} if name else {})}


def _number(options: Options, facts: Facts, option: str, field: str, default: int) -> int:
    """A whole number, by default the registry function's, or the framework's."""
    known = registered(facts)
    usual = getattr(known, field) if known is not None and field else default
    return typed(int, option, options.get(option, usual), 1)


def _degree(fact: str, key: str, field: str = "") -> Row:
    """A row for a degree, which is always written: registry functions have defaults of their
    own."""
    option = f"{_P}{key}"

    def read(options: Options, facts: Facts) -> Facts:
        return {fact: _number(options, facts, option, field, 1)}

    return row((fact,), (option,), lambda facts: {option: facts[fact]}, read)


# --- replicas and batch ---------------------------------------------------------------------------

_REPLICATE, _SHARD = f"{_P}data_parallel_replicate_degree", f"{_P}data_parallel_shard_degree"
_RESHARD = f"{_P}fsdp_reshard_after_forward"


def _write_replicas(facts: Facts) -> Options:
    dp, part = facts["dp"], facts["zero_degree"]
    if facts["zero"] == 0:
        return {_REPLICATE: dp, _SHARD: 1}
    shard = part or dp
    kept = facts["keep_gathered"] == "parameters"
    return {_REPLICATE: dp // shard, _SHARD: shard, _RESHARD: "never" if kept else "always"}


def _read_replicas(options: Options, facts: Facts) -> Facts:
    others = facts["tp"] * facts["pp"] * facts["cp"]
    copies = typed(int, _REPLICATE, options.get(_REPLICATE, 1))
    shard = typed(int, _SHARD, options.get(_SHARD, -1))
    if shard < 0:
        shard = facts["devices"] // (others * max(1, copies))
    if copies < 1 or shard < 1 or copies * shard * others != facts["devices"]:
        raise LaunchError(
            f"{facts['devices']} devices are not dp_replicate {copies} × dp_shard {shard} × cp "
            f"{facts['cp']} × tp {facts['tp']} × pp {facts['pp']}; state their number with "
            "--devices"
        )
    dp = copies * shard
    if shard * facts["cp"] == 1:
        return {"dp": dp, "zero": 0, "zero_degree": 0, "keep_gathered": "none"}
    word = str(options.get(_RESHARD, "default")).lower()
    if word not in ("default", "always", "never"):
        raise LaunchError(f"{_RESHARD} is {shown(word)}; expected default, always or never")
    kept = word == "never" or (word == "default" and facts["pp"] > 1)
    return {
        "dp": dp,
        "zero": 3,
        "zero_degree": shard if copies > 1 else 0,
        "keep_gathered": "parameters" if kept else "none",
    }


_LOCAL, _GLOBAL = f"{_T}local_batch_size", f"{_T}global_batch_size"
_MICRO = f"{_P}pipeline_parallel_microbatch_size"


def _write_batch(facts: Facts) -> Options:
    micro, batch = facts["micro_batch"], facts["batch_size"]
    if facts["pp"] == 1:
        return {_LOCAL: micro, _GLOBAL: batch}
    return {_LOCAL: micro * facts["microbatches"], _GLOBAL: batch, _MICRO: micro}


def _read_batch(options: Options, facts: Facts) -> Facts:
    local = _number(options, facts, _LOCAL, "local_batch", 8)
    whole = local * facts["dp"]
    batch = facts.get("batch_size") or typed(int, _GLOBAL, options.get(_GLOBAL, -1))
    batch = batch if batch > 0 else whole
    times, rest = divmod(batch, whole) if whole > 0 else (0, 1)
    if rest or not times:
        raise LaunchError(
            f"the batch ({batch}) is not divisible by {local} ({_LOCAL}) on dp = {facts['dp']} "
            "replicas; state it with --batch-size, or the devices with --devices"
        )
    if facts["pp"] == 1:
        return {"micro_batch": local, "microbatches": times, "batch_size": batch}
    micro = typed(int, _MICRO, options.get(_MICRO, 1), 1)
    count, rest = divmod(local, micro)
    if rest or times > 1:
        raise LaunchError(
            f"{times} pipelines per step, of {local} samples in microbatches of {micro}, are not "
            "simulated; expected one pipeline of whole microbatches"
        )
    return {"micro_batch": micro, "microbatches": count, "batch_size": batch}


# --- memory and numbers ---------------------------------------------------------------------------

_WITHOUT_SP = f"{_P}no_enable_sequence_parallel"
_WITH_SP = f"{_P}enable_sequence_parallel"


def _read_sequence_parallel(options: Options, facts: Facts) -> Facts:
    off = truth(_WITHOUT_SP, options.get(_WITHOUT_SP, False))
    on = truth(_WITH_SP, options.get(_WITH_SP, True))
    return {"sequence_parallel": facts["tp"] > 1 and on and not off}


def _read_recompute(options: Options, facts: Facts) -> Facts:
    known = registered(facts)
    usual = known.recompute if known is not None else "alternate"
    word = options.get(RECOMPUTE)
    if word is None:
        return {"recompute": usual}
    ours = {theirs: ours for ours, theirs in POLICIES.items()}
    if word not in ours:
        raise LaunchError(
            f"{RECOMPUTE}:{word} is not simulated; expected one of {', '.join(POLICIES.values())}"
        )
    return {"recompute": ours[str(word)]}


_PARAM, _DTYPE = f"{_T}mixed_precision_param", f"{_T}dtype"
_PURE = "pure-bf16"
_PRECISIONS = {
    ("bfloat16", "float32"): "bf16",
    ("float32", "float32"): "fp32",
    ("bfloat16", "bfloat16"): _PURE,
}
"""By the types in which parameters are read, and in which they rest."""


def _write_precision(facts: Facts) -> Options:
    if facts["optimizer"] != "adam":
        raise LaunchError(
            f"optimizer = {facts['optimizer']} cannot be stated: registry functions have AdamW"
        )
    if facts["precision"] == _PURE:
        return {_PARAM: "bfloat16", _DTYPE: "bfloat16"}
    refuse_precision_of_scripts("torchtitan", facts["precision"])
    known = registered(facts)
    if known is not None and facts["precision"] == known.precision:
        return {_PARAM: "bfloat16"}
    if facts["precision"] not in ("bf16", "fp32"):
        raise LaunchError(
            f"precision = {facts['precision']} is not an option of torchtitan: a converter of the "
            "registry function states it"
        )
    return {_PARAM: "bfloat16" if facts["precision"] == "bf16" else "float32"}


def _read_precision(options: Options, facts: Facts) -> Facts:
    types = options.get(_PARAM, "bfloat16"), options.get(_DTYPE, "float32")
    if types not in _PRECISIONS:
        raise LaunchError(
            f"{_PARAM} {types[0]} with {_DTYPE} {types[1]} is not simulated; expected one of "
            f"{', '.join(' with '.join(each) for each in _PRECISIONS)}"
        )
    precision, known = _PRECISIONS[types], registered(facts)
    if known is not None and known.precision == "fp8":
        if precision != "bf16":
            raise LaunchError(
                f"{_PARAM} {types[0]} with {_DTYPE} {types[1]} is not simulated for "
                f"{known.config}, whose products are in fp8; expected bfloat16 with float32"
            )
        precision = known.precision
    return {
        "precision": precision,
        "gradient_precision": "fp32",
        "optimizer": "adam",
        "mode": "training",
    }


_COMPILED, _NOT_COMPILED = "--compile.enable", "--compile.no_enable"


def _write_compiled(facts: Facts) -> Options:
    known = registered(facts)
    if _compiles(facts):
        return {_COMPILED: True}
    return {_NOT_COMPILED: True} if known is not None and known.compiled else {}


def _read_compiled(options: Options, facts: Facts) -> Facts:
    known = registered(facts)
    usual = known is not None and known.compiled
    on = truth(_COMPILED, options.get(_COMPILED, usual))
    return {"compiled": on and not truth(_NOT_COMPILED, options.get(_NOT_COMPILED, False))}


ROWS: tuple[Row, ...] = (
    row(("zoo",), ("--module", "--config"), _write_model, _read_model),
    _degree("tp", "tensor_parallel_degree", "tp"),
    _degree("pp", "pipeline_parallel_degree"),
    _degree("cp", "context_parallel_degree"),
    _degree("ep", "expert_parallel_degree", "ep"),
    row(
        ("dp", "zero", "zero_degree", "keep_gathered"),
        (_SHARD, _REPLICATE, _RESHARD),
        _write_replicas,
        _read_replicas,
    ),
    row(
        ("etp",),
        (),
        lambda facts: {},
        lambda options, facts: nearest_experts(facts, facts["ep"], 1, "etp"),
        "experts are not split",
    ),
    neighbours_share_experts("devices of tp, then of cp, then replicas"),
    row(
        ("microbatches", "micro_batch", "batch_size"),
        (_LOCAL, _GLOBAL, _MICRO),
        _write_batch,
        _read_batch,
    ),
    length_of_text(
        f"{_T}seq_len",
        "torchtitan",
        lambda options, facts: {
            "sequence_length": _number(options, facts, f"{_T}seq_len", "sequence_length", 2048)
        },
    ),
    *PIPELINE_ROWS,
    row(
        ("sequence_parallel",),
        (_WITHOUT_SP, _WITH_SP),
        lambda facts: (
            {_WITHOUT_SP: True} if facts["tp"] > 1 and not facts["sequence_parallel"] else {}
        ),
        _read_sequence_parallel,
        "on with tp",
    ),
    row(
        ("cp_exchange",),
        (f"{_P}context_parallel_load_balancer",),
        lambda facts: {},
        lambda options, facts: {"cp_exchange": "gather"},
        "keys and values are gathered",
    ),
    row(
        ("placement",),
        (),
        lambda facts: {},
        lambda options, facts: {"placement": PLACEMENT},
        "tp, cp, dp, pp from the nearest",
    ),
    row(
        ("recompute",),
        (RECOMPUTE,),
        lambda facts: {RECOMPUTE: POLICIES[facts["recompute"]]},
        _read_recompute,
    ),
    row(("precision", "optimizer"), (_PARAM, _DTYPE), _write_precision, _read_precision),
    offloaded_by_fsdp(f"{_T}enable_cpu_offload"),
    not_padded("torchtitan"),
    row(("compiled",), (_COMPILED, _NOT_COMPILED), _write_compiled, _read_compiled),
)


def _compiles(facts: Facts) -> bool:
    """Whether blocks are compiled: torch.compile refuses schedules that split the backward pass."""
    return bool(facts["compiled"]) and not _splits(facts)


def _splits(facts: Facts) -> bool:
    return facts["pp"] > 1 and find_schedule(facts["schedule"]).splits_backward


# --- files ----------------------------------------------------------------------------------------


def _approximated(facts: Facts) -> Iterator[Note]:
    if facts["gradient_precision"] != "fp32" and facts["precision"] != "fp32":
        yield Note(
            "gradient_precision",
            "gradients are reduced only in fp32, with twice the bytes: see “as torchtitan runs "
            "it”; search with --gradient-precision fp32",
        )
    if facts["precision"] == _PURE:
        yield Note(
            "precision",
            "gradients that were reduced in fp32 are kept in bf16, in half the memory that is "
            "counted for them",
        )
    if facts["recompute"] == "full":
        yield Note(
            "recompute", "a layer runs again only as far as its backward pass needs (needed)"
        )
    if facts["pp"] > 1 and SINGLE.get(facts["schedule"]) is None:
        yield Note("schedule", "the order is stated as a file, which torch's own checker validates")
    if facts["pp"] > 1 and find_schedule(facts["schedule"]).overlaps:
        yield Note(
            "schedule",
            "torch's runtime runs the two passes of an overlapped pair one after the other: see "
            "“as torchtitan runs it”",
        )
    if facts["compiled"] and _splits(facts):
        yield Note("compile", "torch.compile is left off: it refuses a backward pass in two parts")
    if facts["compiled"] and not _splits(facts):
        yield Note("compile", "blocks are compiled (--compile.enable), as simulated")


def _as_run(facts: Facts) -> Mapping[str, Any]:
    stack = "fsdp-compiled" if _compiles(facts) else "fsdp-eager"
    return {"stack": stack, "gradient_precision": "fp32"}


def _dropout(facts: Facts) -> Iterator[Note]:
    """What a registry function of one's own is to drop."""
    parts = {name: facts.get(MODEL + name) for name in ("dropout", "attention_dropout")}
    dropped = " and ".join(f"{name} = {part:g}" for name, part in parts.items() if part)
    if dropped or not facts["dropout"]:
        yield Note(
            "dropout",
            f"no option states it: the registry function's model must have {dropped or 'none'}",
        )


def _missing(facts: Facts) -> Iterator[Note]:
    if registered(facts) is None:
        other = REGISTERED.get(facts["zoo"])
        more = (
            f" in {facts['precision']}, as {other.config} is in {other.precision}" if other else ""
        )
        yield Note("model", f"MODULE and CONFIG: your own registry function for it{more}")
        yield from _dropout(facts)
    yield Note("data", "--dataloader.dataset, unless the registry function's is used")
    yield Note("tokenizer", "--hf_assets_path: the folder of the tokenizer")
    yield Note("training", "--training.steps, --optimizer.lr, --checkpoint: learning, checkpoints")


def _write(launch: Launch, options: Options) -> Files:
    last = [[f"{RECOMPUTE}:{options[RECOMPUTE]}"]]
    rest = {name: given for name, given in options.items() if name != RECOMPUTE}
    command = [*torchrun(launch, "-m", PROGRAM), *option_lines(rest)]
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    text = script(header(launch, TORCHTITAN.label), command, environment, last)
    files = {"launch.sh": text}
    if CSV in options:
        files[options[CSV]] = format_csv(schedule_of(launch.strategy))
    return Files(one_line([*command, *last], environment), files)


SIGNS = frozenset((PROGRAM, f"{_P}tensor_parallel_degree", _LOCAL, _SHARD))


def _read(source: Source) -> Options | None:
    found = source.command(SIGNS, lambda word: word.startswith(f"{RECOMPUTE}:"))
    if found is None:
        return None
    options = {_canonical(name): given for name, given in found.options.items()}
    for word in found.words:
        if word.startswith(f"{RECOMPUTE}:"):
            options[RECOMPUTE] = word.partition(":")[2]
    if options.get(CSV) in ("", True):
        del options[CSV]
    if CSV in options:
        beside = source.beside(options[CSV])
        if beside is None:
            raise LaunchError(f"{CSV} names {options[CSV]}, which is not beside {source.path}")
        options[CSV] = (beside.path.stem, beside.text)
    return options


def _canonical(name: str) -> str:
    """Dashes and underscores are the same to torchtitan's parser."""
    plain = name.removeprefix("--").replace("-", "_")
    return f"--{plain}" if "." in plain else name


_ASYNC_TP = "--compile.enable_async_tensor_parallel"


def _assumed(options: Options, facts: Facts) -> Iterator[Note]:
    known = registered(facts)
    if known is not None and known.async_tp and facts["tp"] > 1 and _ASYNC_TP not in options:
        yield Note(_ASYNC_TP, f"{known.config} states it; {_REASONS[_ASYNC_TP]}")


_NEUTRAL = (
    "--job.", "--dump_folder", "--hf_assets_path", "--metrics.", "--checkpoint.", "--profiler.",
    "--profiling.", "--optimizer.", "--lr_scheduler.", "--dataloader.", "--comm.", "--debug.",
    "--validator.", "--training.steps", "--training.max_norm", "--training.gc_freq",
    "--training.gc_debug", "--parallelism.spmd_backend", "--loss.", "--compile.backend",
    "--compile.components", "--training.mixed_precision_reduce",
)  # fmt: skip

_REASONS = {
    _ASYNC_TP: "the software stack decides how far tp communication is hidden: see --stack",
    "--parallelism.enable_fsdp_symm_mem": "collectives are the usual ones",
    "--parallelism.context_parallel_ptrr_mask_key": "attention is causal over whole sequences",
}


_REMOVED = {
    "--job.config_file": "--module and --config, and the contents of the file as options",
}


TORCHTITAN = add_target(
    Target(
        name="torchtitan",
        version="0.3",
        summary="torchtitan 0.3: a registry function with options, and the schedule as a file",
        stack="fsdp-compiled",
        states_cuts=True,
        table=Table(ROWS),
        limits=LIMITS,
        write=_write,
        read=_read,
        approximated=_approximated,
        as_run=_as_run,
        as_run_strategy=lambda facts: (
            {"recompute": "needed"} if facts["recompute"] == "full" else {}
        ),
        missing=_missing,
        is_neutral=lambda option: option.startswith(_NEUTRAL),
        not_modelled=_REASONS.get,
        assumed=_assumed,
        removed=_REMOVED,
        usual={"gradient_precision": "fp32"},
        searches={
            "recompute": ("none", "alternate", "full"),
            "expert_order": EXPERT_ORDERS,
            "etp": (0, 1),
        },
        own=("expert_order", "etp"),
        dry_run="COMM_MODE=fake_backend before the command, on one GPU, checks the configuration",
    ),
    order=3,
)
