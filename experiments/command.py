"""How experiments that others call end: errors of users are one line, as those of `autotune`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from distir.errors import DistirError


def exit_status(main: Callable[[], int]) -> int:
    """The exit status of a command: what it returns, 1 if stdout is closed, 2 for bad input, 130 if
    it was interrupted."""
    try:
        status = main()
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads has enough; nothing is left to say at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        note("error: stdout cannot be written: Broken pipe")
        return 1
    except DistirError as error:
        note(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        note("interrupted")
        return 130


def make_folder(path: Path) -> None:
    """Makes a folder where results are kept; raises `DistirError` if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DistirError(f"{path} cannot be a folder to keep results: {error.strerror}") from error


def note(text: str) -> None:
    """Tells people, on stderr."""
    print(text, file=sys.stderr, flush=True)


__all__ = ["exit_status", "make_folder", "note"]
