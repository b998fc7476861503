"""Choices per layer stand beside one policy for all layers, where memory is tight."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.recompute.__main__ import compared, drawn, main


def test_the_same_seed_draws_the_same_case() -> None:
    assert [drawn(seed) for seed in range(20)] == [drawn(seed) for seed in range(20)]
    assert len({drawn(seed) for seed in range(20)}) == 20


@pytest.mark.slow(seconds=4)
def test_a_case_is_tight_and_no_policy_for_all_layers_is_faster(tmp_path: Path) -> None:
    main(["--cases", "2", "--first", "200", "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["summary"]["cases"] == 2
    assert found["summary"]["slower_than_uniform"] == 0
    for case in found["cases"]:
        assert case["auto_seconds"] <= case["uniform_seconds"]
    assert compared(found["cases"][0]["seed"])
