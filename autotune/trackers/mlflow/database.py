"""Database files: a new one is made as a whole."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Generator
from pathlib import Path
from typing import Any

from autotune.file_lock import locked
from autotune.trackers.followed import SQLITE, database_file


def create_database(uri: str) -> None:
    """Creates a new database file as a whole. MLflow makes tables in hundreds of steps, among which
    neither another process nor an interrupt may come."""
    from mlflow import MlflowClient

    file = database_file(uri)
    if file is None or _has_content(file) or not file.parent.is_dir():
        return
    with locked(file.with_name(f".{file.name}.lock")):
        if _has_content(file):
            return
        part = file.with_name(f".{file.name}.{secrets.token_hex(8)}.part")
        try:
            with unsynced(part):
                client: Any = MlflowClient(tracking_uri=f"{SQLITE}{part}")
                client.search_experiments(max_results=1)
            _synced(part)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def unsynced(file: Path) -> Generator[None, None, None]:
    """While this lasts, connections to a database file that nobody else knows do not wait for the
    disk at each of hundreds of steps."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def connected(connection: Any, _: Any) -> None:
        if not isinstance(connection, sqlite3.Connection):
            return  # somebody else's, meanwhile
        names = [row[2] for row in connection.execute("PRAGMA database_list")]
        if any(Path(name).name == file.name for name in names):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", connected)
    try:
        yield
    finally:
        event.remove(Engine, "connect", connected)


def _synced(file: Path) -> None:
    """Waits until a file is on the disk."""
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def _has_content(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def artifacts_beside(uri: str) -> str | None:
    """The folder `mlruns` beside a database file, wherever the search runs; else MLflow's
    default.
    """
    file = database_file(uri)
    return None if file is None else (file.parent / "mlruns").as_uri()
