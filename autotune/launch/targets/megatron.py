"""Megatron-LM: the options of `pretrain_gpt.py` of megatron-core 0.19 (megatron/training)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from autotune.launch.common import (
    adds_up_in_fp32,
    length_of_text,
    nearest_experts,
    neighbours_share_experts,
    unsaid,
)
from autotune.launch.errors import LaunchError
from autotune.launch.facts import MODEL, Cuts, Facts, Launch
from autotune.launch.known import known_options
from autotune.launch.layout import format_layout, parse_layout
from autotune.launch.rows import (
    Options,
    Row,
    Table,
    as_word,
    at_most_one,
    flag,
    missing,
    row,
    shown,
    truth,
    typed,
    value,
    words,
)
from autotune.launch.scripts import header, one_line, option_lines, script, torchrun
from autotune.launch.target import Files, Note, Target, add_target
from autotune.launch.targets.megatron_core import (
    EXCHANGES,
    LIMITS,
    PLACEMENTS,
    approximations,
    expert_tensor_parallel,
    group_size,
    modules_recomputed,
)
from autotune.launch.targets.megatron_model import (
    DISPATCHER,
    DISPATCHERS,
    EXCHANGING,
    MODEL_ROWS,
    PADDED_VOCABULARY,
    unstated,
)
from distir.factoring import EXPERT_ORDERS
from distir.limits import MOST_MICROBATCHES

if TYPE_CHECKING:
    from autotune.launch.sources import Source

# --- devices --------------------------------------------------------------------------------------


def _read_dp(options: Options, facts: Facts) -> Facts:
    others = facts["tp"] * facts["pp"] * facts["cp"]
    dp, rest = divmod(facts["devices"], others)
    if rest or not dp:
        raise LaunchError(
            f"{facts['devices']} devices are not divisible by tp {facts['tp']} × pp {facts['pp']} "
            f"× cp {facts['cp']} = {others}; state the number of devices with --devices"
        )
    return {"dp": dp}


def _write_experts(facts: Facts) -> Options:
    if MODEL + "experts.count" not in facts:
        return {}
    said: dict[str, Any] = {"--expert-model-parallel-size": facts["ep"]}
    if facts["tp"] > 1:
        said["--expert-tensor-parallel-size"] = expert_tensor_parallel(facts)
    return said


def _read_experts(options: Options, facts: Facts) -> Facts:
    usual = {"--expert-model-parallel-size": 1, "--expert-tensor-parallel-size": facts["tp"]}
    ep, tp = (typed(int, name, options.get(name, size), 1) for name, size in usual.items())
    if ep == 1 and tp != facts["tp"] and MODEL + "experts.count" in facts:
        raise LaunchError(
            f"--expert-tensor-parallel-size is {tp}, but with --expert-model-parallel-size 1 only "
            f"tp = {facts['tp']} is simulated"
        )
    return {"ep": ep, **nearest_experts(facts, ep, tp, "--expert-tensor-parallel-size")}


def _read_sequence_parallel(options: Options, facts: Facts) -> Facts:
    """With tp = 1 Megatron-LM switches it off."""
    on = truth("--sequence-parallel", options.get("--sequence-parallel", False))
    return {"sequence_parallel": on and facts["tp"] > 1}


_EXCHANGE = words("cp_exchange", "--cp-comm-type", EXCHANGES, "ring")


def _write_exchange(facts: Facts) -> Options:
    return _EXCHANGE.write(facts) if facts["cp"] > 1 else {}


def _read_exchange(options: Options, facts: Facts) -> Facts:
    return _EXCHANGE.read(options, facts) if facts["cp"] > 1 else {"cp_exchange": "gather"}


# --- the batch ------------------------------------------------------------------------------------

_RAMPS = ("--rampup-batch-size", "--step-batch-size-schedule")


def _read_batch(options: Options, facts: Facts) -> Facts:
    if "--micro-batch-size" not in options:
        raise missing("--micro-batch-size")
    micro = typed(int, "--micro-batch-size", options["--micro-batch-size"], 1)
    batch = facts.get("batch_size")
    if batch is None:
        ramp = next((name for name in _RAMPS if name in options), None)
        if ramp is not None:
            raise LaunchError(
                f"{ramp} lets the batch grow; state the one to simulate with --batch-size"
            )
        # Without a global batch there is one microbatch.
        usual = micro * facts["dp"]
        batch = typed(int, "--global-batch-size", options.get("--global-batch-size", usual), 1)
    return {"micro_batch": micro, "batch_size": batch, **microbatches(batch, micro, facts["dp"])}


def microbatches(batch: int, micro: int, dp: int) -> Facts:
    """The microbatches per replica that make a batch."""
    count, rest = divmod(batch, micro * dp)
    if rest or not count:
        raise LaunchError(
            f"the batch ({batch}) is not divisible by microbatches of {micro} on dp = {dp} "
            "replicas; state it with --batch-size, or the devices with --devices"
        )
    if count > MOST_MICROBATCHES:
        raise LaunchError(f"{count:,} microbatches; expected at most {MOST_MICROBATCHES:,}")
    return {"microbatches": count}


# --- the pipeline ---------------------------------------------------------------------------------

_LAYOUT = "--pipeline-model-parallel-layout"
_CHUNKS = "--num-virtual-stages-per-pipeline-rank"
_CHUNK_LAYERS = "--num-layers-per-virtual-pipeline-stage"
GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"
_FIRST, _LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
_WITH_EMBEDDING = "--account-for-embedding-in-pipeline-split"
_WITH_LOSS = "--account-for-loss-in-pipeline-split"


def _write_pipeline(facts: Facts) -> Options:
    said: dict[str, Any] = {}
    cuts: Cuts | None = facts.get("cuts")
    stages = facts["pp"] * facts["chunks"]
    if cuts is not None and not cuts.even:
        said[_LAYOUT] = format_layout(cuts)
    elif cuts is None and stages > 1 and LAYERS in facts:
        raise LaunchError(
            "a stage begins inside a layer, which no layout can state; try another pp"
        )
    if facts["schedule"] == "interleaved":
        if _LAYOUT not in said:
            said[_CHUNKS] = facts["chunks"]
        size = group_size(facts["pp"], facts["microbatches"])
        if size != facts["pp"]:
            said[GROUP] = size
    return said


def _read_pipeline(options: Options, facts: Facts) -> Facts:
    at_most_one("Megatron-LM", options, (_LAYOUT, _CHUNKS, _CHUNK_LAYERS))
    pp = facts["pp"]
    cuts = _read_cuts(options, pp, facts[LAYERS]) if LAYERS in facts else None
    stages = pp * _stated_chunks(options) if cuts is None else len(cuts.layers)
    chunks, rest = divmod(stages, pp)
    if rest:
        raise LaunchError(f"{stages} stages are not divisible by pp = {pp}")
    if pp == 1 and chunks > 1:
        raise LaunchError(f"{chunks} stages on one pipeline rank: interleaved stages need pp > 1")
    if chunks > 1:
        usual = group_size(pp, facts["microbatches"])
        size = typed(int, GROUP, options.get(GROUP, pp))
        if size != usual:
            raise LaunchError(
                f"microbatches go in groups of {size} ({GROUP}); with {facts['microbatches']} "
                f"microbatches only groups of {usual} are simulated"
            )
    return {
        "schedule": "interleaved" if chunks > 1 else "1f1b",
        "chunks": chunks,
        "cuts": None if pp == 1 else cuts,
    }


def _read_cuts(options: Options, pp: int, layers: int) -> Cuts:
    """The layers of all stages, as Megatron-LM finds them."""
    if _LAYOUT in options:
        cuts = parse_layout(typed(str, _LAYOUT, options[_LAYOUT]))
        if sum(cuts.layers) != layers:
            raise LaunchError(
                f"{_LAYOUT} has {sum(cuts.layers)} layers; the model has {layers} (--num-layers)"
            )
        return cuts
    first = options.get(_FIRST)
    last = options.get(_LAST)
    if first is not None or last is not None:
        ends = {0: first, pp - 1: last}
        known = {at: typed(int, _FIRST, n) for at, n in ends.items() if n is not None}
        inner, rest = divmod(layers - sum(known.values()), max(1, pp - len(known)))
        if rest or inner < 0 or _chunks(options, pp, layers) > 1:
            raise LaunchError(
                f"{_FIRST} and {_LAST} leave a number of layers that cannot be divided evenly "
                "among the other stages of one chunk each; state all stages with "
                "--pipeline-model-parallel-layout"
            )
        return Cuts(tuple(known.get(at, inner) for at in range(pp)))
    # The embedding, and the loss, may count as a layer of the first and last stage.
    front = int(truth(_WITH_EMBEDDING, options.get(_WITH_EMBEDDING, False)))
    back = int(truth(_WITH_LOSS, options.get(_WITH_LOSS, False)))
    chunks = _chunks(options, pp, layers + front + back)
    each, rest = divmod(layers + front + back, pp * chunks)
    if rest or not each:
        raise LaunchError(f"{layers} layers are not divisible by {pp * chunks} stages")
    counts = [each] * (pp * chunks)
    counts[0] -= front
    counts[-1] -= back
    return Cuts(tuple(counts))


def _stated_chunks(options: Options) -> int:
    """The chunks that options state where nobody knows the layers of a model. Raises `LaunchError`
    if they state them by layers."""
    for name in (_LAYOUT, _CHUNK_LAYERS, _FIRST, _LAST):
        if name in options:
            raise LaunchError(
                f"{name} counts layers, but the number of layers of the model is not known; state "
                f"stages with {_CHUNKS}, or leave it out"
            )
    return typed(int, _CHUNKS, options.get(_CHUNKS, 1), 1)


def _chunks(options: Options, pp: int, layers: int) -> int:
    if _CHUNKS in options:
        return typed(int, _CHUNKS, options[_CHUNKS], 1)
    if _CHUNK_LAYERS not in options:
        return 1
    size = typed(int, _CHUNK_LAYERS, options[_CHUNK_LAYERS], 1)
    chunks, rest = divmod(layers, pp * size)
    if rest or not chunks:
        raise LaunchError(
            f"{layers} layers are not divisible by pp {pp} × {size} ({_CHUNK_LAYERS})"
        )
    return chunks


# --- memory ---------------------------------------------------------------------------------------

_SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
_STRATEGY = "--data-parallel-sharding-strategy"
_INSTANCES = "--num-distributed-optimizer-instances"


def _write_zero(facts: Facts) -> Options:
    zero, part = facts["zero"], facts["zero_degree"]
    said: dict[str, Any] = {}
    if zero == 1:
        said["--use-distributed-optimizer"] = True
    elif zero:
        said["--use-megatron-fsdp"] = True
        said[_STRATEGY] = _SHARDED[zero]
        said["--use-distributed-optimizer"] = True
        said["--ckpt-format"] = "fsdp_dtensor"
    if zero and part:
        said[_INSTANCES] = facts["dp"] // part
    if facts["dp"] * facts["cp"] > 1:
        said["--overlap-grad-reduce"] = True
        if zero:
            said["--overlap-param-gather"] = True
    return said


def _read_zero(options: Options, facts: Facts) -> Facts:
    sharded = {name: zero for zero, name in _SHARDED.items()} | {"no_shard": 0, "optim": 1}
    distributed = truth(
        "--use-distributed-optimizer", options.get("--use-distributed-optimizer", False)
    )
    zero = int(distributed)
    if truth("--use-megatron-fsdp", options.get("--use-megatron-fsdp", False)):
        given = typed(str, _STRATEGY, options.get(_STRATEGY, "no_shard"))
        if given not in sharded:
            raise LaunchError(
                f"{_STRATEGY} is {shown(given)}; expected one of {', '.join(sharded)}"
            )
        zero = sharded[given]
    elif truth("--use-torch-fsdp2", options.get("--use-torch-fsdp2", False)):
        zero = 3
    instances = typed(int, _INSTANCES, options.get(_INSTANCES, 1), 1)
    if facts["dp"] * facts["cp"] == 1:
        return {"zero": 0, "zero_degree": 0}
    part, rest = divmod(facts["dp"], instances)
    if rest or (instances > 1 and not zero):
        raise LaunchError(
            f"{_INSTANCES} is {instances}, which does not go together with dp = {facts['dp']} and "
            f"zero = {zero}"
        )
    return {"zero": zero, "zero_degree": part if instances > 1 else 0}


def _write_recompute(facts: Facts) -> Options:
    if facts["recompute"] == "none":
        return {}
    if facts["recompute"] == "full":
        layers = facts["recompute_layers"]
        return {
            "--recompute-granularity": "full",
            "--recompute-method": "block" if layers else "uniform",
            "--recompute-num-layers": layers or 1,
        }
    return {
        "--recompute-granularity": "selective",
        "--recompute-modules": list(modules_recomputed(facts)),
    }


def _read_recompute(options: Options, facts: Facts) -> Facts:
    given = as_word(options.get("--recompute-granularity", "none"))
    if truth("--recompute-activations", options.get("--recompute-activations", False)):
        given = "selective"
    if given in ("none", "selective"):
        return {"recompute": given, "recompute_layers": 0}
    if given != "full":
        raise LaunchError(f"--recompute-granularity is {shown(given)}; expected selective or full")
    method = options.get("--recompute-method")
    if method is None:
        raise LaunchError(
            "full recomputation needs --recompute-method, uniform or block; state it with --set "
            "recompute-method=VALUE"
        )
    if _NUM_LAYERS not in options:
        raise LaunchError(
            f"full recomputation needs {_NUM_LAYERS}, without which Megatron-Core refuses it; "
            "state it with --set recompute-num-layers=VALUE"
        )
    count = _recomputed_layers(options)
    if method == "uniform" and count == 1:
        return {"recompute": "full", "recompute_layers": 0}
    if method == "block" and count >= 0:
        return {"recompute": "full" if count else "none", "recompute_layers": count}
    raise LaunchError(
        f"--recompute-method {shown(method)} with {_NUM_LAYERS} {count} is not simulated; expected "
        "uniform with 1, or block with a number of layers of every stage"
    )


_NUM_LAYERS = "--recompute-num-layers"


def _recomputed_layers(options: Options) -> int:
    return typed(int, _NUM_LAYERS, options[_NUM_LAYERS])


_MODULES = "--recompute-modules"


def recomputes_otherwise(options: Options, facts: Facts) -> Iterator[Note]:
    """What to know where other parts of layers are to be recomputed than is simulated, or more
    layers than the model has."""
    if facts["recompute"] == "selective":
        given = options.get(_MODULES, "core_attn")
        modules = {given} if isinstance(given, str) else set(given)
        simulated = modules_recomputed(facts)
        if modules != set(simulated):
            reason = f"the simulation recomputes {', '.join(simulated)}"
            more = ", ".join(sorted(modules.difference(simulated, ("core_attn",))))
            held = f"{reason}, but not {more}, so less memory may be needed than reported"
            yield Note(_MODULES, held if more else reason, given)
    if facts["recompute"] != "full" or options.get("--recompute-method") != "block":
        return
    if LAYERS not in facts:
        return
    count, layers = _recomputed_layers(options), facts[LAYERS]
    if count > layers:
        yield Note(_NUM_LAYERS, f"the model has {layers} layers: all are recomputed", count)


# --- numbers --------------------------------------------------------------------------------------


_LOCAL = "local_layers"
"""A fact: that layers are Megatron's own and not Transformer Engine's."""


def _write_precision(facts: Facts) -> Options:
    name = facts["precision"]
    if name == "fp8":
        return {"--bf16": True, "--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"}
    if name == "pure-bf16":
        raise LaunchError(
            "precision = pure-bf16 is not an option of Megatron-LM, whose optimizers update "
            "parameters "
            "in fp32; search with --precision bf16"
        )
    return {} if name in ("fp32", "tf32") else {f"--{name}": True}


def _read_precision(options: Options, facts: Facts) -> Facts:
    at_most_one("Megatron-LM", options, ("--bf16", "--fp16"))
    if "--fp8-format" in options:
        return {"precision": "fp8"}
    for name in ("bf16", "fp16"):
        if truth(f"--{name}", options.get(f"--{name}", False)):
            return {"precision": name}
    if options.get("--transformer-impl") == "local":
        return {"precision": "fp32", _LOCAL: True}
    return {"precision": "tf32"}


def _as_run(facts: Facts) -> Facts:
    """Transformer Engine multiplies fp32 in TF32."""
    in_fp32 = facts["precision"] == "fp32" and _LOCAL not in facts
    return {**adds_up_in_fp32(facts), **({"precision": "tf32"} if in_fp32 else {})}


_IN_BF16, _IN_FP32 = "--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32"


def _write_gradients(facts: Facts) -> Options:
    """With bf16 the default is fp32, otherwise the type of the parameters."""
    in_compute = facts["gradient_precision"] == "compute"
    if facts["precision"] in ("bf16", "fp8"):
        return {_IN_BF16: True} if in_compute else {}
    return {} if in_compute else {_IN_FP32: True}


def _read_gradients(options: Options, facts: Facts) -> Facts:
    if facts["precision"] in ("bf16", "fp8"):
        in_compute = truth(_IN_BF16, options.get(_IN_BF16, False))
    else:
        in_compute = not truth(_IN_FP32, options.get(_IN_FP32, False))
    return {"gradient_precision": "compute" if in_compute else "fp32"}


def _write_optimizer(facts: Facts) -> Options:
    if facts["optimizer"] == "adam":
        return {"--optimizer": "adam"}
    momentum = 0.9 if facts["optimizer"] == "momentum" else 0.0
    return {"--optimizer": "sgd", "--sgd-momentum": momentum}


def _read_optimizer(options: Options, facts: Facts) -> Facts:
    given = typed(str, "--optimizer", options.get("--optimizer", "adam"))
    if given == "sgd":
        momentum = typed(float, "--sgd-momentum", options.get("--sgd-momentum", 0.9))
        return {"optimizer": "momentum" if momentum else "sgd"}
    if given != "adam":
        raise LaunchError(f"--optimizer is {shown(given)}; only adam and sgd are simulated")
    return {"optimizer": "adam"}


_MULTIPLE = value("vocabulary_multiple", "--make-vocab-size-divisible-by", 128)
_UNPADDED = "--disable-pad-vocab-size"


def _read_padding(options: Options, facts: Facts) -> Facts:
    exact = PADDED_VOCABULARY in options or truth(_UNPADDED, options.get(_UNPADDED, False))
    return {"vocabulary_multiple": 1} if exact else _MULTIPLE.read(options, facts)


LAYERS = MODEL + "layers"

PROGRAM = "pretrain_gpt.py"

OTHER_PROGRAMS = frozenset(
    f"pretrain_{model}.py"
    for model in (
        "bert", "t5", "ict", "mamba", "hybrid", "retro", "vlm", "vision_classify", "vision_dino",
        "vision_inpaint",
    )
)  # fmt: skip
"""Programs of Megatron-LM that take the same options, and train what is no decoder of text."""

_DEGREE_ROWS: tuple[Row, ...] = (
    value("tp", "--tensor-model-parallel-size", 1, always=True, least=1),
    value("pp", "--pipeline-model-parallel-size", 1, always=True, least=1),
    value("cp", "--context-parallel-size", 1, least=1),
    row(("cp_exchange",), ("--cp-comm-type",), _write_exchange, _read_exchange),
    row(("dp",), (), lambda facts: {}, _read_dp, "derived: devices / (tp · pp · cp)"),
    row(
        ("micro_batch", "microbatches", "batch_size"),
        ("--micro-batch-size", "--global-batch-size", *_RAMPS),
        lambda facts: {
            "--micro-batch-size": facts["micro_batch"],
            "--global-batch-size": facts["batch_size"],
        },
        _read_batch,
    ),
    row(
        ("sequence_parallel",),
        ("--sequence-parallel",),
        lambda facts: {"--sequence-parallel": True} if facts["sequence_parallel"] else {},
        _read_sequence_parallel,
    ),
    flag(
        "placement",
        "--use-tp-pp-dp-mapping",
        when=PLACEMENTS[True],
        otherwise=PLACEMENTS[False],
    ),
    length_of_text("--seq-length", "Megatron-Core"),
)

_STAGE_ROWS: tuple[Row, ...] = (
    row(
        ("ep", "etp"),
        ("--expert-model-parallel-size", "--expert-tensor-parallel-size"),
        _write_experts,
        _read_experts,
    ),
    neighbours_share_experts("devices of cp before replicas"),
    row(
        ("schedule", "chunks"),
        (_CHUNKS, _CHUNK_LAYERS, _LAYOUT, GROUP, _FIRST, _LAST, _WITH_EMBEDDING, _WITH_LOSS),
        _write_pipeline,
        _read_pipeline,
    ),
    row(
        ("zero", "zero_degree"),
        (
            "--use-distributed-optimizer",
            "--use-megatron-fsdp",
            "--use-torch-fsdp2",
            _STRATEGY,
            _INSTANCES,
            "--overlap-grad-reduce",
            "--overlap-param-gather",
        ),
        _write_zero,
        _read_zero,
    ),
    row(
        ("recompute", "recompute_layers"),
        (
            "--recompute-granularity",
            "--recompute-method",
            "--recompute-num-layers",
            "--recompute-modules",
            "--recompute-activations",
        ),
        _write_recompute,
        _read_recompute,
    ),
    row(("optimizer",), ("--optimizer", "--sgd-momentum"), _write_optimizer, _read_optimizer),
    unsaid("offload", "", "nothing rests on hosts"),
    row(
        ("mode",),
        (),
        lambda facts: {},
        lambda options, facts: {"mode": "training"},
        PROGRAM,
    ),
    row(
        ("vocabulary_multiple",),
        (_MULTIPLE.options[0], _UNPADDED),
        _MULTIPLE.write,
        _read_padding,
    ),
)

STRATEGY_ROWS = (*_DEGREE_ROWS, *_STAGE_ROWS)
"""What is the same for Megatron-Bridge, under other names."""

ROWS: tuple[Row, ...] = (
    *_DEGREE_ROWS,
    *MODEL_ROWS,
    *_STAGE_ROWS,
    row(
        ("precision",),
        ("--bf16", "--fp16", "--fp8-format", "--fp8-recipe"),
        _write_precision,
        _read_precision,
    ),
    row(("gradient_precision",), (_IN_BF16, _IN_FP32), _write_gradients, _read_gradients),
)


def _missing(facts: Facts) -> Iterator[Note]:
    yield Note("data", "--data-path and --split, or --mock-data to try it out")
    yield Note("tokenizer", "--tokenizer-type and --tokenizer-model; its size must be --vocab-size")
    yield Note("training", "--train-iters, --lr, --save: learning and checkpoints")
    if LAYERS not in facts:
        yield Note("model", "--num-layers, --hidden-size and the other sizes of the model")
    elif names := unstated(facts):
        yield Note("model", f"Megatron-LM cannot state of this model: {', '.join(names)}")


def _assumed(options: Options, facts: Facts) -> Iterator[Note]:
    vocabulary: int | None = facts.get(f"{MODEL}vocabulary")
    given = "model_given" in facts
    stated = any(name in options for name in ("--vocab-size", PADDED_VOCABULARY))
    if vocabulary is not None and not stated and not given:
        reason = (
            f"its {vocabulary:,} tokens are assumed; state another number with --set vocab-size=N"
        )
        yield Note("--tokenizer-type", reason, options.get("--tokenizer-type", "GPT2BPETokenizer"))
    overlaps = truth("--overlap-grad-reduce", options.get("--overlap-grad-reduce", False))
    if facts["dp"] * facts["cp"] > 1 and not overlaps:
        yield Note(
            "--overlap-grad-reduce",
            "gradients are reduced after the backward pass there; in the simulation the software "
            "stack decides that: see --stack",
            False,
        )
    dispatcher = options.get(DISPATCHER, DISPATCHERS[0])
    if facts["ep"] * facts["tp"] > 1 and "--num-experts" in options and dispatcher != EXCHANGING:
        yield Note(DISPATCHER, f"{EXCHANGING} is simulated instead", dispatcher)
    yield from recomputes_otherwise(options, facts)
    if "--use-torch-fsdp2" in options:
        yield Note("--use-torch-fsdp2", "simulated like any other sharding of parameters", True)


def environment(launch: Launch) -> Mapping[str, str]:
    """Before Blackwell, kernels of tp and cp are in order only with one connection; Megatron-FSDP
    wants more."""
    facts = launch.facts
    if facts["zero"] >= 2 or facts["tp"] * facts["cp"] == 1:
        return {}
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def _write(launch: Launch, options: Options) -> Files:
    command = [*torchrun(launch, PROGRAM), *option_lines(options)]
    needed = environment(launch)
    text = script(header(launch, MEGATRON.label), command, needed)
    return Files(one_line(command, needed), {"launch.sh": text})


SIGNS = frozenset(
    ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--num-layers", PROGRAM)
)


def _read(source: Source) -> Options | None:
    """The options of a command line, of an array in a script, or of `MODEL_ARGS` in the YAML files
    of Megatron-LM's own tests."""
    listed: object = source.table.get("MODEL_ARGS") if source.table is not None else None
    if isinstance(listed, dict):
        options = cast("dict[object, object]", listed)
        return {str(name): given for name, given in options.items() if given is not False}
    command = source.command(SIGNS)
    if command is None or not any(name in command.options for name in SIGNS):
        return None
    for word in command.words:
        if (name := word.rpartition("/")[2]) in OTHER_PROGRAMS:
            raise LaunchError(
                f"{source.path}: {name} trains another kind of model; expected {PROGRAM}"
            )
    return dict(command.options)


KNOWN = known_options("megatron")

MEGATRON = add_target(
    Target(
        name="megatron",
        version="0.19",
        summary="Megatron-LM: pretrain_gpt.py with the options of megatron-core 0.19",
        stack="megatron",
        states_cuts=True,
        fuses_qkv=True,
        table=Table(ROWS),
        limits=LIMITS,
        write=_write,
        read=_read,
        approximated=approximations,
        as_run=_as_run,
        missing=_missing,
        searches={"expert_order": EXPERT_ORDERS},
        own=("expert_order",),
        assumed=_assumed,
        is_neutral=KNOWN.is_neutral,
        not_modelled=KNOWN.not_modelled,
        removed=KNOWN.removed,
        known=KNOWN.names,
        dry_run="add --fake-process-group --mock-data and start one process: one GPU takes the "
        "part of rank 0, and nothing is sent",
    ),
    order=1,
)
