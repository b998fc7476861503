"""Which machine a row's hardware means."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import distir.cost
from autotune.validation.hardware import hardware_family
from tests.validation.rows import case, row

DGX_2 = "dgx2-v100"
MESH = "dgx1-v100"


@pytest.mark.parametrize(
    ("hardware", "node", "cluster"),
    [
        ("Tesla V100-SXM2-16GB", "8", MESH),
        ("V100 SXM2 32GB", "", MESH),
        ("V100 16GB", "", MESH),
        ("NVIDIA DGX-1 (V100)", "8", MESH),
        ("V100 32GB", "4", MESH),
        ("V100 32GB", "16", DGX_2),
        ("V100 32GB (DGX-2)", "16", DGX_2),
        ("V100-SXM3-32GB", "8", DGX_2),
        ("8x V100 with NVSwitch", "8", DGX_2),
        ("V100", "", DGX_2),
        ("V100 16GB (AWS p3.16xlarge)", "8", "p3-v100-16gb"),
        ("V100 32GB (AWS p3dn.24xlarge, written p3.24xlarge)", "8", "p3dn-v100-32gb"),
    ],
)
def test_only_sixteen_v100_have_a_switch(hardware: str, node: str, cluster: str) -> None:
    """Modules named SXM2, those of 16 GB, and nodes of eight or fewer are joined by links alone."""
    found = case(hardware=hardware, gpus_per_node=node, precision="fp16").hardware
    assert (found.cluster.name, found.family) == (cluster, "V100")
    assert math.isinf(found.cluster.levels[0].pair_bandwidth_bytes_per_second) == (cluster == DGX_2)


@pytest.mark.parametrize(("hardware", "gibibytes"), [("V100-SXM2-16GB", 16), ("V100-SXM2", 32)])
def test_a_mesh_has_the_memory_that_is_stated(hardware: str, gibibytes: int) -> None:
    found = case(hardware=hardware, precision="fp16").hardware
    assert found.cluster.device.memory_bytes == gibibytes * 2**30


def test_all_v100_are_one_family() -> None:
    assert hardware_family(row(hardware="V100-SXM2-16GB")) == "V100"
    assert hardware_family(row(hardware="V100", gpus_per_node="nonsense")) == "V100"


@pytest.mark.parametrize("cluster", ["dgx1-v100", "hgx-h100", "dgx-a100"])
def test_software_that_hangs_on_the_device_knows_that_of_a_file(
    tmp_path: Path, cluster: str
) -> None:
    """A file of a cluster says no less than the name of its device."""
    shipped = Path(distir.cost.__file__).parent / "clusters" / f"{cluster}.toml"
    file = tmp_path / "own.toml"
    file.write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    by_file = case(hardware=str(file), source="Megatron", precision="fp16")
    by_name = case(
        hardware=by_file.hardware.cluster.device.name, source="Megatron", precision="fp16"
    )
    assert by_file.software == by_name.software
    nobody = case(hardware=str(file), source="", precision="fp16").software
    assert (nobody.name == "a stack of the Volta years") == ("v100" in cluster)


@pytest.mark.parametrize(
    ("text", "gib", "terabytes", "told"),
    [
        ("H100 SXM", 80, 3.35, False),
        ("H100 96GB HBM2e, 2.4 TB/s, 500 W", 96, 2.4, True),
        ("H100 80GB (3.35TB/s, 700W)", 80, 3.35, False),
        ("8x H100 80GB, 900 GB/s NVLink", 80, 3.35, False),
    ],
)
def test_a_device_has_the_memory_that_is_stated(
    text: str, gib: int, terabytes: float, told: bool
) -> None:
    found = case(hardware=text)
    device = found.hardware.cluster.device
    assert device.memory_bytes == gib * 2**30
    assert device.memory_bandwidth_bytes_per_second == pytest.approx(terabytes * 1e12)
    assert any("500 W is stated" in each for each in found.assumptions) == told


@pytest.mark.parametrize(("watts", "clock"), [(700, 1.0), (350, 0.5 ** (1 / 3)), (900, 1.0)])
def test_matrix_rates_fall_with_the_cube_root_of_a_stated_power_limit(
    watts: int, clock: float
) -> None:
    usual = case(hardware="H100 SXM").hardware.cluster.device
    limited = case(hardware=f"H100 SXM, {watts} W").hardware
    device = limited.cluster.device
    assert device.sustained_fraction == pytest.approx(usual.sustained_fraction * clock)
    assert device.memory_bandwidth_bytes_per_second == usual.memory_bandwidth_bytes_per_second
    assert any(f"{watts} W is stated" in each for each in limited.assumptions) == (watts != 700)
