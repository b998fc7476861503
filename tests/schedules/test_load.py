"""A user's own schedule from a text file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from distir.errors import DeadlockError, ScheduleError, UnknownNameError
from distir.schedules import SCHEDULES, find_schedule, load_schedule
from distir.schedules.families.chimera import chimera
from distir.schedules.families.one_f_one_b import one_f_one_b
from distir.schedules.families.zero_bubble import zb_v

Write = Callable[..., Path]


@pytest.fixture
def file(tmp_path: Path) -> Write:
    def write(text: str, name: str = "mine.txt") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_file_in_the_notation_is_a_schedule(file: Write) -> None:
    path = file("# two ranks\n0F0 0F1 0B0 0F2 0B1 0B2\n\n1F0 1B0 1F1 1B1 1F2 1B2  # the last\n")
    schedule = load_schedule(path)
    assert schedule == one_f_one_b(2, 1, 3)
    assert schedule.name == "mine.txt"


def test_a_path_can_stand_for_a_name(file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(str(zb_v(3, 2, 5)))
    family = find_schedule(str(path))
    assert family(3, 2, 5) == zb_v(3, 2, 5)
    assert family.splits_backward
    assert (family.default_chunks, family.copies, family.placement) == (2, 1, "stated")
    assert find_schedule(str(path)) is family
    monkeypatch.chdir(path.parent)
    assert find_schedule("mine.txt")(3, 2, 5) == zb_v(3, 2, 5)


def test_names_come_before_files(file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file(str(one_f_one_b(1, 1, 1)), "gpipe").parent)
    assert find_schedule("GPipe") is SCHEDULES.get("gpipe")
    found = find_schedule("./gpipe")
    assert found(1, 1, 1) == one_f_one_b(1, 1, 1)
    assert find_schedule(found.name) is found
    there = find_schedule("./GPipe", file(str(one_f_one_b(2, 1, 2)), "GPipe").parent)
    assert find_schedule(there.name) is there
    assert there(2, 1, 2) == one_f_one_b(2, 1, 2)


def test_a_file_is_for_one_strategy(file: Write) -> None:
    path = file(str(one_f_one_b(2, 1, 3)))
    family = find_schedule(str(path))
    assert family.requires(2, 1, 3) is None
    for numbers, wanted in (
        ((1, 1, 3), "1 rank x 1 chunk and 3 microbatches"),
        ((2, 2, 3), "2 ranks x 2 chunks and 3 microbatches"),
        ((2, 1, 1), "2 ranks x 1 chunk and 1 microbatch"),
    ):
        assert family.requires(*numbers) == (
            f"{path} is for 2 ranks x 1 chunk and 3 microbatches, not for {wanted}"
        )


def test_files_know_copies_and_what_no_strategy_can_have(file: Write) -> None:
    assert find_schedule(str(file(str(chimera(4, 1, 4))))).copies == 2
    uneven = find_schedule(str(file("0F0 1F0 1B0 0B0\n2F0 2B0", "uneven.txt")))
    assert "has 3 stages on 2 ranks" in (uneven.requires(2, 1, 1) or "")
    forward = find_schedule(str(file("0F0\n1F0", "forward.txt")))
    assert "has forward passes only" in (forward.requires(2, 1, 1) or "")


def test_a_file_is_read_again_when_it_has_changed(file: Write) -> None:
    import os

    path = file("0F0 0B0")
    assert find_schedule(str(path)).requires(1, 1, 1) is None
    file("0F0 0B0 0F1 0B1")
    os.utime(path, ns=(1, 1))
    assert find_schedule(str(path)).requires(1, 1, 2) is None


@pytest.mark.parametrize(
    ("text", "error", "says", "shows"),
    [
        ("0F0 0X0", ScheduleError, "line 1: '0X0' is not an action", ""),
        ("", ScheduleError, "the schedule is empty", ""),
        ("0F0 0B0\n1F0", ScheduleError, "1B0 is missing", "rank 1  | 1F0  [?]"),
        ("0F0 1B0 1F0 0B0", ScheduleError, "1B0 uses what 1F0 produces", "[1B0]"),
        ("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1", DeadlockError, "deadlock: rank 0 at 0B0", "[0B0]"),
    ],
)
def test_errors_name_the_file_and_show_where(
    file: Write, text: str, error: type[ScheduleError], says: str, shows: str
) -> None:
    path = file(text)
    with pytest.raises(error) as caught:
        load_schedule(path)
    assert str(caught.value).startswith(f"{path}: {says}")
    assert shows in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_said(tmp_path: Path) -> None:
    missing = "absent.txt: cannot be read: No such file or directory$"
    with pytest.raises(ScheduleError, match=missing):
        find_schedule(str(tmp_path / "absent.txt"))
    with pytest.raises(ScheduleError, match=missing):
        find_schedule("absent.txt")
    with pytest.raises(UnknownNameError, match="did you mean"):
        find_schedule("zb-h3")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScheduleError, match="not text in UTF-8"):
        find_schedule(str(tmp_path / "binary"))
