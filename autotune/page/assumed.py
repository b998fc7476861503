"""What a result rests on: model, cluster, software, versions, constants with their sources."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from autotune.page.contents import Block, Code, Table, Text
from distir import __version__
from distir.units import format_bytes, format_bytes_per_second, format_seconds, unit_of

if TYPE_CHECKING:
    from autotune.problem import Problem
    from distir.cost import ClusterLevel, Device, Host, SoftwareStack
    from distir.simulation import Simulator


def assumed_blocks(
    problem: Problem, said: Mapping[str, str], command: str | None = None
) -> list[Block]:
    """Tables of what was assumed. `said`: what else there is to say, such as seeds."""
    blocks: list[Block] = []
    if command is not None:
        blocks += [Text("To reproduce:"), Code(command)]
    versions = {"distir": __version__, "Python": platform.python_version(), **_versions()}
    workload: Any = problem.workload
    facts = {
        "problem": problem.title,
        "space": problem.space_name,
        **_workload(workload),
        **said,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    blocks.append(Table(("", ""), [[name, value] for name, value in facts.items()], texts=2))
    simulator: Any = problem.simulator
    if hasattr(simulator, "cost"):
        blocks += _hardware(cast("Simulator", simulator))
    return blocks


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str] = {}
    for name in ("numpy", "optuna"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _workload(workload: Any) -> dict[str, str]:
    """What a reader of a report wants to know of a workload."""
    said: dict[str, str] = {}
    for name in ("precision", "optimizer", "length"):
        value = getattr(workload, name, None)
        if value is not None:
            said["sequence length" if name == "length" else name] = str(value)
    flops = getattr(workload, "model_flops", None)
    if flops is not None:
        said["FLOP of the model per step"] = f"{flops:.4g}"
    function = getattr(getattr(workload, "model", None), "function", None)
    if function is not None:
        count = sum(value.type.num_elements for value in function.parameters)
        said["parameters"] = f"{count:,}"
    return said


def _hardware(simulator: Simulator) -> list[Block]:
    cluster, stack = simulator.cluster, simulator.cost.stack
    levels = [
        [
            level.name,
            "no limit" if level.size is None else str(level.size),
            format_bytes_per_second(level.bandwidth_bytes_per_second),
            format_seconds(level.latency_seconds),
            level.medium,
        ]
        for level in cluster.levels
    ]
    sourced = [
        [f"{level.name}: {row[0]}", *row[1:]]
        for level in cluster.levels
        for row in _constants(level)
    ]
    if cluster.host is not None:
        sourced += [[f"host: {row[0]}", *row[1:]] for row in _constants(cluster.host)]
    head = ("level", "joins", "bandwidth per device and direction", "latency", "medium")
    caption = f"{cluster.name}: {cluster.num_devices} {cluster.device.name}. {cluster.summary}"
    return [
        Table(head, levels, caption),
        Table(
            ("level", "value", "source"),
            sourced,
            f"The cluster, {cluster.name}, with sources",
            texts=3,
            folded=True,
        ),
        Table(
            ("device", "value", "source"),
            _constants(cluster.device),
            f"The device, {cluster.device.name}",
            texts=3,
            folded=True,
        ),
        Table(
            ("software", "value", "source"),
            _constants(stack),
            f"The software stack, {stack.name}: {stack.summary}",
            texts=3,
            folded=True,
        ),
    ]


def _constants(of: Device | SoftwareStack | ClusterLevel | Host) -> Sequence[Sequence[str]]:
    """What a description of hardware or software states, with the sources."""
    rows: list[list[str]] = []
    for each in fields(of):
        value = getattr(of, each.name)
        if each.name in ("name", "summary", "sources"):
            continue
        said = _said(each.name, value)
        rows.append([each.name.replace("_", " "), said, _source(each.name, of.sources)])
    return rows


def _said(name: str, value: Any) -> str:
    if value is None:
        return "no limit" if name == "size" else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return ", ".join(f"{key} {_said(name, item)}" for key, item in items)
    if isinstance(value, (int, float)):
        if math.isinf(value):
            return "no limit"
        if name.endswith("_bytes_per_second"):
            return format_bytes_per_second(value)
        if name.endswith("_bytes"):
            return format_bytes(value)
        return unit_of(name)(value) if name.endswith("_seconds") else f"{value:.4g}"
    return str(value)


def _source(name: str, sources: Mapping[str, str]) -> str:
    """The source of a field: files name some fields without their unit."""
    stems = [name, name.removesuffix("_seconds"), name.removesuffix("_bytes")]
    stems += [name.removesuffix("_bytes_per_second"), name.removesuffix("_flops_per_second")]
    return next((sources[stem] for stem in stems if stem in sources), "")
