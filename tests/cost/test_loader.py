"""Hardware and software stacks are data: every number has a source, every slip one clear line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from distir.cost import (
    SoftwareStack,
    cluster_names,
    device_names,
    load_cluster,
    load_device,
    load_stack,
    loader,
    stack_names,
)
from distir.cost.reader import TomlTable, read_toml
from distir.errors import ClusterError, UnknownNameError

DATA = Path(loader.__file__).parent

GOOD = """
name = "lab"
summary = "two boxes"
devices = 6

[device]
name = "X1"
memory = "16 GiB"
memory_bandwidth = "1 TB/s"
peak = { fp32 = "10 TFLOP/s", bf16 = "80 TFLOP/s" }

[[levels]]
name = "board"
size = 4
bandwidth = ["100 GB/s", "50 GB/s"]
pair_bandwidth = "25 GB/s"
latency = "2 us"

[[levels]]
name = "network"
bandwidth = "100 Gbit/s"
latency = "10 us"
"""

HOST = """
[host]
devices = 6
memory = "1 TB"
memory_bandwidth = "400 GB/s"
link = "32 GB/s"
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "lab.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_description_of_one_s_own_is_a_cluster(write: Write) -> None:
    cluster = load_cluster(write(GOOD))
    assert (cluster.name, cluster.summary, cluster.num_devices) == ("lab", "two boxes", 6)
    assert cluster.device.memory_bytes == 16 * 2**30
    assert cluster.device.peak("bf16") == 80e12
    board, network = cluster.levels
    assert (board.size, board.bandwidth_bytes_per_second, board.medium) == (4, 50e9, "board")
    assert board.pair_bandwidth_bytes_per_second == 25e9
    assert network.bandwidth_bytes_per_second == 12.5e9
    assert network.pair_bandwidth_bytes_per_second == float("inf")
    assert (network.size, network.latency_seconds, network.medium) == (None, 1e-5, "network")
    assert load_cluster(str(write(GOOD)), 9).num_devices == 9


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_machines_may_be_parts_of_a_unit_or_several(write: Write, devices: int) -> None:
    stated = GOOD.replace("[device]", f"devices_per_node = {devices}\n[device]")
    assert load_cluster(write(stated)).node_devices == devices


def test_one_peer_may_get_all_that_a_device_can_send(write: Write) -> None:
    board, _ = load_cluster(write(GOOD.replace('"25 GB/s"', '"50 GB/s"'))).levels
    assert board.pair_bandwidth_bytes_per_second == board.bandwidth_bytes_per_second


