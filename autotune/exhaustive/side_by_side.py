"""A space evaluated by this process and a copy of it, side by side.

Starting a process anew takes as long as a small space does; a copy of this one begins at once and
knows all that this one knows.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING

from autotune.exhaustive.chunks import Chunk, chunks_here, evaluated_chunk, stretches
from autotune.objectives.objective import Objective
from autotune.processes import LINUX, end_with_parent
from search_spaces import SearchSpace
from search_spaces.columns import SpaceColumns

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def chunks_side_by_side(space: SearchSpace, objective: Objective) -> Generator[Chunk, None, None]:
    """What `chunks_here` gives of a space. Where that is two chunks, a copy of this process
    evaluates the second one."""
    if objective.many is None or not _can_copy():
        yield from chunks_here(space, objective)
        return
    table = SpaceColumns(space)
    parts = list(stretches(table.borders))
    if len(parts) != len(("first", "second")):
        yield from chunks_here(space, objective)
        return
    first, second = parts
    import multiprocessing

    processes = multiprocessing.get_context("fork")
    receiver, sender = processes.Pipe(duplex=False)
    parent = os.getpid()

    def evaluate() -> None:
        end_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process is interrupted, and ends it
        with suppress(Exception):  # this process meets it, too, when it does what is missing
            sender.send(evaluated_chunk(objective, *table.taken(*second)))

    copy = processes.Process(target=evaluate, daemon=True)
    copy.start()
    sender.close()
    try:
        yield evaluated_chunk(objective, *table.taken(*first))
        found = _received(receiver)
        yield evaluated_chunk(objective, *table.taken(*second)) if found is None else found
    finally:
        copy.kill()
        copy.join()
        receiver.close()


def _received(receiver: Connection) -> Chunk | None:
    """What a copy has found; None if it ended before."""
    try:
        return receiver.recv()
    except EOFError:
        return None


def _can_copy() -> bool:
    """Whether there is a core for a copy, which has no other threads: what these hold would stay
    held there."""
    return LINUX and len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1
