"""Any valid schedule runs on real processes without waiting for ever, and changes no number."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autotune.distributed.backend import torch_installed
from autotune.distributed.device import DeviceOutcome, run_step
from autotune.distributed.execution import put_together
from autotune.distributed.local import Member, run_together
from autotune.distributed.messenger import Messenger
from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.execute.shrink import shrink
from distir.execute.values import optimizer_step
from distir.execute.verify import RELATIVE_TOLERANCE, compare, sequential_truth
from distir.schedules import compile_schedule
from tests.laws.scenarios import random_schedule
from tests.slow import FUZZ

SCHEDULES = 25
"""Schedules of a share, which run one after the other in the same processes."""
SECONDS = 120.0


@pytest.mark.skipif(not torch_installed(), reason="needs PyTorch: .[torch]")
@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("share", range(8 * FUZZ))
def test_random_schedules_compute_on_processes_what_one_device_does(share: int) -> None:
    chance = random.Random(share)
    strategy = Strategy(pp=2, chunks=2, microbatches=4, schedule="interleaved")
    workload = shrink(Workload(model=load_model("gpt2"), batch_size=8), [strategy])
    plan = Simulator(workload, load_cluster("dgx-a100", 2)).plan(strategy)
    given, truth = sequential_truth(workload, strategy.microbatches)
    optimizer = optimizer_step(workload, 2)
    plans = [
        replace(plan, schedule=compile_schedule(random_schedule(chance, homes, 4, training=True)))
        for homes in ([0, 1, 0, 1], [0, 1, 1, 0], [0, 0, 1, 1])
        for _ in range(-(-SCHEDULES // 3))
    ]

    def work(member: Member) -> list[DeviceOutcome]:
        messenger = Messenger(member.process, member.processes, member.note)
        messenger.join(member.store, SECONDS)
        return [run_step(each, given.values, optimizer, messenger) for each in plans]

    every = run_together(strategy.devices, work, SECONDS)
    for each, outcomes in zip(plans, zip(*every, strict=True), strict=True):
        found = put_together(each, given.values, outcomes, updated=True)
        for difference in compare(workload, found.result, truth):
            assert difference.error < RELATIVE_TOLERANCE, (difference, each.schedule.schedule)
