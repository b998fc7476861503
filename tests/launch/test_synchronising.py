"""Replicas that synchronise every few steps, which no launch states."""

from __future__ import annotations

import pytest

from autotune.cli import main

REASONS = {
    "torchtitan": "need one launch per replica, joined by a Lighthouse of torchft",
    "megatron": "megatron has no option for it",
    "deepspeed": "deepspeed has no option for it",
    "accelerate": "accelerate has no option for it",
}


@pytest.mark.not_quick
@pytest.mark.parametrize(("target", "reason"), REASONS.items())
def test_launches_say_that_they_cannot_synchronise_rarely(
    target: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("--dp", "4", "--sync-every", "8", "--outer-optimizer", "nesterov")
    assert main(["launch", "--target", target, "--model", "gpt2", *plan]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "sync_every = 8 cannot be stated" in line
    assert reason in line
    assert "nearest: sync_every 1, outer_optimizer mean" in line
