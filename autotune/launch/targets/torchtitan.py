"""torchtitan 0.3: `--module M --config F`, and options of the form `--section.key`
(torchtitan/config/configs.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from autotune.launch.common import (
    FSDP_OFFLOADS,
    length_of_text,
    nearest_experts,
    neighbours_share_experts,
    not_padded,
    offloaded_by_fsdp,
)
from autotune.launch.errors import LaunchError
from autotune.launch.facts import MODEL, Cuts, Facts, Launch
from autotune.launch.limits import Changes, Limit, only
from autotune.launch.rows import Options, Row, Table, row, shown, truth, typed
from autotune.launch.scripts import header, one_line, option_lines, script, torchrun
from autotune.launch.target import Files, Note, Target, add_target
from autotune.launch.targets.torchtitan_models import REGISTERED, Registered, model_called
from autotune.launch.torch_schedule import (
    format_csv,
    named,
    parse_csv,
    schedule_of,
    stage_order,
)
from distir.factoring import EXPERT_ORDERS, divisors, expert_factors
from distir.models.zoo import find_model
from distir.rules import WorkloadFacts
from distir.schedules import SCHEDULES, find_schedule
from distir.strategy import PLACEMENT, Strategy

if TYPE_CHECKING:
    from autotune.launch.sources import Source

_P = "--parallelism."
_T = "--training."
PROGRAM = "torchtitan.train"
RECOMPUTE = "activation_checkpoint"
"""The word that ends a command line: `activation_checkpoint:full`."""


# --- the model ------------------------------------------------------------------------------------


def _write_model(facts: Facts) -> Options:
    known = REGISTERED.get(facts["zoo"])
    if known is None:
        return {"--module": "MODULE", "--config": "CONFIG"}
    return {"--module": known.module, "--config": known.config}


def _read_model(options: Options, facts: Facts) -> Facts:
    module, config = str(options.get("--module", "")), str(options.get("--config", ""))
    name = model_called(module, config)
    if name is None and not facts.get("model_given"):
        given = f"--module {module} --config {config} is no registry function that is known"
        fault = given if module or config else "neither --module nor --config is stated"
        raise LaunchError(f"{fault}; state the model by --model")
    return {"zoo": name, **({"model_source": name} if name else {})}


def _registered(facts: Facts) -> Registered | None:
    """What the registry function of a model states; None for one that is not known."""
    return REGISTERED.get(facts["zoo"]) if facts["zoo"] else None


def _number(options: Options, facts: Facts, option: str, field: str, default: int) -> int:
    """A whole number, by default the registry function's, or the framework's."""
    known = _registered(facts)
    usual = getattr(known, field) if known is not None and field else default
    return typed(int, option, options.get(option, usual))


def _degree(fact: str, key: str, field: str = "") -> Row:
    """A row for a degree, which is always written: registry functions have defaults of their
    own."""
    option = f"{_P}{key}"

    def read(options: Options, facts: Facts) -> Facts:
        degree = _number(options, facts, option, field, 1)
        if degree < 1:
            raise LaunchError(f"{option} is {degree}; expected a number of at least 1")
        return {fact: degree}

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
            f"{facts['cp']} × tp {facts['tp']} × pp {facts['pp']}; state their number by --devices"
        )
    dp = copies * shard
    if shard * facts["cp"] == 1:
        return {"dp": dp, "zero": 0, "zero_degree": 0, "keep_gathered": "none"}
    word = str(options.get(_RESHARD, "default")).lower()
    if word not in ("default", "always", "never"):
        raise LaunchError(f"{_RESHARD} is {shown(word)}; known are default, always and never")
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
            f"the batch ({batch}) does not divide by {local} ({_LOCAL}) on dp = {facts['dp']} "
            "replicas; state it by --batch-size, or the devices by --devices"
        )
    if facts["pp"] == 1:
        return {"micro_batch": local, "microbatches": times, "batch_size": batch}
    micro = typed(int, _MICRO, options.get(_MICRO, 1))
    count, rest = divmod(local, max(1, micro))
    if rest or times > 1:
        raise LaunchError(
            f"{times} pipelines per step of {local} samples in microbatches of {micro} are not "
            "simulated; expected one pipeline of whole microbatches"
        )
    return {"micro_batch": micro, "microbatches": count, "batch_size": batch}


# --- the pipeline ---------------------------------------------------------------------------------

_SCHEDULE = f"{_P}pipeline_parallel_schedule"
_CSV = f"{_P}pipeline_parallel_schedule_csv"
_PARTS = f"{_P}module_fqns_per_model_part"
_LAYERS = f"{_P}pipeline_parallel_layers_per_stage"
_GRAPHLESS = f"{_T}disable_cuda_graphs"
_LESS = (
    f"{_P}pipeline_parallel_first_stage_less_layers",
    f"{_P}pipeline_parallel_last_stage_less_layers",
)


def schedule_file(schedule: str) -> str:
    """The file that a schedule is written to: under its own name, or under one that any schedule
    of the user's has."""
    return f"{schedule}.csv" if schedule in SCHEDULES else "schedule.csv"


