"""A lock between processes: a file that one of them holds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Generator[None, None, None]:
    """Holds the lock that the file at `path` stands for, waiting for it as long as need be. The
    file is made, and is gone at the end; the kernel lets go of it if the holder is killed. It may
    be that of another user. Where there are no such locks (Windows), nothing is held."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    while True:
        handle = _opened(path)
        if handle is None:
            continue
        fcntl.flock(handle, fcntl.LOCK_EX)
        if _is_open_file(handle, path):
            break
        os.close(handle)  # whoever held it has removed it
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def _opened(path: Path) -> int | None:
    """The file, made if there is none; None if it is gone meanwhile. What another user has made
    cannot be written, and need not be: the lock is on the file, not in it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY)
        if not os.access(path.parent, os.W_OK):
            raise
        return None


def _is_open_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