def test_a_description_may_name_a_known_device(write: Write) -> None:
    head, _, rest = GOOD.partition("[device]")
    levels = "[[levels]]" + rest.partition("[[levels]]")[2]
    cluster = load_cluster(write(head + 'device = "A100-SXM4-80GB"\n' + levels))
    assert cluster.device == load_device("a100-sxm4-80gb")
    with pytest.raises(
        ClusterError, match=r"unknown device 'a100-80gb'; did you mean: .*a100-sxm4-80gb"
    ):
        load_cluster(write(head + 'device = "a100-80gb"\n' + levels))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"16 GiB"', '"16 GHz"', "device.memory = '16 GHz' is not an amount of memory"),
        ('"16 GiB"', '"16"', "has no unit"),
        ('"16 GiB"', "16", "device.memory is 16, which is not an amount of memory"),
        ('"1 TB/s"', '"1 TB"', "device.memory_bandwidth = '1 TB' is not a bandwidth"),
        ('memory = "16 GiB"\n', "", "device.memory is missing"),
        ('memory = "16 GiB"\n', 'memory = "0 GiB"\n', "memory of X1 is 0.0"),
        ("memory_bandwidth", "memory_bandwith", "missing; is it meant by 'memory_bandwith'?"),
        ('fp32 = "10', 'fp23 = "10', "device.peak.fp23 is not a known type"),
        ('fp32 = "10 TFLOP/s", ', "", "states no fp32 peak"),
        ("devices = 6", "device_count = 6", "device_count is not a known key"),
        ("devices = 6", "devces = 6", "devces is not a known key; did you mean 'devices'?"),
        ("devices = 6", "devices = 0", "devices is 0; expected a whole number"),
        ("size = 4\n", "", "levels[0].size is missing"),
        ("size = 4", 'size = "4"', "levels[0].size is '4'; expected a whole number"),
        ('"2 us"', '"2 GB"', "levels[0].latency = '2 GB' is not a time"),
        ('["100 GB/s", "50 GB/s"]', "[]", "levels[0].bandwidth is empty"),
        ('["100 GB/s", "50 GB/s"]', '["100 GB/s", 50]', "levels[0].bandwidth is 50"),
        ('latency = "10 us"', 'latency = "10 us"\nmedium = "air"', "expected one of board"),
        (
            "[device]",
            "devices_per_node = 0\n[device]",
            "is 0; expected a whole number of at least 1",
        ),
        (
            "[device]",
            "devices_per_node = 3\n[device]",
            "devices_per_node is 3, and level 'board' joins 4",
        ),
        (
            "[device]",
            f"{HOST}[device]",
            "host.devices is 6, and level 'board' joins 4 devices; expected a divisor or a",
        ),
        (
            '"25 GB/s"',
            '"51 GB/s"',
            "levels[0].pair_bandwidth is 5.1e+10 B/s, more than a device can",
        ),
        ("[device]", '[device]\nplatform = "metal"', "expected one of cuda, rocm, xla"),
        ("[device]", "[devices_]", "device is missing; is it meant by 'devices' or 'devices_'?"),
        ("[[levels]]", "[[tiers]]", "levels is missing"),
        ('name = "lab"', "name = 3", "name is 3; expected a text"),
        ('name = "lab"', "name = ", "not valid TOML"),
    ],
)
def test_a_slip_is_one_line_with_file_and_key(write: Write, old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(ClusterError) as caught:
        load_cluster(write(GOOD.replace(old, new)))
    assert says in str(caught.value)
    assert "lab.toml: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_binary_file_and_a_folder_are_not_descriptions(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterError, match="not text in UTF-8"):
        load_cluster(path)
    with pytest.raises(ClusterError, match="is a folder; expected a cluster file"):
        load_cluster(tmp_path)


def test_unknown_names_list_the_near_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean: .*dgx-a100"):
        load_cluster("dgx-a10")
    with pytest.raises(UnknownNameError, match="unknown software stack 'zzz'"):
        load_stack("zzz")
    with pytest.raises(ClusterError, match=r"nowhere\.toml: there is no such cluster file"):
        load_cluster("nowhere.toml")


def test_names_match_without_regard_to_case() -> None:
    assert load_cluster("DGX-A100") == load_cluster("dgx-a100")
    assert load_stack("FSDP-eager") == load_stack("fsdp-eager")
    assert load_device("H100-SXM5-80GB").name == "H100-SXM5-80GB"


@pytest.mark.parametrize("name", cluster_names())
def test_every_shipped_cluster_loads_and_is_called_what_its_file_is(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.summary
    assert cluster.levels[-1].size is None
    assert load_cluster(name, 1024).group(1024).size == 1024


def test_the_clusters_that_scripts_use_are_there() -> None:
    assert {"dgx2-v100", "dgx-a100", "hgx-h100"} <= set(cluster_names())
    sizes = {name: load_cluster(name).levels[0].size for name in cluster_names()}
    assert (sizes["dgx2-v100"], sizes["dgx-a100"], sizes["gb200-nvl72"]) == (16, 8, 72)


FILES = sorted(DATA.rglob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_number_has_a_source(path: Path) -> None:
    top = read_toml(path)
    tables: list[TomlTable] = [top, *(top.tables("levels") if "levels" in top else [])]
    tables += [top.table("constants")] if "constants" in top else []
    tables += [top.table("host")] if "host" in top else []
    for table in tables:
        no_facts = {"name", "summary", "device", "host", "levels", "medium", "constants", "sources"}
        numbers = set(table.names) - no_facts
        assert numbers == set(table.sources())


@pytest.mark.parametrize("name", device_names())
def test_every_shipped_device_loads(name: str) -> None:
    device = load_device(name)
    assert device.name.lower().startswith(name.split("-", maxsplit=1)[0])
    assert 16 * 2**30 <= device.memory_bytes < 2**40
    assert device.peak("fp16") > device.peak("fp32")


def test_stacks_differ_where_they_should() -> None:
    ideal, compiled, eager = (load_stack(name) for name in ("ideal", "fsdp-compiled", "fsdp-eager"))
    assert {"megatron-2021", "megatron", "deepspeed", "jax"} <= set(stack_names())
    assert eager.launch_seconds == eager.eager_launch_seconds > 5 * compiled.launch_seconds
    assert ideal.launch_seconds == ideal.iteration_overhead_seconds == 0
    assert load_stack("megatron-2021").attention == "eager" != load_stack("megatron").attention


@pytest.mark.parametrize("name", stack_names())
def test_stacks_state_facts_and_share_their_constants(name: str) -> None:
    """But for the ideal one, which is none: the fitted constants are the same for all."""
    stack = load_stack(name)
    assert stack.name == name
    assert stack.summary
    shared = {field.name for field in fields(SoftwareStack) if field.type == "float"}
    reference = load_stack("fsdp-compiled")
    same = {each for each in shared if getattr(stack, each) == getattr(reference, each)}
    assert (same == shared) == (name != "ideal")


STACK = """
name = "lab"
dispatch = "eager"
attention = "eager"

[constants]
product_efficiency = 0.6
eager_launch = "20 us"
"""


def test_a_stack_of_one_s_own_takes_the_shared_constants_that_it_leaves_out(write: Write) -> None:
    stack, shared = load_stack(write(STACK)), load_stack("fsdp-eager")
    assert (stack.product_efficiency, stack.launch_seconds) == (0.6, 20e-6)
    assert stack.memory_efficiency == shared.memory_efficiency
    assert not stack.fuses_elementwise


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("= 0.6", "= 1.2", "expected more than 0, at most 1"),
        ('"20 us"', "20", "constants.eager_launch is 20, which is not a time"),
        ("product_", "soft_maximum_order = 0.5\nproduct_", "expected at least 1"),
        ("= 0.6", "= true", "expected a number without unit"),
        ("product_", "prodct_", "constants.prodct_efficiency is not a known key; did you mean"),
        ('dispatch = "eager"', 'dispatch = "lazy"', "expected one of eager, blocking, compiled"),
    ],
)
def test_a_stack_that_cannot_be_says_why(write: Write, old: str, new: str, says: str) -> None:
    assert old in STACK
    with pytest.raises(ClusterError) as caught:
        load_stack(write(STACK.replace(old, new, 1)))
    assert says in str(caught.value)
