"""megatron-core's own parser reads what is written; what it parses are the strategy's values."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from autotune.launch import TARGETS
from autotune.launch.facts import Facts, Launch
from autotune.launch.scripts import option_lines
from autotune.launch.targets.megatron import environment
from autotune.launch.targets.megatron_core import expert_tensor_parallel
from tests.launch.real.examples import COUNT
from tests.launch.strategies import random_launches

pytestmark = pytest.mark.filterwarnings("ignore")

ALONE = ("--mock-data", "--train-iters=1", "--no-rope-fusion")
"""What the parser wants besides on a machine without data and without Transformer Engine."""

MODELS = ("llama3.2-1b", "gpt2", "mixtral-8x7b", "deepseek-v2-lite", "llama3-70b")


@pytest.fixture(scope="module")
def arguments() -> Iterator[Any]:
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    found = pytest.importorskip("megatron.training.arguments", reason="needs megatron-core")
    monkeypatch = pytest.MonkeyPatch()
    # A CPU has no architecture: this is Hopper's.
    monkeypatch.setattr(found, "get_device_arch_version", lambda: 9)
    monkeypatch.setattr("torch.cuda.get_device_capability", _hopper)
    yield found
    monkeypatch.undo()


def _hopper(*device: object) -> tuple[int, int]:
    return 9, 0


def parsed(arguments: Any, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the parser makes of a launch, having checked it as far as it does without GPUs."""
    options = TARGETS.get("megatron").table.write(launch.facts)
    said = [word for line in option_lines(options) for word in line]
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *said, *ALONE])
    monkeypatch.setenv("WORLD_SIZE", str(launch.strategy.devices))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    for name, value in environment(launch).items():
        monkeypatch.setenv(name, value)
    found = arguments.parse_args()
    arguments.validate_args(found, {})
    arguments.core_transformer_config_from_args(found)
    return found


def _method(facts: Facts) -> str | None:
    """How layers to recompute are chosen, where they are recomputed in full."""
    if facts["recompute"] != "full":
        return None
    return "block" if facts["recompute_layers"] else "uniform"


def expected(facts: Facts) -> dict[str, Any]:
    """The parser's values, by its names, for what a launch states."""
    interleaves = facts["schedule"] == "interleaved"
    copies = facts["dp"] // facts["zero_degree"] if facts["zero_degree"] else 1
    cuts = facts["cuts"]
    return {
        "tensor_model_parallel_size": facts["tp"],
        "pipeline_model_parallel_size": facts["pp"],
        "context_parallel_size": facts["cp"],
        "expert_model_parallel_size": facts["ep"],
        "expert_tensor_parallel_size": expert_tensor_parallel(facts),
        "data_parallel_size": facts["dp"],
        "micro_batch_size": facts["micro_batch"],
        "global_batch_size": facts["batch_size"],
        "virtual_pipeline_model_parallel_size": facts["chunks"] if interleaves else None,
        "sequence_parallel": facts["sequence_parallel"],
        "use_distributed_optimizer": facts["zero"] > 0,
        "use_megatron_fsdp": facts["zero"] > 1,
        "num_distributed_optimizer_instances": copies,
        "recompute_granularity": None if facts["recompute"] == "none" else facts["recompute"],
        "recompute_method": _method(facts),
        "recompute_num_layers": facts["recompute_layers"] or 1 if _method(facts) else None,
        "use_tp_pp_dp_mapping": facts["placement"] == "tp-cp-ep-pp-dp",
        "bf16": True,
        "accumulate_allreduce_grads_in_fp32": False,
        "optimizer": "adam",
        "seq_length": facts["sequence_length"],
        "num_layers": facts["model.layers"],
        "hidden_dropout": facts["model.dropout"],
        "has_layout": cuts is not None and not cuts.even,
    }


def test_megatron_parses_the_strategy(arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for launch in random_launches(TARGETS.get("megatron"), MODELS, COUNT):
        found = parsed(arguments, launch, monkeypatch)
        found.has_layout = found.pipeline_model_parallel_layout is not None
        values = {name: getattr(found, name) for name in expected(launch.facts)}
        assert values == expected(launch.facts), launch.strategy.label
        if launch.strategy.zero > 1:
            sharded = {2: "optim_grads", 3: "optim_grads_params"}[launch.strategy.zero]
            assert found.data_parallel_sharding_strategy == sharded
        if launch.strategy.cp > 1:
            exchange = {"gather": "all_gather", "ring": "p2p", "all-to-all": "a2a"}
            assert found.cp_comm_type == [exchange[launch.strategy.cp_exchange]]
