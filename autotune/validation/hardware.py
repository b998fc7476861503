"""The cluster that a row's hardware, node size and interconnect describe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from autotune.validation.rows import MeasuredRow, UnusableRowError
from autotune.validation.words import read_data
from distir.cost import Cluster, Device, load_cluster
from distir.errors import DistirError

__all__ = ["Hardware", "hardware_family", "hardware_of", "hardware_words"]

_RATE = re.compile(
    r"(?:(?P<times>\d+) ?(?:(?:nics?|ports?|rails?|hcas?|adapters?) )?(?:[x×*]|\bof\b|\bat\b) ?)?"
    r"(?:(?!nodes?\b|servers?\b|gpus?\b|[dh]gx\b|[abhv]\d+\b)[a-z][\w-]* )*?"
    r"(?P<rate>\d+(?:\.\d+)?) ?(?P<scale>[gt])"
    r"(?:(?P<bytes>(?-i:B)(?:ytes)?(?:ps|/s))|(?P<bits>(?:b|bits?)(?:ps|/s|e\b| ethernet)|igabit)"
    r"|(?<=g)(?![a-z]))"
    r"(?: ?[x×*] ?(?P<after>\d+)\b)?",
    re.IGNORECASE,
)
"""`8x HDR IB 200Gb/s`, `1600 Gbps`, `400 GbE x8`, `8x200G`: bits per second; `8x50 GB/s`: bytes."""

_NETWORK = re.compile(
    r"infini ?band|\bib\b|\b[enhx]dr\b|\broce|ethernet|gbe\b|omni-?path|slingshot|\befa\b|\bnics?\b"
    r"|rdma|network|inter-?node|between nodes",
    re.IGNORECASE,
)
"""What names a network: bytes per second, and a number of G alone, which may be memory, are taken
for its rate only beside one of these words."""

_WITHIN = re.compile(r"nvlink|nvswitch|intra|pcie", re.IGNORECASE)

_PER_DEVICE = re.compile(
    r"(?:\bper|\beach|\bevery|/)[ -]?(?:gpu|device|accelerator|rank)\b", re.IGNORECASE
)
_PER_NODE = re.compile(
    r"(?:\bper|\beach|\bevery|/)[ -]?(?:node|server|host|machine)\b|node-node|inter-?node",
    re.IGNORECASE,
)

_MEMORY = re.compile(r"\b(\d+) ?gi?b\b", re.IGNORECASE)
_BANDWIDTH = re.compile(r"\b(\d+(?:\.\d+)?) ?tb(?:/s|ps)", re.IGNORECASE)
_POWER = re.compile(r"\b(\d{2,4}) ?w(?:atts?)?\b", re.IGNORECASE)


ROUNDED = 0.15
"""By which fraction a figure may differ from a datasheet's for being rounded, or in other units: 80
GB are 0.93 of 80 GiB."""

CLOCK_BY_POWER = 1 / 3
"""The exponent with which the clock of matrix units falls with the power limit. Their power is that
of switching, proportional to clock times voltage squared, and the voltage falls with the clock
(Mudge 2001, Power: A First-Class Architectural Design Constraint, IEEE Computer 34(4), equation 1
and what follows). Not fitted."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A cluster, the name of its family of devices, and what was assumed."""

    cluster: Cluster
    family: str
    assumptions: tuple[str, ...]


def hardware_of(row: MeasuredRow) -> Hardware:
    """The hardware of a row; raises `UnusableRowError` where it is not stated or not known."""
    text = row.text("hardware")
    if not text:
        raise UnusableRowError("hardware not stated")
    if _names_file(text):
        return _own_hardware(row, text)
    entry = _entry(text, row.count("gpus_per_node"))
    if entry is None:
        raise UnusableRowError(
            "hardware is not known", f"{text}; a cluster file (.toml) may be named in its place"
        )
    if "excluded" in entry:
        raise UnusableRowError(entry["excluded"], text)
    cluster = _cluster(entry["cluster"])
    assumptions: list[str] = []
    domain = entry.get("domain", cluster.levels[0].size)
    node = row.count("gpus_per_node")
    if "node" in entry or (node is not None and (domain or 0) <= 16):
        domain = node or entry["node"]
    levels = [replace(cluster.levels[0], size=domain), *cluster.levels[1:]]
    per_node = node or domain or 8
    network = network_rate(row.text("interconnect"), per_node)
    if network is not None:
        levels[-1] = replace(levels[-1], bandwidth_bytes_per_second=network.bytes_per_second)
        if not network.said_of:
            assumptions.append(network.note(per_node))
    elif row.needed("num_gpus") > (domain or 0):
        assumptions.append(f"network as in {cluster.name}")
    device, notes = _as_stated(cluster, text)
    assumptions += notes
    host = cluster.host
    if host is not None and node is not None and node < host.devices:
        host = None  # another machine than that of the data
    try:
        made = replace(
            cluster,
            device=device,
            levels=tuple(levels),
            num_devices=row.needed("num_gpus"),
            host=host,
        )
    except DistirError as error:
        raise UnusableRowError("hardware cannot hold the devices", str(error)) from error
    return Hardware(made, entry["family"], tuple(assumptions))