_SINGLE = {"gpipe": "GPipe", "1f1b": "1F1B"}
_MULTI = {"interleaved": "Interleaved1F1B", "breadth-first": "LoopedBFS", "zb-v": "ZBVZeroBubble"}
_OURS = {theirs.lower(): ours for ours, theirs in {**_SINGLE, **_MULTI}.items()}


def _write_pipeline(facts: Facts) -> Options:
    if facts["pp"] == 1:
        return {}
    strategy = Strategy(
        pp=facts["pp"],
        chunks=facts["chunks"],
        microbatches=facts["microbatches"],
        schedule=facts["schedule"],
    )
    order = stage_order(schedule_of(strategy))
    name = "ZBVZeroBubble" if order == "V" else "1F1B"
    if order == "loop" and facts["chunks"] > 1:
        name = "Interleaved1F1B"
    said: dict[str, Any] = {_SCHEDULE: name}
    if name != _SINGLE.get(facts["schedule"]):
        said[_CSV] = schedule_file(facts["schedule"])
    cuts: Cuts | None = facts.get("cuts")
    if cuts is None and MODEL + "layers" in facts:
        raise LaunchError(
            "a stage begins inside a layer, which torchtitan cannot say; try another pp"
        )
    if cuts is not None:
        said[_PARTS] = model_parts(cuts)
    return said


def _write_graphs(facts: Facts) -> Options:
    """CUDA graphs, which are on by default, go with neither a pipeline nor exchanges of tokens."""
    return {_GRAPHLESS: True} if facts["pp"] * facts["ep"] > 1 else {}


def model_parts(cuts: Cuts) -> list[str]:
    """The modules of every stage, as torchtitan calls them."""
    parts: list[list[str]] = []
    first = 0
    for count in cuts.layers:
        parts.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return [",".join(part) for part in parts]


def _read_pipeline(options: Options, facts: Facts) -> Facts:
    pp = facts["pp"]
    if pp == 1:
        return {"schedule": "1f1b", "chunks": 1, "cuts": None}
    known = _registered(facts)
    usual = known.schedule if known is not None else "1F1B"
    name = str(options.get(_SCHEDULE, usual)).lower()
    if name not in _OURS:
        raise LaunchError(f"{_SCHEDULE} is {shown(name)}; what is understood is {_names()}")
    cuts = _read_cuts(options, facts, 1 if _OURS[name] in _SINGLE else 2)
    chunks, rest = divmod(len(cuts.layers), pp)
    if rest or not chunks:
        raise LaunchError(f"{len(cuts.layers)} stages do not divide by pp = {pp}")
    schedule = _OURS[name]
    if options.get("schedule"):
        schedule = find_schedule(str(options["schedule"])).name
    elif _CSV in options:
        if isinstance(options[_CSV], str):
            raise LaunchError(
                f"{_CSV} is {shown(options[_CSV])}, which was not looked for beside the script; "
                "state the file there"
            )
        stem, text = options[_CSV]
        given = parse_csv(text)
        schedule = named(given, chunks, stem)
        if given.microbatches != facts["microbatches"]:
            raise LaunchError(
                f"{_CSV} has {given.microbatches} microbatches; the batch says "
                f"{facts['microbatches']}"
            )
    return {"schedule": schedule, "chunks": chunks, "cuts": cuts}


def _names() -> str:
    return ", ".join([*_SINGLE.values(), *_MULTI.values()])


