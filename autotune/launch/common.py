"""Limits and rows that several frameworks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autotune.launch.errors import LaunchError
from autotune.launch.facts import MODEL, TEXT, Facts, Launch, model_of
from autotune.launch.limits import Changes, Limit, only
from autotune.launch.rows import AUTO, Options, Row, row, truth, typed, value
from autotune.launch.target import Note
from distir.factoring import EXPERT_ORDERS, divisors, expert_factors
from distir.rules import WorkloadFacts
from distir.strategy import PLACEMENT, Strategy

_OF_SCRIPTS = {
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "pure-bf16": "dtype=torch.bfloat16, as the model is loaded",
}
"""Precisions that no framework has an option for, but PyTorch; and what says them there."""


def refuse_precision_of_scripts(framework: str, precision: str) -> None:
    """Raises `LaunchError` for a precision that the training script says, and not the framework."""
    if precision in _OF_SCRIPTS:
        raise LaunchError(
            f"precision = {precision} is not an option of {framework}: the training script states "
            f"it ({_OF_SCRIPTS[precision]})"
        )


def _training(workload: WorkloadFacts) -> str | None:
    return None if workload.mode == "training" else "only training can be launched"


def adds_up_in_fp32(facts: Facts) -> Facts:
    """What a problem must state where a framework adds gradients up in fp32 in place of `both`."""
    return {"gradient_precision": "fp32"} if facts["gradient_precision"] == "both" else {}


def notes_on_both(facts: Facts) -> Iterator[Note]:
    """That a framework adds gradients up in fp32 in place of `both`."""
    if facts["gradient_precision"] == "both":
        yield Note("gradient_precision", "both is not an option; gradients are accumulated in fp32")


ONLY_TRAINING = Limit("only training", _training)

USUAL_PLACEMENT = only("placement", (PLACEMENT,), "ranks have one order", {"placement": PLACEMENT})


def _whole_degree(zero_degree: int, dp: int) -> str | None:
    if zero_degree and zero_degree == dp:
        return f"zero_degree = dp = {dp} shards over all replicas; state that as 0"
    return None


PART_OF_REPLICAS = Limit("a part of dp is a part", _whole_degree, ({"zero_degree": 0},))


def _heads(workload: WorkloadFacts, tp: int) -> str | None:
    found = next(((n, s) for n, s in workload.internal_axes if s % tp), None)
    if found is None:
        return None
    return (
        f"{found[0]} ({found[1]}) must be divisible by tp = {tp}, and so must the heads of keys "
        "and values"
    )


def less_tensor_parallel(strategy: Strategy) -> Iterator[Changes]:
    """Fewer devices per layer, and more replicas."""
    for tp in reversed(divisors(strategy.tp)[:-1]):
        dp = strategy.dp * strategy.tp // tp
        yield {"tp": tp, "dp": dp, "sequence_parallel": strategy.sequence_parallel and tp > 1}


HEADS_DIVIDE = Limit("tp divides heads of keys", _heads, less_tensor_parallel)


def _context(workload: WorkloadFacts, cp: int) -> str | None:
    length = next((n for n in workload.sequence_lengths if n % (2 * cp)), None)
    if cp == 1 or length is None:
        return None
    return f"the sequence ({length}) is not divisible by 2 · cp = {2 * cp}"


def no_context_parallel(strategy: Strategy) -> tuple[Changes, ...]:
    """Replicas instead of devices that share a sequence."""
    return ({"cp": 1, "dp": strategy.dp * strategy.cp, "cp_exchange": "gather"},)


CONTEXT_DIVIDES = Limit("sequences are cut into 2 cp pieces", _context, no_context_parallel)


def no_pipeline(strategy: Strategy) -> Iterator[Changes]:
    """Replicas, or devices that share layers, instead of a pipeline."""
    flat: Changes = {"pp": 1, "chunks": 1, "schedule": "1f1b"}
    dp = strategy.dp * strategy.pp
    for microbatches in reversed(divisors(strategy.microbatches)):
        yield {**flat, "dp": dp, "microbatches": microbatches}
    yield {**flat, "tp": strategy.tp * strategy.pp}


def one_schedule(*schedules: str) -> Limit:
    """A limit to schedules with one stage per rank; without a pipeline, to the usual one."""

    def check(schedule: str, pp: int, chunks: int) -> str | None:
        if pp == 1 and (schedule != "1f1b" or chunks > 1):
            return f"without a pipeline, {schedule} with {chunks} chunks cannot be stated"
        if schedule not in schedules or chunks > 1:
            return f"{schedule} with {chunks} chunks cannot be stated: there is one stage per rank"
        return None

    return Limit(
        "one stage per rank",
        check,
        [{"schedule": name, "chunks": 1} for name in ("1f1b", *schedules)],
    )


def exchanges(known: dict[str, str]) -> Limit:
    """A limit to some ways of bringing keys and values together; `known` are they and why."""

    def check(cp: int, cp_exchange: str) -> str | None:
        if cp == 1 or cp_exchange in known:
            return None
        said = ", ".join(f"{name} ({why})" for name, why in known.items())
        return f"cp_exchange = {cp_exchange} cannot be stated; expected {said}"

    def instead(strategy: Strategy) -> Iterator[Changes]:
        yield from ({"cp_exchange": name} for name in known)
        yield from no_context_parallel(strategy)

    return Limit("keys and values travel as they can", check, instead)


def unsaid(fact: str, value: object, why: str) -> Row:
    """A row for a fact that has no option and one value."""
    return row((fact,), (), lambda facts: {}, lambda options, facts: {fact: value}, why)


_ON_HOST = "optimizer,parameters"


def offloaded_by_fsdp(option: str) -> Row:
    """A row for a flag that has FSDP leave parameters, gradients and the optimizer on the host."""

    def write(facts: Facts) -> Options:
        return {option: True} if facts["offload"] else {}

    def read(options: Options, facts: Facts) -> Facts:
        on = truth(option, options.get(option, False)) and facts["zero"] == 3
        return {"offload": _ON_HOST if on else ""}

    return row(("offload",), (option,), write, read)


def _of_fsdp(offload: str, zero: int) -> str | None:
    if not offload or (offload == _ON_HOST and zero == 3):
        return None
    return f"offload = {offload} with zero = {zero}: FSDP offloads {_ON_HOST} together, with zero 3"


FSDP_OFFLOADS = Limit(
    "FSDP offloads", _of_fsdp, ({"offload": _ON_HOST, "zero": 3}, {"offload": ""})
)


def not_padded(framework: str) -> Row:
    """A row for a framework that pads no vocabulary to a multiple."""

    def write(facts: Facts) -> Options:
        if facts["vocabulary_multiple"] != 1:
            raise LaunchError(
                f"vocabulary_multiple = {facts['vocabulary_multiple']} cannot be stated: "
                f"{framework} does not pad the vocabulary; expected 1"
            )
        return {}

    return row(("vocabulary_multiple",), (), write, lambda options, facts: {}, "not padded")


def model_file(launch: Launch) -> dict[str, str]:
    """The `config.json` of a model, for frameworks whose own files say nothing of it; nothing for a
    model of no family that has one."""
    from distir.importers.config_text import config_text

    if f"{MODEL}layers" not in launch.facts:
        return {}
    text = config_text(model_of(launch.facts, "model"))
    return {} if text is None else {"config.json": text}


LENGTHS = (
    "--max_length", "--max_seq_length", "--max_seq_len", "--model_max_length", "--seq_length",
    "--block_size",
)  # fmt: skip
"""What scripts call the length of sequences; the first is what is written."""

CHECKPOINTING = "--gradient_checkpointing"
"""The option of transformers' Trainer that has every layer computed again."""


