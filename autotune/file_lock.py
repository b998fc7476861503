"""A lock between processes: a file that one of them holds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Generator[None, None, None]:
    """Holds the lock that the file at `path` stands for, waiting for it as long as need be. The
    file is made, and is gone at the end; the kernel lets go of it if the holder is killed. Where
    there are no such locks (Windows), nothing is held."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
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


def _is_open_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