def _read_cuts(options: Options, facts: Facts, stages_per_rank: int) -> Cuts:
    """The layers of all stages: as they are listed, or as torchtitan finds them by itself."""
    listed = options.get(_PARTS)
    if listed is not None:
        parts = [listed] if isinstance(listed, str) else list(listed)
        return Cuts(tuple(sum(m.startswith("layers.") for m in p.split(",")) for p in parts))
    if not facts["zoo"]:
        raise LaunchError(f"{_PARTS} is not stated; it says which layers each stage has")
    layers: int = getattr(find_model(facts["zoo"]), "layers", 0)
    first, last = (typed(int, name, options.get(name, 1)) for name in _LESS)
    weight = layers + first + last
    stages = facts["pp"] * stages_per_rank
    if _LAYERS in options:
        stages = -(-weight // max(1, typed(int, _LAYERS, options[_LAYERS])))
    # distributed/pipeline_parallel.py, _generate_llm_fqn_per_model_part
    each, more = divmod(weight, stages)
    if each <= max(first, last):
        raise LaunchError(f"{layers} layers are too few for {stages} stages")
    counts = [each + (stage < more) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return Cuts(tuple(counts))


# --- memory and numbers ---------------------------------------------------------------------------

_WITHOUT_SP = f"{_P}no_enable_sequence_parallel"
_WITH_SP = f"{_P}enable_sequence_parallel"
_POLICIES = {"none": "none", "full": "full", "alternate": "selective"}


def _read_sequence_parallel(options: Options, facts: Facts) -> Facts:
    off = truth(_WITHOUT_SP, options.get(_WITHOUT_SP, False))
    on = truth(_WITH_SP, options.get(_WITH_SP, True))
    return {"sequence_parallel": facts["tp"] > 1 and on and not off}


def _read_recompute(options: Options, facts: Facts) -> Facts:
    known = _registered(facts)
    usual = known.recompute if known is not None else "alternate"
    word = options.get(RECOMPUTE)
    if word is None:
        return {"recompute": usual}
    ours = {theirs: ours for ours, theirs in _POLICIES.items()}
    if word not in ours:
        raise LaunchError(
            f"{RECOMPUTE}:{word} is not simulated; what is: {', '.join(_POLICIES.values())}"
        )
    return {"recompute": ours[str(word)]}


_PARAM, _DTYPE = f"{_T}mixed_precision_param", f"{_T}dtype"


def _write_precision(facts: Facts) -> Options:
    if facts["precision"] not in ("bf16", "fp32"):
        raise LaunchError(
            f"precision = {facts['precision']} is no option of torchtitan: a converter of the "
            "registry function says it"
        )
    if facts["optimizer"] != "adam":
        raise LaunchError(f"optimizer = {facts['optimizer']}: registry functions have AdamW")
    return {_PARAM: "bfloat16" if facts["precision"] == "bf16" else "float32"}


def _read_precision(options: Options, facts: Facts) -> Facts:
    word = options.get(_PARAM, "bfloat16")
    if word not in ("bfloat16", "float32") or options.get(_DTYPE, "float32") != "float32":
        raise LaunchError(
            f"{_PARAM} {word} with {_DTYPE} {options.get(_DTYPE, 'float32')} is not simulated; "
            "what is: bfloat16 or float32 over parameters in float32"
        )
    return {
        "precision": "bf16" if word == "bfloat16" else "fp32",
        "gradient_precision": "fp32",
        "optimizer": "adam",
        "mode": "training",
    }


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
    row(
        ("schedule", "chunks"),
        (_SCHEDULE, _CSV, _PARTS, _LAYERS, *_LESS, "schedule"),
        _write_pipeline,
        _read_pipeline,
    ),
    row((), (_GRAPHLESS,), _write_graphs, lambda options, facts: {}),
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
        lambda facts: {RECOMPUTE: _POLICIES[facts["recompute"]]},
        _read_recompute,
    ),
    row(("precision", "optimizer"), (_PARAM, _DTYPE), _write_precision, _read_precision),
    offloaded_by_fsdp(f"{_T}enable_cpu_offload"),
    not_padded("torchtitan"),
    row(
        ("compiled",),
        ("--compile.enable",),
        lambda facts: {"--compile.enable": True} if _compiles(facts) else {},
        lambda options, facts: {
            "compiled": truth("--compile.enable", options.get("--compile.enable", False))
        },
    ),
)


def _compiles(facts: Facts) -> bool:
    """Whether blocks are compiled: torch.compile refuses schedules that split the backward pass."""
    return bool(facts["compiled"]) and not _splits(facts)


def _splits(facts: Facts) -> bool:
    return facts["pp"] > 1 and find_schedule(facts["schedule"]).splits_backward


# --- what cannot be stated ------------------------------------------------------------------------


def _training(workload: WorkloadFacts) -> str | None:
    return None if workload.mode == "training" else "only training is launched"


def _zero(zero: int) -> str | None:
    if zero in (0, 3):
        return None
    return f"FSDP2 shards parameters: zero = {zero} cannot be said"


def _zero_has_devices(zero: int, zero_degree: int, dp: int, cp: int) -> str | None:
    sharing = (zero_degree or dp) * cp
    if zero and sharing == 1:
        return "zero shards over one device: that is zero = 0"
    if not zero and cp > 1:
        return f"FSDP2 shards parameters over cp = {cp}: zero = 0 cannot be said"
    return None