def length_of_script() -> Row:
    """A row for the length of sequences, which an option of the user's script says."""

    def write(facts: Facts) -> Options:
        return {LENGTHS[0]: facts["sequence_length"]} if facts["sequence_length"] else {}

    def read(options: Options, facts: Facts) -> Facts:
        option = next((name for name in LENGTHS if name in options), None)
        if "sequence_length" in facts or option is None:
            return {}
        return {"sequence_length": typed(int, option, options[option])}

    return row(("sequence_length",), LENGTHS, write, read, "the script")


Reads = Callable[[Options, Facts], Facts]


def length_of_text(option: str, framework: str, read: Reads | None = None) -> Row:
    """A row for the length of sequences, in a framework that trains models of one text alone;
    `read` finds it where the option is not there by other means."""
    plain = value("sequence_length", option)
    trained = (
        f"{framework} trains models of {TEXT}; deepspeed and accelerate launch a script for any "
        "model"
    )

    def write(facts: Facts) -> Options:
        if facts["sequence_length"] is None:
            raise LaunchError(f"the model has no sequence, so {option} cannot be stated: {trained}")
        if facts.get("reads", TEXT) != TEXT:
            raise LaunchError(f"the model reads {facts['reads']}: {trained}")
        return plain.write(facts)

    return row(plain.facts, plain.options, write, read or plain.read)


