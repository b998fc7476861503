"""One registry for every kind of named thing: ops, schedules, models, clusters, samplers, …"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from distir.errors import DistirError, UnknownNameError
from distir.user_code import run_user_code

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_OWN_MODULES: dict[str, str] = {}
"""The module that registers our own things of an entry-point group, where it is imported late."""


def provide(group: str, module: str) -> None:
    """Has `module` imported before the entry points of a group: for our own things, which are
    there in a checkout that is not installed, too."""
    _OWN_MODULES[group] = module


def import_modules(package: str, path: Iterable[str]) -> None:
    """Imports every module of a package, so that they register what they define. `path` is the
    package's `__path__`."""
    for found in sorted(pkgutil.iter_modules(path), key=lambda module: module.name):
        import_module(f"{package}.{found.name}")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A registered thing with the name it is shown by and one line that describes it."""

    name: str
    value: T
    summary: str
    order: int


LAST = 1000
"""The order of an entry that states none."""


class Registry(Generic[T]):
    """Names to things. Names match without regard to case; a duplicate raises. Entries are listed
    by their `order`, and those of one order as they were registered.

    Where a registry has an entry-point `group`, installed packages add to it: an entry point leads
    to code that registers, when it is imported, what the entry point is called. That is imported
    when a name is not found otherwise, or all names are asked for.
    """

    def __init__(self, kind: str, group: str = "") -> None:
        self.kind = kind
        self.group = group
        self._entries: dict[str, Entry[T]] = {}
        self._offered: list[EntryPoint] | None = None
        """Entry points that were not imported yet; None before anybody looked."""

    def add(self, name: str, value: T, summary: str = "", order: int = LAST) -> T:
        """Registers `value` under `name`; raises `ValueError` if the name is taken.

        A class or function that is defined again at the same place, by a module that is executed
        once more, replaces what was there.
        """
        key = name.lower()
        if key in self._entries:
            old, new = _definition(self._entries[key].value), _definition(value)
            if not new or old != new:
                by = f", by {old} and {new}" if old and new else ""
                raise ValueError(f"{self.kind} {name!r} is registered twice{by}")
        self._entries[key] = Entry(name, value, summary, order)
        return value

    def register(self, name: str, summary: str = "") -> Callable[[T], T]:
        """The decorator form of `add`."""
        return lambda value: self.add(name, value, summary)

    def get(self, name: str) -> T:
        """The thing called `name`; raises `UnknownNameError` naming the near ones."""
        if name not in self:
            raise UnknownNameError(self.kind, name, self.names())
        return self._entries[name.lower()].value

    def names(self) -> list[str]:
        """All names, in the order in which entries are listed."""
        return [entry.name for entry in self]

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name.lower() not in self._entries:
            self._take_in()
        return name.lower() in self._entries

    def __iter__(self) -> Iterator[Entry[T]]:
        self._take_in()
        return iter(sorted(self._entries.values(), key=lambda entry: entry.order))

    def __len__(self) -> int:
        self._take_in()
        return len(self._entries)

    def _take_in(self) -> None:
        """Imports what installed packages add; raises `DistirError` each time while one of them
        cannot be imported, or does not register what it says."""
        if self._offered is None:
            self._offered = _entry_points(self.group) if self.group else []
            if self.group in _OWN_MODULES:
                import_module(_OWN_MODULES[self.group])
        while self._offered:
            point = self._offered.pop()
            try:
                self._import(point)
            except DistirError:
                self._offered.append(point)
                raise

    def _import(self, point: EntryPoint) -> None:
        label = f"{self.kind} {point.name!r} ({point.value})"
        run_user_code(label, point.load, DistirError)
        if point.name.lower() not in self._entries:
            raise DistirError(
                f"{label} is offered in the group {self.group}, but importing it registers no "
                f"{self.kind} of that name"
            )


def _entry_points(group: str) -> list[EntryPoint]:
    """The entry points of a group, the last by name first."""
    groups = _offered_groups(tuple(sys.path))
    if groups is not None and group not in groups:
        return []
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group), key=lambda point: point.name, reverse=True)


@cache
def _offered_groups(folders: tuple[str, ...]) -> frozenset[str] | None:
    """The groups of all entry points of packages that are installed in these folders; None if only
    `importlib.metadata` can tell.

    Importing that takes some 40 ms, as long as a simulation, and most installations have no
    plug-ins. So the headlines of `entry_points.txt` are read here.
    """
    finders = (finder for finder in sys.meta_path if finder is not PathFinder)
    if any(hasattr(finder, "find_distributions") for finder in finders):
        return None
    groups: set[str] = set()
    for folder in map(Path, folders):
        if folder.is_file() or any(folder.glob("*.egg")):  # such as a zip file
            return None
        for path in folder.glob("*.*-info/entry_points.txt"):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            groups.update(line.strip()[1:-1].strip() for line in lines if line.startswith("["))
    return frozenset(groups)


def _definition(value: object) -> str:
    """Module and name of a class or function that has a name; an empty text for anything else."""
    name = getattr(value, "__qualname__", "")
    is_named = name and "<lambda>" not in name
    return f"{getattr(value, '__module__', '')}.{name}" if is_named else ""
