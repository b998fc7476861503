"""Files of users: the one place where they are opened, to be read or to be written.

What is written is there as a whole or not at all: it goes to a file of another name in the same
folder, which takes the place of the old file at the end. While a command runs, the files that it
is going to write are known (`outputs`), and reading one of them is an error.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, TypeVar

from distir.errors import DistirError
from distir.limits import MOST_TEXT_BYTES

__all__ = [
    "beside",
    "check_no_output",
    "check_writable",
    "is_file",
    "is_folder",
    "outputs",
    "parsed",
    "read_parsed",
    "read_text",
    "user_path",
    "whole_file",
    "write_text",
]

T = TypeVar("T")
FilePath = str | os.PathLike[str]

_OUTPUTS: ContextVar[Mapping[object, str]] = ContextVar("_OUTPUTS", default={})  # noqa: B039
"""The files that are going to be written, by what they are (`_identity`): who writes them."""


# --- reading --------------------------------------------------------------------------------------


def user_path(text: FilePath) -> Path:
    """The path that a user means; `~` is a home folder."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:  # there is no such user
        return path


def beside(folder: FilePath, name: str) -> str:
    """The path of what a file in `folder` calls `name`: of a file in that folder, if there is one,
    otherwise as it stands, from where we work."""
    there = Path(folder) / user_path(name)
    return str(there) if is_file(there) else name


def is_file(path: FilePath) -> bool:
    """Whether there is such a file; no for texts that no file can be called, such as long ones."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: FilePath) -> bool:
    """Whether there is such a folder; no for texts that no folder can be called."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def read_text(path: FilePath, error: type[DistirError]) -> str:
    """The text of a file, without the mark that some editors begin UTF-8 with. Raises `error`,
    which says why, if it cannot be read or is no text, and if it is a file that will be
    written."""
    check_no_output(path, error)
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_TEXT_BYTES + 1)
    except (OSError, ValueError) as problem:
        raise error(f"{path}: cannot be read: {_reason(problem)}") from problem
    if len(content) > MOST_TEXT_BYTES:
        raise error(f"{path}: has more than {MOST_TEXT_BYTES >> 20} MiB; expected a text file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not text in UTF-8: {problem}") from problem
    return io.StringIO(text, newline=None).read()


def read_parsed(
    path: FilePath, parse: Callable[[str], T], language: str, error: type[DistirError]
) -> T:
    """What `parse` makes of the text of a file. Raises `error` if it makes nothing of it."""
    return parsed(read_text(path, error), path, parse, language, error)


def parsed(
    text: str, path: FilePath, parse: Callable[[str], T], language: str, error: type[DistirError]
) -> T:
    """What `parse` makes of a text from the file at `path`. Raises `error` if it makes nothing of
    it."""
    try:
        return parse(text)
    except RecursionError as problem:
        raise error(f"{path}: not valid {language}: it is nested too deeply") from problem
    except Exception as problem:  # parsers raise what they like: KeyError, OverflowError, …
        said = " ".join(str(problem).split()) or type(problem).__name__
        raise error(f"{path}: not valid {language}: {said}") from problem


# --- writing --------------------------------------------------------------------------------------


@contextlib.contextmanager
def outputs(files: Mapping[str, FilePath]) -> Generator[None, None, None]:
    """While this lasts, the files, given by the options that name them, are going to be written.
    Raises `DistirError` if one cannot be written, or if two are one."""
    known: dict[object, str] = {}
    for option, path in files.items():
        check_writable(path)
        identity = _identity(path)
        if identity is None:
            continue
        if identity in known:
            raise DistirError(f"{known[identity]} and {option} name the same file, {path}")
        known[identity] = option
    token = _OUTPUTS.set(known)
    try:
        yield
    finally:
        _OUTPUTS.reset(token)


def check_no_output(path: FilePath, error: type[DistirError]) -> None:
    """Raises `error` if a file that is about to be read is going to be written."""
    known = _OUTPUTS.get()
    option = known.get(_identity(path)) if known else None
    if option is not None:
        raise error(f"{path} is read, so {option} must not replace it; name another file")


def check_writable(path: FilePath) -> None:
    """Raises `DistirError`, before there is anything to write, if a file cannot be written."""
    target = _target(path)
    if is_folder(target):
        raise DistirError(f"{path} is a folder; expected a file to write")
    replaced = _is_replaced(target)
    if not is_folder(target.parent):
        raise DistirError(f"{path} cannot be written: there is no folder {target.parent}")
    for place in (target, *((target.parent,) if replaced else ())):
        if place.exists() and not os.access(place, os.W_OK):
            whose = "" if place == target else f" in the folder {place}"
            raise DistirError(f"{path} cannot be written: no permission{whose}")


def write_text(path: FilePath, text: str) -> None:
    """Writes a file as a whole; raises `DistirError` if that does not work."""
    with whole_file(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def whole_file(path: FilePath) -> Generator[BinaryIO, None, None]:
    """A file to write bytes to, which takes the place of the one at `path` when all is written. If
    anything is raised before, the old file stays as it is, or there is none.

    What is no ordinary file, such as a pipe, is written directly. Raises `DistirError` if the file
    cannot be written.
    """
    check_writable(path)
    target = _target(path)
    if not _is_replaced(target):
        with _Sink(target, path) as raw, io.BufferedWriter(raw) as file:
            yield file
        return
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with _Sink(part, path) as raw, io.BufferedWriter(raw) as file:
            yield file
            file.flush()
            raw.keep()
        with _said(path):
            _keep_owner(target, part)
            part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class _Sink(io.FileIO):
    """A file whose errors say what cannot be written."""

    def __init__(self, place: Path, path: FilePath) -> None:
        self._path = path
        with _said(path):
            super().__init__(str(place), "wb")

    def write(self, content: object, /) -> int:
        with _said(self._path):
            return super().write(content)  # type: ignore[arg-type]

    def keep(self) -> None:
        """Waits until the file is on its disk: a rename must not come before the content."""
        with _said(self._path):
            os.fsync(self.fileno())


@contextlib.contextmanager
def _said(path: FilePath) -> Generator[None, None, None]:
    try:
        yield
    except OSError as problem:
        raise DistirError(f"{path} cannot be written: {_reason(problem)}") from problem


def _keep_owner(old: Path, new: Path) -> None:
    """Gives the new file the permissions of the old one, and its owner where that is allowed."""
    try:
        before = old.stat()
    except FileNotFoundError:
        return
    new.chmod(stat.S_IMODE(before.st_mode))
    with contextlib.suppress(OSError):
        os.chown(new, before.st_uid, before.st_gid)


# --- paths ----------------------------------------------------------------------------------------


def _target(path: FilePath) -> Path:
    """The file that a path leads to; links stay what they are."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as problem:
        raise DistirError(f"{path} cannot be written: {_reason(problem)}") from problem


def _is_replaced(target: Path) -> bool:
    """Whether a new file takes the place of the one at this path: of none, or of an ordinary
    one."""
    try:
        return stat.S_ISREG(target.stat().st_mode)
    except FileNotFoundError:
        return True
    except OSError as problem:
        raise DistirError(f"{target} cannot be written: {_reason(problem)}") from problem


def _identity(path: FilePath) -> object:
    """Equal for paths that lead to one file; None for what is no ordinary file."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _reason(problem: OSError | ValueError) -> str:
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