def _whole_degree(zero_degree: int, dp: int) -> str | None:
    if zero_degree and zero_degree == dp:
        return f"zero_degree = dp = {dp} shards over all replicas: state 0"
    return None


def _heads(workload: WorkloadFacts, tp: int) -> str | None:
    found = next(((n, s) for n, s in workload.internal_axes if s % tp), None)
    if found is None:
        return None
    return f"{found[0]} ({found[1]}) must divide by tp = {tp}, heads of keys and values too"


def _context(workload: WorkloadFacts, cp: int) -> str | None:
    length = next((n for n in workload.sequence_lengths if n % (2 * cp)), None)
    if cp == 1 or length is None:
        return None
    return f"the sequence ({length}) does not divide by 2 · cp = {2 * cp}"


def _experts(
    workload: WorkloadFacts,
    ep: int,
    dp: int,
    cp: int,
    tp: int,
    zero: int,
    zero_degree: int,
    etp: int,
    expert_order: str,
) -> str | None:
    if not workload.expert_axes:
        return None
    ours = expert_factors(ep, dp, cp, tp, etp, expert_order)
    if ours is None:
        return None  # a rule says so
    if ours.tp != tp:
        return f"torchtitan does not split experts by tp: ep = {ep} must be shared over tp = {tp}"
    if ours != expert_factors(ep, dp, cp, tp, 1, "nearest"):
        return (
            f"ep = {ep} is shared along dp here, but torchtitan fills cp = {cp} before dp "
            "(expert_order nearest)"
        )
    shard = 1 if zero == 0 else zero_degree or dp
    if shard % ours.dp:
        return f"ep = {ep} is shared over {ours.dp} replicas, of which only {shard} are sharded"
    return None


def _other_experts(strategy: Strategy) -> Iterator[Changes]:
    sharded: Changes = {"zero": 3, "zero_degree": 0}
    yield sharded
    if strategy.ep > 1:
        near: Changes = {"etp": int(strategy.tp > 1), "expert_order": "nearest"}
        yield near
        yield {**near, **sharded}
    for ep in sorted(
        divisors(strategy.dp * strategy.cp * strategy.tp), key=lambda n: abs(n - strategy.ep)
    ):
        yield {"ep": ep, "etp": 0}
        yield {"ep": ep, "etp": 0, **sharded}
    yield {"tp": 1, "dp": strategy.dp * strategy.tp, "sequence_parallel": False, **sharded}


def _stages(schedule: str, pp: int, chunks: int, microbatches: int) -> str | None:
    if pp == 1:
        if schedule == "1f1b" and chunks == 1:
            return None
        return f"without a pipeline there is no schedule {schedule} with {chunks} chunks"
    family = find_schedule(schedule)
    if family.copies > 1:
        return f"{schedule} has each stage on two ranks: torch's DualPipeV is another schedule"
    if family.requires(pp, chunks, microbatches) is not None:
        return None  # a rule says so
    made = family(pp, chunks, microbatches)
    order = stage_order(made)
    if order is None:
        return f"the stages of {schedule} lie on ranks neither as a loop nor as a V"
    if schedule == "1f1b" and order == "loop" and chunks == 1 and microbatches < pp:
        return f"1F1B needs at least as many microbatches as stages ({pp}), not {microbatches}"
    return None


def _less_tensor_parallel(strategy: Strategy) -> Iterator[Changes]:
    for tp in reversed(divisors(strategy.tp)[:-1]):
        dp = strategy.dp * strategy.tp // tp
        sp = strategy.sequence_parallel and tp > 1
        yield {"tp": tp, "dp": dp, "sequence_parallel": sp}


