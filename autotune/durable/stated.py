"""What a study is about, as a storage keeps it: what was asked, in plain JSON values.

Files are kept as path and SHA-256, so that a study is never resumed with another model or
objective, and is resumed wherever these files lie now.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from autotune.durable.workers import SILENCE_SECONDS
from autotune.statement import Goal, ProblemStatement
from distir.arguments import Checked
from distir.errors import DistirError, brief
from distir.files import is_file, user_path
from distir.strategy import Strategy

GOAL = ("objective", "metric", "direction", "objectives")
"""What of a goal is the study's own; the rest says how trials are made, which may change."""
MOVABLE = ("model", "objective", "cluster", "device", "stack", "space", "sampler")
"""Arguments that may be files, and may lie elsewhere when somebody else works on the study."""
FORMAT = 1
RETRIES = 1
"""How often a strategy is tried again whose worker died, if nobody says."""


@dataclass(frozen=True, kw_only=True)
class Kept(Checked):
    """Where a study is kept, and who works on it. Raises `DistirError` if that cannot be."""

    storage: str | None = None
    """`sqlite:///FILE`, `postgresql://…`, `journal:FILE` or `grpc://HOST:PORT`; in memory by
    default."""
    study: str | None = None
    """Its name there."""
    resume: bool = False
    """Whether to go on with a study that is there."""
    retries: int = RETRIES
    """How often a strategy is tried again whose worker died."""
    heartbeat: float = SILENCE_SECONDS
    """Seconds of silence after which a worker counts as dead."""
    workers: int = 1
    """Processes of this machine that work on the study, this one among them."""
    helping: bool = False
    """Whether somebody else leads: the sampler draws otherwise than the study's first worker's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_numbers()
        if self.storage is None:
            asked_for = {
                "study": self.study,
                "resume": self.resume,
                "workers": self.workers > 1,
                "retries": self.retries != RETRIES,
                "heartbeat": self.heartbeat != SILENCE_SECONDS,
            }
            for option, asked in asked_for.items():
                if asked:
                    raise DistirError(
                        f"--{option} needs --storage, which says where the study is kept, such as "
                        "sqlite:///study.db"
                    )
        elif self.study is None:
            raise DistirError("--storage needs --study, the name of the study there")

    def _check_numbers(self) -> None:
        if not 0 < self.heartbeat < math.inf:
            raise DistirError(
                f"heartbeat is {self.heartbeat} s, after which a silent worker counts as dead; "
                "expected more than 0"
            )
        if self.retries < 0:
            raise DistirError(f"retries is {self.retries}; expected at least 0")
        if self.workers < 1:
            raise DistirError(f"workers is {self.workers}; expected at least 1")


def plain_statement(statement: ProblemStatement, goal: Goal) -> dict[str, Any]:
    """Everything that was stated of the problem and the goal, as plain values."""
    stated = statement.stated() | {name: getattr(goal, name, None) for name in GOAL}
    return {name: plain(value) for name, value in stated.items() if value is not None}


def plain(value: Any) -> Any:
    """A value as JSON has it: a file with its hash, an object by its name."""
    if isinstance(value, (str, Path)):
        return _plain_file(str(value)) or str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(name): plain(item) for name, item in items}
    if isinstance(value, Strategy):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast("list[Any]", value)]
    named = getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__)
    return {"object": str(named)}


def _plain_file(text: str) -> dict[str, str] | None:
    """`model.onnx` or `train.py:cost` with its hash, where there is such a file."""
    before, _, attribute = text.rpartition(":")
    for path, rest in ((text, ""), (before, attribute)):
        if Path(path).suffix and is_file(path):
            file = user_path(path)
            found = {"file": str(file.resolve()), "sha256": _sha256(file)}
            return found | ({"attribute": rest} if rest else {})
    return None


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as content:
            while part := content.read(1 << 20):
                digest.update(part)
    except OSError as error:
        raise DistirError(f"{file} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def said(value: Any) -> str:
    """A plain value in a message."""
    if isinstance(value, Mapping):
        known = cast("Mapping[str, Any]", value)
        if "sha256" in known:
            attribute = f":{known['attribute']}" if "attribute" in known else ""
            return f"{known['file']}{attribute} (sha256 {known['sha256'][:12]}…)"
        if "object" in known:
            return f"the object {known['object']}"
    return "not stated" if value is None else brief(str(cast("object", value)))


def same(first: Any, second: Any) -> bool:
    """Whether two plain values say the same; a file may lie elsewhere."""
    if isinstance(first, Mapping) and isinstance(second, Mapping) and "sha256" in first:
        names = ("sha256", "attribute")
        known, other = cast("Mapping[str, Any]", first), cast("Mapping[str, Any]", second)
        return all(known.get(name) == other.get(name) for name in names)
    return bool(first == second)


def differences(kept: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What of `now` is not as it was kept, in words."""
    for name, value in now.items():
        if not same(kept.get(name), value):
            title = name.replace("_", " ")
            begun = f"it was started with {title} = {said(kept.get(name))}"
            yield f"{begun}, here with {title} = {said(value)}"


def restored(kept: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a study was begun with. `typed` values, plain, say where files lie now;
    others are checked against the study's. What means nothing in the study's mode is left out.

    Raises `DistirError` if something differs, or a file is not where it was.
    """
    for words in differences(kept, typed):
        raise DistirError(f"this is a different study: {words}")
    here = {**kept, **typed}
    return {name: _restored(name, here[name]) for name in ProblemStatement.bearing(kept)}


def _restored(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    known = cast("Mapping[str, Any]", value)
    if "object" in known:
        raise DistirError(
            f"the study's {name} is {said(value)} of a Python program; only that program can "
            "continue it, with tune(…, resume=True)"
        )
    if "sha256" not in known:
        return {key: _restored(key, item) for key, item in known.items()}
    file, attribute = known["file"], known.get("attribute")
    option = f"--{name.replace('_', '-')} says where it is now"
    if not is_file(file):
        raise DistirError(
            f"the study's {name} is the file {file}, which does not exist here; {option}"
        )
    if _sha256(Path(file)) != known["sha256"]:
        raise DistirError(
            f"the study's {name}, {file}, has changed since the study began (its sha256 was "
            f"{known['sha256'][:12]}…); {option}"
        )
    return f"{file}:{attribute}" if attribute else file


def plain_search(search: Goal, kind: type[Goal]) -> dict[str, Any]:
    """How the search is made, as plain values: the fields of `kind` but for the goal's own."""
    stated = {each.name: getattr(search, each.name) for each in fields(kind)}
    return {name: plain(value) for name, value in stated.items() if name not in GOAL}
