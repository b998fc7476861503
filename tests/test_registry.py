"""Names lead to one thing each; packages add to a registry by entry points."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from distir.errors import DistirError, UnknownNameError
from distir.registry import Registry


@pytest.fixture
def things(monkeypatch: pytest.MonkeyPatch) -> Registry[int]:
    """A registry that code in a package can import."""
    fresh: Registry[int] = Registry("thing", group="distir.test_things")
    fresh.add("Own", 1, "from the start")
    monkeypatch.setitem(sys.modules, "home_of_things", cast(ModuleType, SimpleNamespace(own=fresh)))
    return fresh


def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, offers: str
) -> None:
    """A package of one file, whose entry point leads to that file."""
    (tmp_path / f"{name}.py").write_text(f"from home_of_things import own\n{code}\n")
    described = tmp_path / f"{name}-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(f"[distir.test_things]\n{offers} = {name}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def test_names_match_without_regard_to_case_and_are_shown_as_registered(things: Registry[int]):
    assert things.get("oWN") == 1
    assert things.names() == ["Own"]
    assert [entry.summary for entry in things] == ["from the start"]


def test_a_name_is_registered_once(things: Registry[int]):
    with pytest.raises(ValueError, match="thing 'own' is registered twice"):
        things.add("own", 2)


def test_a_module_that_is_executed_again_replaces_what_it_registered():
    classes: Registry[type] = Registry("class")

    def define(module: str) -> type:
        return classes.add("Same", type("Same", (), {"__module__": module}))

    first, second = define("theirs"), define("theirs")
    assert first is not second
    assert classes.get("same") is second
    with pytest.raises(ValueError, match=r"'Same' is registered twice, by theirs\.Same and own\.S"):
        define("own")


def test_an_unknown_name_names_the_near_ones(things: Registry[int]):
    with pytest.raises(UnknownNameError, match="Own"):
        things.get("onw")


def test_a_package_adds_what_its_entry_point_names(
    things: Registry[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    install(tmp_path, monkeypatch, "added_things", "own.add('theirs', 2)", "theirs")
    assert "theirs" in things
    assert things.get("Theirs") == 2
    assert things.names() == ["Own", "theirs"]


def test_own_names_are_found_without_importing_packages(
    things: Registry[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    install(tmp_path, monkeypatch, "broken_things", "1 / 0", "broken")
    assert things.get("own") == 1


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("failing_things", "1 / 0", r"thing 'x' \(failing_things\): ZeroDivisionError"),
        ("silent_things", "", "importing it registers no thing of that name"),
        ("double_things", "own.add('own', 3)", "'own' is registered twice"),
    ],
)
def test_a_package_that_adds_nothing_is_named_every_time(
    things: Registry[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    code: str,
    message: str,
):
    install(tmp_path, monkeypatch, name, code, "x")
    for _ in range(2):
        with pytest.raises(DistirError, match=message):
            things.names()