LIMITS: tuple[Limit, ...] = (
    Limit("only training", _training),
    only("placement", (PLACEMENT,), "the mesh has one order", {"placement": PLACEMENT}),
    only("cp_exchange", ("gather",), "keys and values are gathered", {"cp_exchange": "gather"}),
    Limit(
        "FSDP shards parameters",
        _zero,
        ({"zero": 3, "keep_gathered": "parameters"}, {"zero": 3}, {"zero": 0, "zero_degree": 0}),
    ),
    Limit(
        "ZeRO has devices",
        _zero_has_devices,
        (
            {"zero": 3, "zero_degree": 0, "keep_gathered": "parameters"},
            {"zero": 0, "zero_degree": 0, "keep_gathered": "none"},
        ),
    ),
    Limit("a part of dp is a part", _whole_degree, ({"zero_degree": 0},)),
    FSDP_OFFLOADS,
    only(
        "sync_every",
        (1,),
        "local_sgd and diloco of torchtitan/experiments/ft are a launch per replica, which a "
        "Lighthouse of torchft joins",
        {"sync_every": 1, "outer_optimizer": "mean"},
    ),
    only(
        "keep_gathered",
        ("none", "parameters"),
        "gathered activations are not kept",
        {"keep_gathered": "none"},
        {"keep_gathered": "parameters"},
    ),
    only(
        "recompute",
        tuple(_POLICIES),
        "selective means every second product and what is cheap, which is alternate",
        {"recompute": "alternate"},
        {"recompute": "full"},
        {"recompute": "none"},
    ),
    Limit("tp divides heads of keys", _heads, _less_tensor_parallel),
    Limit(
        "sequences are cut into 2 cp pieces",
        _context,
        lambda strategy: ({"cp": 1, "dp": strategy.dp * strategy.cp},),
    ),
    Limit(
        "experts lie as torchtitan lays them",
        _experts,
        _other_experts,
    ),
    Limit(
        "stages lie as torchtitan builds them",
        _stages,
        (
            {"schedule": "1f1b", "chunks": 1},
            {"schedule": "gpipe", "chunks": 1},
            {"schedule": "interleaved", "chunks": 2},
        ),
    ),
)


# --- files ----------------------------------------------------------------------------------------


def _approximated(facts: Facts) -> Iterator[Note]:
    if facts["gradient_precision"] != "fp32" and facts["precision"] != "fp32":
        yield Note(
            "gradient_precision",
            "gradients are reduced in fp32 only, which is twice the bytes: see as torchtitan runs "
            "it; search with --gradient-precision fp32",
        )
    if facts["recompute"] == "full":
        yield Note(
            "recompute", "a layer runs again no further than its backward pass needs (needed)"
        )
    if facts["pp"] > 1 and _SINGLE.get(facts["schedule"]) is None:
        yield Note("schedule", "the order is a file, validated by torch's own checker")
    if facts["pp"] > 1 and find_schedule(facts["schedule"]).overlaps:
        yield Note(
            "schedule",
            "torch's runtime runs the two passes of an overlapped pair one after the other: see as "
            "torchtitan runs it",
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
    if _registered(facts) is None:
        yield Note("model", "MODULE and CONFIG: a registry function of your own for this model")
        yield from _dropout(facts)
    yield Note("data", "--dataloader.dataset, if not the registry function's")
    yield Note("tokenizer", "--hf_assets_path: the folder of the tokenizer")
    yield Note("training", "--training.steps, --optimizer.lr, --checkpoint: learning, checkpoints")


def _write(launch: Launch, options: Options) -> Files:
    last = [[f"{RECOMPUTE}:{options[RECOMPUTE]}"]]
    rest = {name: given for name, given in options.items() if name != RECOMPUTE}
    command = [*torchrun(launch, "-m", PROGRAM), *option_lines(rest)]
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    text = script(header(launch, TORCHTITAN.label), command, environment, last)
    files = {"launch.sh": text}
    if _CSV in options:
        files[options[_CSV]] = format_csv(schedule_of(launch.strategy))
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
    if options.get(_CSV) in ("", True):
        del options[_CSV]
    if _CSV in options:
        beside = source.beside(options[_CSV])
        if beside is None:
            raise LaunchError(f"{_CSV} names {options[_CSV]}, which is not beside {source.path}")
        options[_CSV] = (beside.path.stem, beside.text)
    return options


def _canonical(name: str) -> str:
    """Dashes and underscores are the same to torchtitan's parser."""
    plain = name.removeprefix("--").replace("-", "_")
    return f"--{plain}" if "." in plain else name


_NEUTRAL = (
    "--job.", "--dump_folder", "--hf_assets_path", "--metrics.", "--checkpoint.", "--profiler.",
    "--profiling.", "--optimizer.", "--lr_scheduler.", "--dataloader.", "--comm.", "--debug.",
    "--validator.", "--training.steps", "--training.max_norm", "--training.gc_freq",
    "--training.gc_debug", "--parallelism.spmd_backend", "--loss.", "--compile.backend",
    "--compile.components", "--training.mixed_precision_reduce",
)  # fmt: skip

_REASONS = {
    "--compile.enable_async_tensor_parallel": "how far tp communication is hidden is the software "
    "stack's: see --stack",
    "--parallelism.enable_fsdp_symm_mem": "collectives are the usual ones",
    "--parallelism.context_parallel_ptrr_mask_key": "attention is causal over whole sequences",
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
