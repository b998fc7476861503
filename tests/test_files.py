"""Files are there as a whole or not at all, and what is read is not written over."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from distir.errors import DistirError, ImportModelError
from distir.files import (
    check_no_output,
    is_file,
    is_folder,
    outputs,
    read_parsed,
    read_text,
    user_path,
    whole_file,
    write_text,
)
from distir.limits import MOST_TEXT_BYTES


class BrokenOffError(Exception):
    """What a writer raises half way."""


def test_a_file_that_is_broken_off_stays_as_it_was(tmp_path: Path) -> None:
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("before")

    def write_half(path: Path) -> None:
        with whole_file(path) as file:
            file.write(b"half")
            file.flush()
            raise BrokenOffError

    for path in (old, new):
        with pytest.raises(BrokenOffError):
            write_half(path)
    assert old.read_text() == "before"
    assert list(tmp_path.iterdir()) == [old]


def test_a_file_has_its_name_only_when_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with whole_file(path) as file:
        file.write(b"a" * (1 << 20))
        assert not path.exists()
    assert path.stat().st_size == 1 << 20
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "real.json", tmp_path / "link.json"
    path.write_text("before")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "after")
    assert link.is_symlink()
    assert path.read_text() == "after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    write_text(tmp_path / "new", "text")
    assert (tmp_path / "new").stat().st_mode == usual.stat().st_mode


def test_what_is_no_ordinary_file_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "text")
    assert os.read(reading, 100) == b"text"
    os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_of_ours() -> None:
    with pytest.raises(DistirError, match=r"/dev/full cannot be written: No space left"):
        write_text("/dev/full", "text")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("folder", "is a folder"),
        ("nowhere/file", "there is no folder"),
        ("x" * 300, "cannot be written: File name too long"),
        ("a\0b", "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_said_before_there_is_anything_to_write(
    name: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DistirError, match=said), outputs({"--json": f"{tmp_path}/{name}"}):
        pass
    with pytest.raises(DistirError, match=said):
        write_text(f"{tmp_path}/{name}", "text")


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "hard").hardlink_to(tmp_path / "a")
    for other in ("a", "./a", "link", "hard"):
        files = {"--json": tmp_path / "a", "--table": f"{tmp_path}/{other}"}
        with (
            pytest.raises(DistirError, match="--json and --table name the same file"),
            outputs(files),
        ):
            pass
    with (
        pytest.raises(DistirError, match="name the same file"),
        outputs({"--json": tmp_path / "new", "--trace": f"{tmp_path}/./new"}),
    ):
        pass
    with outputs({"--json": "/dev/null", "--trace": "/dev/null"}):
        pass


def test_a_file_that_will_be_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    with outputs({"--json": path}):
        for read in (
            lambda: read_text(path, ImportModelError),
            lambda: check_no_output(tmp_path / "." / "config.json", ImportModelError),
        ):
            with pytest.raises(ImportModelError, match="is read, so --json must not replace it"):
                read()
    assert read_text(path, ImportModelError) == "{}"


def test_parsers_may_raise_what_they_like(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("text")

    def nest(text: str) -> str:
        return nest(text)

    def fail(text: str) -> str:
        raise KeyError(text)

    with pytest.raises(ImportModelError, match="not valid X: it is nested too deeply"):
        read_parsed(path, nest, "X", ImportModelError)
    with pytest.raises(ImportModelError, match="not valid X: 'text'"):
        read_parsed(path, fail, "X", ImportModelError)


@pytest.mark.parametrize("text", ["", "a\n", "\u20ac\r\n"])
def test_the_mark_that_some_editors_begin_a_text_with_is_not_read(
    tmp_path: Path, text: str
) -> None:
    plain, marked = tmp_path / "plain", tmp_path / "marked"
    plain.write_bytes(text.encode("utf-8"))
    marked.write_bytes(text.encode("utf-8-sig"))
    assert read_text(marked, ImportModelError) == read_text(plain, ImportModelError)


def test_endless_files_are_not_read_to_their_end() -> None:
    with pytest.raises(ImportModelError, match=f"more than {MOST_TEXT_BYTES >> 20} MiB"):
        read_text("/dev/zero", ImportModelError)


def test_odd_names_are_names_of_no_file() -> None:
    for name in ("x" * 5000, "a\0b", "x/" * 3000, "~nobody-at-all/x"):
        assert not is_file(name)
        assert not is_folder(name)
        assert user_path(name) == Path(name)
        with pytest.raises(ImportModelError, match="cannot be read"):
            read_text(name, ImportModelError)
