"""DeepSpeed's own configuration class reads what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.launch import TARGETS
from tests.launch.real.examples import COUNT
from tests.launch.strategies import MODELS, random_launches, written

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def config() -> Any:
    return pytest.importorskip("deepspeed.runtime.config", reason="needs deepspeed")


class _Replicas:
    """What DeepSpeed asks about the world."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_data_parallel_world_size(self) -> int:
        return self.count


def test_deepspeed_parses_the_strategy(
    config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = TARGETS.get("deepspeed")
    for launch in random_launches(target, MODELS, COUNT):
        facts = launch.facts
        written(target, launch, tmp_path)
        said = json.loads((tmp_path / "ds_config.json").read_text())
        monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
        monkeypatch.setattr(config.dist, "get_world_size", lambda n=facts["devices"]: n)
        # Without tp and pp, DeepSpeed finds the replicas by itself, from the sequence's devices.
        alone = facts["tp"] * facts["pp"] == 1
        found = config.DeepSpeedConfig(said, mpu=None if alone else _Replicas(facts["dp"]))
        assert found.world_size == facts["dp"]
        assert found.train_batch_size == facts["batch_size"]
        assert found.train_micro_batch_size_per_gpu == facts["micro_batch"]
        assert found.gradient_accumulation_steps == facts["microbatches"]
        assert found.zero_config.stage == facts["zero"]
        assert found.bfloat16_config.enabled
        assert not found.float16_config.enabled
        assert found.tensor_parallel_config.autotp_size == (facts["tp"] if facts["tp"] > 1 else 0)
        assert str(found.grad_accum_dtype) == "bf16"
        assert str(found.communication_data_type) == "torch.bfloat16"
        assert found.optimizer_name == "adamw"
