"""Damaged inputs end in an answer or in one typed error: never in a crash, a hang, gigabytes or
numbers that no machine has."""

from __future__ import annotations

import random
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from distir.errors import DistirError
from distir.limits import MOST_MESSAGE_CHARACTERS
from tests.fuzz.kinds import KINDS, Call, RefusedError
from tests.slow import shares

MUTANTS = 50
"""In a share."""

SHARES = 20

MOST_BYTES = 2 << 30
"""Of address space that a share may take in addition."""

LONGEST_SECONDS = 10
"""Of processor time that a mutant may take, however busy the machine is; most take milliseconds."""


class TooLongError(BaseException):
    """A mutant takes too long. No handler of ours catches it."""


@contextmanager
def limited() -> Generator[None, None, None]:
    """Raises `TooLongError` in what takes too long."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def little_memory() -> Generator[None, None, None]:
    """Has what takes gigabytes end in a `MemoryError`."""
    if sys.platform != "linux":
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def defect(call: Call) -> tuple[str, str]:
    """What a mutant ends in: `answer` or `error`, or else `defect`, and what is wrong."""
    try:
        with limited():
            call()
    except (DistirError, RefusedError) as error:
        if len(str(error)) > MOST_MESSAGE_CHARACTERS + 200:
            return "defect", f"a message of {len(str(error)):,} characters: {str(error)[:200]}"
        return "error", ""
    except (Exception, TooLongError) as error:  # noqa: BLE001  (that is what is looked for)
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{Path(each.filename).name}:{each.lineno}" for each in frames[-4:]]
        return "defect", f"{type(error).__name__}: {str(error)[:200]} at {' '.join(places)}"
    return "answer", ""


@shares(SHARES, seconds=2)
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_inputs_end_in_an_answer_or_a_typed_error(
    kind: str, share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trial = KINDS[kind](tmp_path)
    ends: Counter[str] = Counter()
    defects: dict[str, int] = {}
    with little_memory():
        for seed in range(share * MUTANTS, (share + 1) * MUTANTS):
            end, what = defect(trial(random.Random(seed)))
            ends[end] += 1
            if end == "defect":
                defects.setdefault(what, seed)
    assert not defects, "\n".join(f"seed {seed}: {what}" for what, seed in defects.items())
    if share == 0:  # Of some kinds few mutants are answers; a further share may have none.
        assert min(ends["answer"], ends["error"]) >= 1, ends
