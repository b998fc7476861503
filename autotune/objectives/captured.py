"""What the process of an objective prints: passed on while a trial goes on, and kept where it
fails.

The process writes into files without names. So it never waits for a reader, and what it started
may go on to write when the search has ended.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import sys
import tempfile
from typing import BinaryIO

from autotune.objectives.evaluation import KEPT_BYTES
from distir.errors import DistirError

STREAMS = ("stdout", "stderr")
_PART_BYTES = 1 << 16


class Captured:
    """Takes what a process prints to its standard streams."""

    def __init__(self) -> None:
        try:
            self._streams = {name: _Stream(name) for name in STREAMS}
        except OSError as error:
            raise DistirError(
                f"there is no room for the output of trials: {error.strerror}; set $TMPDIR to "
                "another folder for temporary files"
            ) from error

    def direct(self) -> None:
        """From now on this process prints here, as does what it starts."""
        for descriptor, name in enumerate(STREAMS, 1):
            os.dup2(self._streams[name].file.fileno(), descriptor)
            stream = open(  # noqa: SIM115  it lasts as long as the process
                descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
            )
            setattr(sys, name, stream)

    def begin(self) -> None:
        """A new trial: what was printed before is not its own."""
        self.pass_on()
        for stream in self._streams.values():
            stream.empty()

    def pass_on(self) -> None:
        """Shows what has been printed since the last call."""
        for stream in self._streams.values():
            stream.pass_on()

    def texts(self) -> dict[str, str]:
        """What the trial has printed, by stream, as far as it is kept."""
        told = {name: stream.end() for name, stream in self._streams.items()}
        return {name: text for name, text in told.items() if text}

    def close(self) -> None:
        """Shows the rest, and ends."""
        self.pass_on()
        for stream in self._streams.values():
            stream.file.close()


class _Stream:
    """One file, of which the study has shown the first bytes."""

    def __init__(self, name: str):
        self._name = name
        self.file: BinaryIO = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        flags = fcntl.fcntl(self.file, fcntl.F_GETFL)
        # Whoever still writes when the file is emptied writes at its end, not beyond.
        fcntl.fcntl(self.file, fcntl.F_SETFL, flags | os.O_APPEND)
        self._passed = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def empty(self) -> None:
        if self._passed:
            self.file.truncate(0)
            self._passed = 0

    def pass_on(self) -> None:
        while part := os.pread(self.file.fileno(), _PART_BYTES, self._passed):
            self._passed += len(part)
            shown = getattr(sys, self._name)
            with contextlib.suppress(AttributeError, OSError, ValueError):  # there may be none
                shown.write(self._decoder.decode(part))
                shown.flush()

    def end(self) -> str:
        size = os.fstat(self.file.fileno()).st_size
        data = os.pread(self.file.fileno(), KEPT_BYTES, max(0, size - KEPT_BYTES))
        return data.decode("utf-8", "replace")
