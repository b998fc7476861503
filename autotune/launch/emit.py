"""From a launch to the files of a framework."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.launch.facts import MODEL, STRATEGY_FACTS, WORKLOAD_FACTS, Launch
from autotune.launch.nodes import differs, on_nodes
from autotune.launch.target import Files, Note, Target
from distir.cost import load_stack
from distir.units import percent, short_bytes, short_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What was simulated, for the README of a launch."""

    seconds: float
    memory_bytes: float
    """What the fullest device holds in tensors, and what the software reserves."""
    device_bytes: float
    fits: bool
    """Whether that is there."""
    band: float
    """The relative standard deviation of measured times around predicted ones."""
    as_run_seconds: float
    as_run_bytes: float
    as_run_fits: bool
    stack: str
    """The software stack that was simulated first."""
    as_run_stack: str = ""
    """The software stack that runs as the framework does; by default the framework's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """The files of a launch, and what to know of them."""

    target: Target
    files: Files
    stated: Mapping[str, str]
    approximated: tuple[Note, ...]
    missing: tuple[Note, ...]


def emit(target: Target, launch: Launch, prediction: Prediction) -> Emission:
    """The files that state a launch for a framework. Equal arguments give equal bytes."""
    options = target.table.write(launch.facts)
    written = target.write(launch, options)
    said = target.table.stated(launch.facts)
    shown = (*STRATEGY_FACTS, *WORKLOAD_FACTS)
    stated = {name: said[name] for name in shown if name in said}
    approximated = (
        *target.approximated(launch.facts),
        *_unknown_model(target, launch),
        *_own_attention(target, launch),
        *_own_nodes(target, launch),
    )
    missing = tuple(target.missing(launch.facts))
    text = readme(target, launch, prediction, stated, approximated, missing)
    files = Files(written.command, {**written.files, "README.md": text})
    return Emission(
        target=target, files=files, stated=stated, approximated=approximated, missing=missing
    )


def _own_attention(target: Target, launch: Launch) -> Iterator[Note]:
    """What is to be known where a problem states how attention is computed."""
    if launch.attention not in (None, load_stack(target.stack).attention):
        reason = f"no option states it; {target.name} computes attention in its usual way"
        yield Note("attention", reason, launch.attention)


def _unknown_model(target: Target, launch: Launch) -> Iterator[Note]:
    """What is to be known of a model whose sizes are not known, for a framework that is told
    them."""
    if target.states_model and f"{MODEL}layers" not in launch.facts:
        reason = (
            "not a transformer of known sizes: the files state how the model is distributed, but "
            f"not the model; add the corresponding model of {target.name} by hand"
        )
        yield Note("model", reason)


def _own_nodes(target: Target, launch: Launch) -> Iterator[Note]:
    """What is to be known where other nodes are launched than a plan fills."""
    _, each = launch.nodes
    if differs(launch.cluster, each):
        reason = (
            f"{on_nodes(launch.cluster, each)} are launched, since launchers start equally many "
            "processes on every node; the simulated plan fills nodes of "
            f"{launch.cluster.node_devices} one after the other, and the prediction “as "
            f"{target.name} runs it” is for the launched nodes"
        )
        yield Note("nodes", reason)


def readme(
    target: Target,
    launch: Launch,
    prediction: Prediction,
    stated: Mapping[str, str],
    approximated: Iterable[Note],
    missing: Iterable[Note],
) -> str:
    """What a launch is, in words."""
    room = f"{short_bytes(prediction.memory_bytes)} of {short_bytes(prediction.device_bytes)}"
    predicted = f"{short_seconds(prediction.seconds)} per step, ± {percent(prediction.band)}"
    stack = prediction.as_run_stack or target.stack
    run = f"{short_seconds(prediction.as_run_seconds)}, {short_bytes(prediction.as_run_bytes)}"
    lines = [
        f"# {launch.strategy.label}",
        "",
        f"Problem: {launch.title}.",
        "",
        f"Written for {target.label}. Predicted with the software stack {prediction.stack}:",
        f"{predicted}, {room} on the fullest device.",
        f"As {target.name} runs it, with the stack {stack} and the approximations below: {run}.",
        "",
        *_unfit(target, prediction),
        "## Start",
        "",
        "```",
        written_command(launch),
        "```",
    ]
    if target.dry_run:
        lines += ["", f"Dry run: {target.dry_run}."]
    lines += ["", "## Which option states which choice", "", "| field | option |", "| --- | --- |"]
    lines += [f"| {name} | `{_cell(text)}` |" for name, text in stated.items()]
    lines += ["", "## Approximated", "", *_listed(approximated)]
    lines += ["", "## Still missing", "", *_listed(missing)]
    return "\n".join(lines) + "\n"


def _unfit(target: Target, prediction: Prediction) -> list[str]:
    if not prediction.fits:
        return ["**It does not fit in memory.**", ""]
    if prediction.as_run_fits:
        return []
    held, there = (short_bytes(n) for n in (prediction.as_run_bytes, prediction.device_bytes))
    return [f"**As {target.name} runs it, it does not fit in memory**: {held} of {there}.", ""]


def written_command(launch: Launch) -> str:
    """How the script is started, on every node."""
    nodes, _ = launch.nodes
    if nodes == 1:
        return "bash launch.sh"
    return f"NODE_RANK=0 MASTER_ADDR=host0 bash launch.sh    # … to NODE_RANK={nodes - 1}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _listed(notes: Iterable[Note]) -> list[str]:
    return [f"- {note.what}: {note.reason}" for note in notes] or ["Nothing."]


def plain_emission(emission: Emission) -> dict[str, Any]:
    """The files and notes as plain JSON values."""
    return {
        "target": emission.target.name,
        "version": emission.target.version,
        "command": emission.files.command,
        "files": dict(emission.files.files),
        "stated": dict(emission.stated),
        "approximated": [note.to_dict() for note in emission.approximated],
        "missing": [note.to_dict() for note in emission.missing],
    }
