"""Ops that cannot be imported are refused with the reason, and with what to do."""

from __future__ import annotations

import pytest

from distir.importers.onnx_unknown import unknown_op


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("Scan", "one after another; export it unrolled"),
        ("RandomNormalLike", "draws random numbers"),
        ("SequenceInsert", "its results are not tensors"),
        ("NonZero", "config.json"),
        ("Compress", "depends on data; export the model without it"),
        ("com.microsoft.nchwc:Conv", "ORT_ENABLE_EXTENDED"),
        ("com.microsoft:QLinearWhere", "before quantization"),
        ("com.microsoft:QAttention", "before quantization"),
        ("com.microsoft:QMoE", "register an op"),
        ("ReverseSequence", "register an op"),
        ("Softmx", "similar names: Softmax"),
    ],
)
def test_the_reason_is_that_of_the_op(key: str, reason: str) -> None:
    message = unknown_op(key)
    assert message.startswith(f"{key} is not supported")
    assert reason in message
