"""accelerate's own loader, launch parser and mesh read what is written."""

from __future__ import annotations

import os
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from autotune.launch import TARGETS
from tests.launch.real.examples import COUNT
from tests.launch.strategies import MODELS, random_launches, written

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def accelerate() -> Any:
    return pytest.importorskip("accelerate", reason="needs accelerate")


def test_accelerate_parses_the_strategy(
    accelerate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments: Any = import_module("accelerate.commands.config.config_args")
    launcher: Any = import_module("accelerate.commands.launch")
    target = TARGETS.get("accelerate")
    for launch in random_launches(target, MODELS, COUNT):
        facts = launch.facts
        written(target, launch, tmp_path)
        file = tmp_path / "accelerate.yaml"
        found = arguments.load_config_from_file(str(file))
        assert found.num_processes == facts["devices"]
        assert found.mixed_precision == "bf16"
        command = (tmp_path / "launch.sh").read_text().split("accelerate launch ")[1]
        command = command.replace("${NODE_RANK:-0}", "0").replace("${MASTER_PORT:-29500}", "29500")
        words = [word for word in shlex.split(command) if word.strip() and word != "$@"]
        parsed = launcher.launch_command_parser().parse_args(words)
        assert parsed.config_file == "accelerate.yaml"
        assert parsed.training_script == "train.py"
        said = dict(
            zip(parsed.training_script_args[::2], parsed.training_script_args[1::2], strict=False)
        )
        assert int(said["--per_device_train_batch_size"]) == facts["micro_batch"]
        assert int(said["--gradient_accumulation_steps"]) == facts["microbatches"]
        kind = str(found.distributed_type).rpartition(".")[2]
        assert kind == ("FSDP" if facts["zero"] else "MULTI_GPU" if facts["dp"] > 1 else "NO")
        if not facts["zero"]:
            continue
        fsdp = found.fsdp_config
        assert fsdp["fsdp_version"] == 2
        assert fsdp["fsdp_reshard_after_forward"] == (facts["keep_gathered"] == "none")
        assert fsdp.get("fsdp_activation_checkpointing", False) == (facts["recompute"] == "full")
        mesh(accelerate, monkeypatch, found.parallelism_config, facts)


def mesh(accelerate: Any, monkeypatch: pytest.MonkeyPatch, sizes: Any, facts: Any) -> None:
    """The mesh that accelerate makes of the sizes in the file."""
    for name in [name for name in os.environ if name.startswith("PARALLELISM_CONFIG")]:
        monkeypatch.delenv(name)
    for name, size in sizes.items():
        monkeypatch.setenv(name.upper(), str(size))
    found = accelerate.ParallelismConfig()
    shard = facts["zero_degree"] or facts["dp"]
    assert found.tp_size == facts["tp"]
    assert found.cp_size == facts["cp"]
    assert found.dp_shard_size == shard
    assert found.dp_replicate_size == facts["dp"] // shard
    assert found.total_size == facts["devices"]
    if facts["cp"] > 1:
        word = {"gather": "allgather", "ring": "alltoall"}[facts["cp_exchange"]]
        assert found.cp_handler.cp_comm_strategy == word
