"""Processes that work together end together, whatever happens to one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.distributed.local import MOST_PROCESSES, Member, ProcessError, run_together
from autotune.processes import descendants

LONG = 60.0
"""Seconds that no test here takes."""


def children() -> list[int]:
    return descendants(os.getpid())


@pytest.fixture(autouse=True)
def no_process_is_left() -> object:
    before = children()
    yield
    assert children() == before


def test_answers_come_in_the_order_of_processes() -> None:
    def work(member: Member) -> tuple[int, int]:
        time.sleep(0.01 * (member.processes - member.process))
        return member.process, os.getpid()

    answers = run_together(3, work, LONG)
    assert [process for process, _ in answers] == [0, 1, 2]
    assert len({pid for _, pid in answers} | {os.getpid()}) == 4


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_one_failure_ends_all_and_is_told_in_one_line(failing: int) -> None:
    def work(member: Member) -> None:
        if member.process != failing:
            time.sleep(LONG)
        os.write(1, b"about to divide\n")
        raise ZeroDivisionError("by\nnothing")

    with pytest.raises(ProcessError, match=f"process {failing} of 3 failed.*about to") as caught:
        run_together(3, work, LONG)
    assert "\n" not in str(caught.value)


def test_a_process_that_is_killed_is_told_with_its_last_lines() -> None:
    def work(member: Member) -> None:
        if not member.process:
            time.sleep(LONG)
        os.write(2, b"first\nterminate called\n")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(
        ProcessError, match=r"process 1 of 2 was killed by SIGKILL.*terminate called"
    ):
        run_together(2, work, LONG)


def test_a_process_that_exits_without_an_answer_is_told() -> None:
    with pytest.raises(ProcessError, match=r"process 0 of 1 exited \(3\)"):
        run_together(1, lambda member: os._exit(3), LONG)


def test_after_the_deadline_it_is_told_who_waits_for_what() -> None:
    def work(member: Member) -> None:
        if member.process:
            member.note(f"waits for process {member.process - 1} to send 0F{member.process}")
        time.sleep(LONG)

    start = time.monotonic()
    with pytest.raises(ProcessError, match=r"not finished after 0.3 s: process 0 computes; .* 0F1"):
        run_together(2, work, 0.3)
    assert time.monotonic() - start < LONG / 2


def test_those_that_have_answered_are_not_said_to_wait() -> None:
    with pytest.raises(ProcessError) as caught:
        run_together(2, lambda member: time.sleep(LONG * member.process), 0.5)
    assert "process 0" not in str(caught.value)


def test_more_processes_than_a_machine_is_given_are_refused() -> None:
    with pytest.raises(ProcessError, match=f"may run at most {MOST_PROCESSES};"):
        run_together(MOST_PROCESSES + 1, lambda member: None, LONG)


def test_an_answer_that_cannot_be_sent_is_a_failure() -> None:
    with pytest.raises(ProcessError, match="process 0 of 1 failed"):
        run_together(1, lambda member: lambda: None, LONG)


@pytest.mark.slow(seconds=2)
def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import time\n"
        "from autotune.distributed.local import run_together\n"
        "run_together(2, lambda member: (print(member.process), time.sleep(60)), 60)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)])
    try:
        while len(started := descendants(parent.pid)) < 2:
            assert parent.poll() is None
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + LONG / 2
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.01)
