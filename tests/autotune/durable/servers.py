"""A PostgreSQL server for a while, of Debian's package, as a user that may run one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

USER = "postgres"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`, which Debian does not have on the path."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((each for each in folders if (each / "initdb").exists()), None)


class Server:
    """PostgreSQL on a free port; `initdb` refuses root, so root starts it as `postgres`."""

    def __init__(self, programs: Path, folder: Path):
        self._programs, self._data = programs, folder / "data"
        self.port = free_port()
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", USER, "--no-sync")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -k {self._data} -c listen_addresses=127.0.0.1 -c fsync=off"
        log = str(self._data / "log")
        self._run("pg_ctl", "-D", str(self._data), "-o", options, "-l", log, "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        user = USER if os.getuid() == 0 else None
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            user=user,
            group=user,
        )
