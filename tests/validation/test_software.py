"""What software always does, and what words mean that name it."""

from __future__ import annotations

import pytest

from autotune.validation.predict import prepare
from autotune.validation.rows import MeasuredRow
from autotune.validation.software import facts_of, known_software
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


def test_torchtune_keeps_nothing_in_fp32() -> None:
    found = case(software="torchtune, compile=False", precision="bf16", pp="1", dp="8")
    assert (found.precision, found.software.stack) == ("pure-bf16", "fsdp-eager")
    assert (found.strategy.zero, found.strategy.recompute) == (3, "none")
    assert case(software="torchtune (torch.compile)").software.stack == "fsdp-compiled"
    assert case(software="torchtune", precision="fp32").precision == "fp32"
    assert case(software="torchtitan", precision="bf16").precision == "bf16"


def test_what_software_assumes_of_its_own_has_a_reason() -> None:
    for software in known_software():
        if software.assumes.get("sequence_parallel"):
            assert software.because["sequence_parallel"]


@pytest.mark.parametrize("software", ["FlagScale.git@ed55532", "FlagScale@6fc099c (Megatron)"])
@pytest.mark.parametrize("hardware", ["NVIDIA_A800-SXM4-80GB", "H100"])
def test_flagscale_is_megatron(software: str, hardware: str) -> None:
    found = case(software=software, hardware=hardware)
    assert found.software.name == "FlagScale, a fork of Megatron-LM"
    assert (found.software.stack, found.model.attention) == ("megatron", "fused")
    assert found.software_known
    assert not found.stack_fields["overlaps_activations"]


def test_mixtures_with_flagscale_are_those_of_megatron() -> None:
    of_experts = {"num_experts": "8", "moe_topk": "2", "ep": "2"}
    flagscale, megatron = (case(software=name, **of_experts) for name in ("FlagScale", "Megatron"))
    assert flagscale.software == megatron.software
    assert flagscale.facts == megatron.facts


def overlaps(notes: str, experts: str = "64") -> bool | None:
    """What the notes of a row say of overlapping exchanges of experts."""
    facts = facts_of(MeasuredRow(1, {"notes": notes, "num_experts": experts}))
    return next((fact.value for fact in facts if fact.name == "overlaps_exchanges"), None)


@pytest.mark.parametrize(
    "name",
    ["1f1b overlap", "1F1B A2A overlap", "EP A2A overlap", "A2A_1F1B", "combined 1F1B"],
)
def test_overlap_of_exchanges_has_many_names(name: str) -> None:
    assert overlaps(f"moe_dev; +{name}") is True
    assert overlaps(f"without {name}") is False


def test_a_schedule_is_no_overlap_and_a_dense_model_has_no_exchanges() -> None:
    assert overlaps("1F1B, overlap of gradients") is None
    assert overlaps("1F1B + overlap grad reduce") is None
    assert overlaps("interleaved 1F1B overlap_grad_reduce") is None
    assert overlaps("1f1b + overlap-p2p-communication") is None
    assert overlaps("1f1b overlap", experts="") is None


def test_a_schedule_may_say_that_exchanges_are_overlapped() -> None:
    experts = {"num_experts": "8", "moe_topk": "2", "ep": "4", "gated_mlp": "yes"}
    made = case(**experts, schedule="1F1B overlap", software="Megatron-Core")
    assert made.strategy.schedule == "1f1b"
    assert made.facts["overlaps_exchanges"] is True
    assert "overlaps_exchanges" not in case(**experts, software="Megatron-Core").facts


@pytest.mark.parametrize(
    ("said", "scatters"),
    [
        ({"source": "Megatron-LM", "software": "Megatron-LM, May 2021"}, False),
        ({"source": "Megatron-LM", "date": "2021-03-22"}, False),
        ({"source": "Megatron-LM", "date": "2022-03-22"}, True),
        ({"source": "Narayanan et al. 2021 (Megatron-LM, April 2021)"}, True),
        ({"source": "Megatron-DeepSpeed, 2021-05"}, True),
        ({"source": "Megatron-Core", "date": "2025-03-22"}, False),
        ({"source": "Zero Bubble"}, False),
        (
            {
                "source": "Megatron-LM, 2022",
                "notes": "--no-scatter-gather-tensors-in-pipeline",
            },
            False,
        ),
        (
            {
                "source": "Megatron-LM, May 2021",
                "notes": "--scatter-gather-tensors-in-pipeline",
            },
            True,
        ),
    ],
)
def test_messages_go_in_parts_where_the_software_of_the_time_sent_parts(
    said: dict[str, str], scatters: bool
) -> None:
    (prepared,) = prepare([case(**said)])
    assert prepared.stack.scatters_messages == scatters
