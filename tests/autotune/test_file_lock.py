"""A lock that a file stands for is held by one process at a time, whoever has made the file."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from autotune.file_lock import locked

pytest.importorskip("fcntl")


def refuse_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does with a file of another user."""
    opened = os.open

    def refusing(path: Any, flags: int, *more: Any) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", refusing)


def test_a_file_of_another_user_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, order = tmp_path / "lock", list[str]()

    def wait() -> None:
        with locked(path):
            order.append("second")

    with locked(path):
        refuse_writing(monkeypatch)
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        waiting.join(0.2)
        order.append("first")
        monkeypatch.undo()
    waiting.join(10)
    assert order == ["first", "second"]
    assert not path.exists()


def test_a_lock_that_cannot_be_made_is_an_error_and_no_endless_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writing(monkeypatch)

    def read_only(path: Any, mode: int) -> bool:
        return mode != os.W_OK

    monkeypatch.setattr(os, "access", read_only)
    with pytest.raises(PermissionError), locked(tmp_path / "lock"):
        pass