def hardware_words(row: MeasuredRow) -> str:
    """What a row says of its hardware, with the name of the device where it names a file of a
    cluster: what software does may hang on the device."""
    text = row.text("hardware")
    if not _names_file(text):
        return text
    try:
        return f"{text}; {_cluster(text).device.name}"
    except DistirError:  # `hardware_of` says why the file cannot be read
        return text


def _names_file(text: str) -> bool:
    return text.lower().endswith(".toml")


def _entry(text: str, node: int | None) -> Mapping[str, Any] | None:
    """The first entry that means a text and nodes of so many devices; None: not stated."""
    return next((each for each in _known() if _means(each, text, node)), None)


def _means(entry: Mapping[str, Any], text: str, node: int | None) -> bool:
    at_most = entry.get("per_node_at_most")
    if at_most is not None and (node is None or node > at_most):
        return False
    return re.search(entry["pattern"], text, re.IGNORECASE) is not None


def _own_hardware(row: MeasuredRow, file: str) -> Hardware:
    """A cluster that a file describes, such as that of a profile."""
    try:
        cluster = load_cluster(file, row.needed("num_gpus"))
    except DistirError as error:
        raise UnusableRowError("hardware cannot be read", str(error)) from error
    return Hardware(cluster, cluster.name, ())


@dataclass(frozen=True, slots=True)
class NetworkRate:
    """The network that a text describes."""

    bytes_per_second: float
    """Per device."""
    said_of: bool
    """Whether the text says what its rate is the rate of: of a device, of a node, or of one of
    several ports."""

    def note(self, node: int) -> str:
        """The rate as it was understood, if the text leaves that open."""
        gigabits = self.bytes_per_second * node * 8 / 1e9
        return f"network = {gigabits:g} Gbit/s per node: per GPU is not said"


def network_rate(text: str, node: int) -> NetworkRate | None:
    """The rate of the network that a text describes, or None where it states none: a node's, which
    its devices share, unless it is said to be a device's. What the text says of links within a node
    is left aside."""
    for part in re.split(r"[;,+()]|\band\b", re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)):
        named, found = _NETWORK.search(part), _RATE.search(part)
        if found is None or (_WITHIN.search(part) and not named):
            continue
        ports = int(found["times"] or found["after"] or 1)
        if not named and (found["bytes"] or (not found["bits"] and ports == 1)):
            continue
        scale = 1e12 if found["scale"].lower() == "t" else 1e9
        bits = float(found["rate"]) * scale * (8 if found["bytes"] else 1)
        if _PER_DEVICE.search(part):
            return NetworkRate(bits * (1 if ports == node else ports) / 8, said_of=True)
        said = ports > 1 or _PER_NODE.search(part) is not None
        return NetworkRate(bits * ports / node / 8, said)
    return None


def _as_stated(cluster: Cluster, text: str) -> tuple[Any, list[str]]:
    """The device, with the memory and its bandwidth that the text states if they differ by more
    than rounding, and what else it states that is otherwise."""
    device, notes = cluster.device, list[str]()
    memory, bandwidth, power = (each.search(text) for each in (_MEMORY, _BANDWIDTH, _POWER))
    if memory is not None and _differs(int(memory[1]) * 2**30, device.memory_bytes):
        device = replace(device, memory_bytes=float(int(memory[1]) * 2**30))
    if bandwidth is not None:
        stated = float(bandwidth[1]) * 1e12
        if _differs(stated, device.memory_bandwidth_bytes_per_second):
            device = replace(device, memory_bandwidth_bytes_per_second=stated)
    usual = device.power_watts
    if power is not None and usual is not None and _differs(float(power[1]), usual):
        limited, note = _limited(device, float(power[1]), usual)
        device = replace(device, sustained_fraction=limited)
        notes.append(f"{note}: {power[0]} is stated, its datasheet has {usual:g} W")
    return device, notes


def _limited(device: Device, watts: float, usual: float) -> tuple[float, str]:
    """What the device sustains with another power limit than the `usual` one, and a note on it. How
    much faster a higher limit makes it, its highest clock decides, which is not known."""
    if watts > usual:
        return device.sustained_fraction, f"rates as with {usual:g} W"
    clock = (watts / usual) ** CLOCK_BY_POWER
    return device.sustained_fraction * clock, f"matrix rates times {clock:.2g}"


def _differs(stated: float, usual: float) -> bool:
    return abs(stated / usual - 1) >= ROUNDED


@lru_cache(maxsize=1)
def _known() -> list[dict[str, Any]]:
    return read_data("hardware.toml")["hardware"]


@lru_cache(maxsize=32)
def _cluster(name: str) -> Cluster:
    return load_cluster(name)


def hardware_family(row: MeasuredRow) -> str:
    """The family of a row's devices, or the text where it is not known."""
    text = row.text("hardware")
    entry = _entry(text, None)  # nodes of any size have one family
    return entry.get("family", text) if entry else text or "not stated"
