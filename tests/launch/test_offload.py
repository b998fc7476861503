"""What rests on hosts, in the files of DeepSpeed and of frameworks that cannot state it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import main

MODEL = ("--model", "gpt2", "--devices", "2", "--dp", "2", "--batch-size", "8")


def written(target: str, folder: Path, *options: str) -> int:
    return main(["launch", "--target", target, *MODEL, *options, "--to", str(folder)])


@pytest.mark.not_quick
@pytest.mark.parametrize(("offload", "zero"), [("optimizer", 2), ("optimizer,parameters", 3)])
def test_deepspeed_states_what_rests_on_hosts_and_is_read_back(
    offload: str, zero: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "launch"
    assert written("deepspeed", folder, "--zero", str(zero), "--offload", offload) == 0
    stated = json.loads((folder / "ds_config.json").read_text())["zero_optimization"]
    devices = {name: each["device"] for name, each in stated.items() if "offload" in name}
    expected = {"offload_optimizer": "cpu", "offload_param": "cpu"}
    assert devices == dict(list(expected.items())[: len(offload.split(","))])
    capsys.readouterr()
    assert main(["read", str(folder / "launch.sh"), "--cluster", "dgx-a100", "--json", "-"]) == 0
    strategy = json.loads(capsys.readouterr().out)["strategy"]
    assert (strategy["offload"], strategy["zero"]) == (offload, zero)


@pytest.mark.not_quick
def test_deepspeed_has_checkpoints_on_hosts_and_is_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, plan = tmp_path / "launch", ("--zero", "0", "--offload", "activations")
    assert written("deepspeed", folder, *plan, "--recompute", "full") == 0
    stated = json.loads((folder / "ds_config.json").read_text())["activation_checkpointing"]
    assert stated["cpu_checkpointing"] is True
    capsys.readouterr()
    assert main(["read", str(folder / "launch.sh"), "--cluster", "dgx-a100", "--json", "-"]) == 0
    strategy = json.loads(capsys.readouterr().out)["strategy"]
    assert (strategy["offload"], strategy["recompute"]) == ("activations", "full")
    assert written("deepspeed", tmp_path / "other", *plan) != 0
    assert "cpu_checkpointing keeps only checkpoints on the host" in capsys.readouterr().err


@pytest.mark.not_quick
def test_disks_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "launch"
    assert written("deepspeed", folder, "--zero", "2", "--offload", "optimizer") == 0
    config = folder / "ds_config.json"
    config.write_text(config.read_text().replace('"cpu"', '"nvme"'))
    assert main(["read", str(folder / "launch.sh"), "--cluster", "dgx-a100"]) != 0
    assert "offload_optimizer.device is 'nvme'; only cpu and none are simulated" in (
        capsys.readouterr().err
    )


@pytest.mark.not_quick
@pytest.mark.parametrize("target", ["torchtitan", "accelerate"])
def test_fsdp_leaves_parameters_and_optimizer_on_hosts_and_is_read_back(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "launch"
    plan = ("--zero", "3", "--offload", "optimizer,parameters")
    assert written(target, folder, *plan) == 0
    capsys.readouterr()
    source = (str(folder / "launch.sh"), "--model", "gpt2", "--cluster", "dgx-a100")
    assert main(["read", *source, "--json", "-"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert (read["strategy"]["offload"], read["strategy"]["zero"]) == ("optimizer,parameters", 3)
    assert main(["launch", "--target", target, *MODEL, "--zero", "3", "--offload", "optimizer"])
    assert "FSDP offloads optimizer,parameters together" in capsys.readouterr().err


@pytest.mark.not_quick
@pytest.mark.parametrize("target", ["torchtitan", "accelerate"])
@pytest.mark.parametrize("offload", ["activations", "optimizer,parameters,activations"])
def test_fsdp_leaves_no_activations_on_hosts(
    target: str, offload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("--zero", "3", "--offload", offload)
    assert main(["launch", "--target", target, *MODEL, *plan])
    (line,) = capsys.readouterr().err.splitlines()
    assert f"offload = {offload} with zero = 3" in line
    assert "FSDP offloads optimizer,parameters together" in line
    assert "nearest: offload " in line


@pytest.mark.not_quick
@pytest.mark.parametrize("offload", ["optimizer", "activations"])
@pytest.mark.parametrize("target", ["megatron", "nanotron", "bridge"])
def test_others_say_that_they_cannot_offload(
    target: str, offload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(target, tmp_path / "launch", "--zero", "1", "--offload", offload) != 0
    assert f"offload = {offload} cannot be stated" in capsys.readouterr().err
