"""Schedules in the notation of torch.distributed.pipelining: known again, or refused quickly."""

from __future__ import annotations

import pytest

from autotune.launch.errors import LaunchError
from autotune.launch.torch_schedule import format_csv, named, parse_csv
from distir.schedules import SCHEDULES


def test_every_family_is_known_again() -> None:
    for entry in SCHEDULES:
        family = entry.value
        chunks = next((c for c in (1, 2, 3) if family.requires(4, c, 8) is None), None)
        assert chunks is not None, family.name
        made = family(4, chunks, 8)
        read = parse_csv(format_csv(made)) if not made.overlapped else made
        assert named(read, chunks, family.name) == family.name


def test_a_schedule_with_too_few_actions_is_refused_before_families_are_tried() -> None:
    """They would make schedules of as many microbatches as the largest number says."""
    text = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B9999999\n"
    expected = "8 actions; 10,000,000 microbatches on 2 stages need at least 40,000,000"
    with pytest.raises(LaunchError, match=expected):
        named(parse_csv(text), 1, "1f1b")