def width_of_heads(facts: Facts, hidden: str, heads: str, other: str = "") -> int:
    """The width of a head that no option states: that of the model over the number of heads, which
    these options state. Raises `LaunchError` if it does not divide; `other` would state another."""
    width, rest = divmod(facts[f"{MODEL}hidden"], facts[f"{MODEL}heads"])
    if rest:
        instead = f"; state the width of a head with {other}" if other else ""
        raise LaunchError(
            f"{hidden} ({facts[f'{MODEL}hidden']}) is not divisible by {heads} "
            f"({facts[f'{MODEL}heads']}){instead}"
        )
    return width


def replicas_left() -> Row:
    """A row for replicas: what the other degrees leave of the devices."""

    def read(options: Options, facts: Facts) -> Facts:
        others = facts["tp"] * facts["pp"] * facts["cp"]
        dp, rest = divmod(facts["devices"], others)
        if rest or not dp:
            raise LaunchError(
                f"tp {facts['tp']} × pp {facts['pp']} × cp {facts['cp']} = {others} does not "
                f"divide the {facts['devices']} devices; state their number with --devices"
            )
        return {"dp": dp}

    return row(("dp",), (), lambda facts: {}, read, "derived: devices / (tp · pp · cp)")


def nearest_experts(facts: Facts, ep: int, etp: int, option: str) -> Facts:
    """How we call `ep` neighbours that share experts, of which `etp` (stated by an option) split
    each: in the shortest way that means these devices."""
    usual = {"etp": 0, "expert_order": EXPERT_ORDERS[0]}
    if ep == 1:
        return usual
    dp, cp, tp = facts["dp"], facts["cp"], facts["tp"]
    wanted = expert_factors(ep, dp, cp, tp, etp, "nearest") if etp > 0 else None
    if wanted is None:
        raise LaunchError(
            f"{option} is {etp}: {ep} neighbours that share experts do not form whole groups of tp "
            f"{tp} × cp {cp} × dp {dp} devices, and only such groups are simulated"
        )
    ways = ((some, order) for some in (0, etp) for order in EXPERT_ORDERS)
    found = next(way for way in ways if expert_factors(ep, dp, cp, tp, *way) == wanted)
    return {"etp": found[0], "expert_order": found[1]}


def neighbours_share_experts(fills: str) -> Row:
    """A row for a framework in which the nearest devices share experts; `fills` says which these
    are."""
    said = f"nearest: {fills}"
    return row(("expert_order",), (), lambda facts: {}, lambda options, facts: {}, said)


def accumulated(micro: str, times: str, whole: str = "") -> Row:
    """A row for a batch that is stated as samples of a microbatch, microbatches, and perhaps
    samples in all."""

    def write(facts: Facts) -> Options:
        said = {micro: facts["micro_batch"], times: facts["microbatches"]}
        return {**said, whole: facts["batch_size"]} if whole else said

    def read(options: Options, facts: Facts) -> Facts:
        batch = facts.get("batch_size")
        if batch is None and options.get(whole, AUTO) != AUTO:
            batch = typed(int, whole, options[whole], 1)
        left = [name for name in (micro, times) if options.get(name, AUTO) == AUTO]
        # Of microbatches and their samples the batch and one say the other.
        stated = {n: g for n, g in options.items() if n not in left or batch is None or left[1:]}
        samples = typed(int, micro, stated[micro], 1) if micro in stated else None
        count = typed(int, times, stated[times], 1) if times in stated else None
        given = "batch_size" in facts
        return _batch(samples, count, batch, facts["dp"], (micro, times), given=given)

    return row(
        ("microbatches", "micro_batch", "batch_size"),
        tuple(filter(None, (micro, times, whole))),
        write,
        read,
    )


def _batch(
    samples: int | None,
    count: int | None,
    batch: int | None,
    dp: int,
    options: tuple[str, str],
    *,
    given: bool,
) -> Facts:
    """The batch, of which two of three numbers are known; `given`: a user states it. The options
    are those of samples and of microbatches."""
    micro, times = options
    if samples is None and batch is None:
        raise LaunchError(
            f"{micro} is not stated; state it with --set {micro.lstrip('-')}=VALUE, and the batch "
            "with --batch-size"
        )
    if batch is None:
        batch = (samples or 1) * (count or 1) * dp
    if samples is None:
        samples = batch // (dp * (count or 1))
    found, rest = divmod(batch, max(1, samples) * dp)
    if rest or not found or samples < 1 or (count is not None and found != count):
        first = "another with --batch-size" if given else "it with --batch-size"
        whole = found and not rest and count is not None
        more = f", or {times} with --set {times.lstrip('-')}={found}" if whole else ""
        raise LaunchError(
            f"the batch ({batch}) is not {samples} ({micro}) × {count or '?'} microbatches × dp = "
            f"{dp}; state {first}{more}, or the devices with --devices"
        )
    return {"micro_batch": samples, "batch_size": batch, "microbatches": found}
