"""The pipeline of torchtitan: its schedule, as a name or a file, and which modules a stage has."""

from __future__ import annotations

from typing import Any

from autotune.launch.errors import LaunchError
from autotune.launch.facts import MODEL, Cuts, Facts
from autotune.launch.rows import Options, Row, row, shown, typed
from autotune.launch.targets.torchtitan_models import registered
from autotune.launch.torch_schedule import named, parse_csv, schedule_of, stage_order
from distir.models.zoo import find_model
from distir.schedules import SCHEDULES, find_schedule
from distir.strategy import Strategy

_SCHEDULE = "--parallelism.pipeline_parallel_schedule"
CSV = "--parallelism.pipeline_parallel_schedule_csv"
_PARTS = "--parallelism.module_fqns_per_model_part"
_LAYERS = "--parallelism.pipeline_parallel_layers_per_stage"
_GRAPHLESS = "--training.disable_cuda_graphs"
_LESS = (
    "--parallelism.pipeline_parallel_first_stage_less_layers",
    "--parallelism.pipeline_parallel_last_stage_less_layers",
)


def schedule_file(schedule: str) -> str:
    """The file that a schedule is written to: under its own name, or under one that any schedule
    of the user's has."""
    return f"{schedule}.csv" if schedule in SCHEDULES else "schedule.csv"


SINGLE = {"gpipe": "GPipe", "1f1b": "1F1B"}
"""What torchtitan calls schedules of one stage per rank."""
_MULTI = {"interleaved": "Interleaved1F1B", "breadth-first": "LoopedBFS", "zb-v": "ZBVZeroBubble"}
_OURS = {theirs.lower(): ours for ours, theirs in {**SINGLE, **_MULTI}.items()}


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
    if name != SINGLE.get(facts["schedule"]):
        said[CSV] = schedule_file(facts["schedule"])
    cuts: Cuts | None = facts.get("cuts")
    if cuts is None and MODEL + "layers" in facts:
        raise LaunchError(
            "a stage begins inside a layer, which torchtitan cannot state; try another pp"
        )
    if cuts is not None:
        said[_PARTS] = model_parts(cuts)
    elif facts["chunks"] != _usual_chunks(name):
        raise LaunchError(
            f"chunks = {facts['chunks']} cannot be stated: torchtitan counts layers, but the "
            f"number of layers of the model is not known; with {name}, a rank has "
            f"{_usual_chunks(name)}"
        )
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
    known = registered(facts)
    usual = known.schedule if known is not None else "1F1B"
    name = str(options.get(_SCHEDULE, usual)).lower()
    if name not in _OURS:
        raise LaunchError(f"{_SCHEDULE} is {shown(name)}; expected one of {_names()}")
    per_rank = _usual_chunks(name)
    cuts = _read_cuts(options, facts, per_rank)
    stages = pp * per_rank if cuts is None else len(cuts.layers)
    chunks, rest = divmod(stages, pp)
    if rest or not chunks:
        raise LaunchError(f"{stages} stages are not divisible by pp = {pp}")
    schedule = _OURS[name]
    if options.get("schedule"):
        schedule = find_schedule(str(options["schedule"])).name
    elif CSV in options:
        if isinstance(options[CSV], str):
            raise LaunchError(
                f"{CSV} is {shown(options[CSV])}, but no such file was looked for beside the "
                "script; name one that is there"
            )
        stem, text = options[CSV]
        given = parse_csv(text)
        schedule = named(given, chunks, stem)
        if given.microbatches != facts["microbatches"]:
            raise LaunchError(
                f"{CSV} has {given.microbatches} microbatches, but the batch has "
                f"{facts['microbatches']}"
            )
    return {"schedule": schedule, "chunks": chunks, "cuts": cuts}


def _names() -> str:
    return ", ".join([*SINGLE.values(), *_MULTI.values()])


def _usual_chunks(schedule: str) -> int:
    """The stages of a rank if nobody says."""
    return 1 if _OURS[schedule.lower()] in SINGLE else 2


def _read_cuts(options: Options, facts: Facts, stages_per_rank: int) -> Cuts | None:
    """The layers of all stages: as they are listed, or as torchtitan finds them by itself; None for
    a model that is given and whose layers are not known."""
    listed = options.get(_PARTS)
    if listed is not None:
        parts = [listed] if isinstance(listed, str) else list(listed)
        return Cuts(tuple(sum(m.startswith("layers.") for m in p.split(",")) for p in parts))
    layers = _layers(facts)
    if layers is None and "model_given" in facts and _LAYERS not in options:
        return None
    if layers is None:
        raise LaunchError(f"{_PARTS} is not stated; expected the layers of each stage")
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


def _layers(facts: Facts) -> int | None:
    """The layers of the model; None where they are not known."""
    if facts["zoo"]:
        return getattr(find_model(facts["zoo"]), "layers", 0)
    return facts.get(f"{MODEL}layers")


PIPELINE_ROWS: tuple[Row, ...] = (
    row(
        ("schedule", "chunks"),
        (_SCHEDULE, CSV, _PARTS, _LAYERS, *_LESS, "schedule"),
        _write_pipeline,
        _read_pipeline,
    ),
    row((), (_GRAPHLESS,), _write_graphs, lambda options, facts: {}),
)
