"""What software always does, and what words mean that name it."""

from __future__ import annotations

import pytest

from autotune.validation.software import known_software
from tests.validation.rows import case

SHARDS_NORMS = {
    "torchtitan": "torchtitan",
    "torchtitan without compilation": "torchtitan, no compile",
    "MaxText": "MaxText",
    "PaxML": "PaxML with Transformer Engine",
    "PaxML without Transformer Engine": "PaxML",
}
"""Software in which activations between products always rest split on the devices of `tp`, and a
text that names it."""


@pytest.mark.parametrize(("name", "software"), SHARDS_NORMS.items())
def test_software_without_an_option_shards_norms_wherever_tp_is(name: str, software: str) -> None:
    found = case(software=software)
    assert found.software.name == name
    assert found.strategy.sequence_parallel
    assert any(each.startswith("sequence_parallel = 1: ") for each in found.assumptions)


@pytest.mark.parametrize("software", SHARDS_NORMS.values())
def test_what_a_row_states_counts_before_what_its_software_does(software: str) -> None:
    assert not case(software=software, sequence_parallel="no").strategy.sequence_parallel
    assert not case(software=software, tp="1", dp="8").strategy.sequence_parallel


@pytest.mark.parametrize("software", ["Levanter", "JAX", "PyTorch FSDP", "nanotron"])
def test_software_with_an_option_shards_norms_only_if_told(software: str) -> None:
    assert not case(software=software).strategy.sequence_parallel
    assert case(software=software, sequence_parallel="yes").strategy.sequence_parallel


def test_what_software_assumes_of_its_own_has_a_reason() -> None:
    for software in known_software():
        if software.assumes.get("sequence_parallel"):
            assert software.because["sequence_parallel"]
