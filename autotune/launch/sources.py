"""What a user has: a script, a command line or a file of options; text that is never executed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from autotune.launch.errors import LaunchError
from autotune.launch.rows import shown, spelled
from autotune.launch.shell import Script, read_script
from distir.files import is_file, is_folder, parsed, read_text
from distir.yaml_text import parse_yaml

MOST_CHARACTERS = 2_000_000
"""Characters beyond which a text is no launch script or file of options."""

LAUNCHER = (
    "--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port",
    "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--standalone", "--local-ranks-filter",
    "--role", "--tee", "--log-dir", "--max-restarts", "--redirects", "--run-path", "--no-python",
    "--start-method", "--monitor-interval", "--num-nodes", "--num-gpus", "--hostfile", "--include",
    "--exclude", "--config-file", "--machine-rank", "--main-process-ip", "--main-process-port",
    "--num-processes", "--num-machines",
)  # fmt: skip
"""Options of torchrun and of the launchers of DeepSpeed and accelerate. A dash and an underscore
are the same to them."""

FILES = (
    "launch.sh", "ds_config.json", "accelerate.yaml", "config.yaml", "model_config.yaml",
)  # fmt: skip
"""Files that are looked for in a folder, the first that is there."""


STARTERS = (
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch",
    "deepspeed.launcher.runner", "torchrun", "accelerate", "deepspeed",
)  # fmt: skip
"""Modules behind `python -m` that start a program, and are none."""

TELLERS = ("echo", "printf", "logger")
"""Commands that say a command and do not run it."""

MOST_SHELLS = 3
"""Shells that scripts hand a text to, one in another."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its words before the first option, and its options in order."""

    words: tuple[str, ...]
    options: Mapping[str, Any]
    """The options of the program, and those of its launcher that are in `LAUNCHER`."""
    launcher: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """All options before the program, as they are spelled."""


@dataclass(frozen=True)
class Source:
    """A file of the user's, as text."""

    path: Path
    text: str
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the user says variables are."""
    is_neutral: Callable[[str], bool] = lambda option: False
    """Whether an option bears neither on time nor on memory, for the framework that reads this."""
    told: Callable[[Sequence[str]], None] = lambda words: None
    """Told the words of the command that is read."""
    found_beside: list[Source] = field(default_factory=list["Source"], repr=False)
    """The files that it names and that have been read."""

    @property
    def is_script(self) -> bool:
        """Whether this is shell text."""
        return self.path.suffix.lower() not in (".json", ".yaml", ".yml")

    @cached_property
    def table(self) -> Mapping[str, Any] | None:
        """The content of a JSON or YAML file; None for a script."""
        if self.is_script:
            return None
        content = _json(self) if self.path.suffix.lower() == ".json" else _yaml(self)
        if not isinstance(content, dict):
            kind = "empty" if content is None else f"a {type(content).__name__}"
            raise LaunchError(f"{self.path}: {kind}; expected options with their values")
        try:
            filled = _Filled(self.variables).of(cast("object", content))
        except LaunchError as error:
            raise LaunchError(f"{self.path}: {error}") from error
        return cast("Mapping[str, Any]", filled)

    def names(self, variable: str) -> bool:
        """Whether the text, or that of a file that was found beside it, has a variable of this
        name."""
        pattern = re.compile(rf"(?<!\w){re.escape(variable)}(?!\w)")
        return any(pattern.search(each.text) for each in (self, *self.found_beside))

    @cached_property
    def script(self) -> Script:
        """The commands of a script."""
        return self._script(self.text)

    @property
    def open_launch(self) -> str | None:
        """A variable that depends on what runs, and that is a command or handed to a shell."""
        script = self.script
        for command in (*script.commands, *script.inner):
            for before, word in zip(("", *command), command, strict=False):
                started = before in ("", "eval") or re.fullmatch(r"-\w*c", before)
                if started and word.strip("${}") in script.uncertain and script.is_open(word):
                    return word
        return None

    def command(
        self, signs: Collection[str], alone: Callable[[str], bool] = lambda word: False
    ) -> Command | None:
        """The command that has one of the words, or else what arrays, or lines that are options,
        say. A word that stands `alone` is no option's value. Raises `LaunchError` if there are
        several commands, or several that might run."""
        if not self.is_script:
            return None
        found = self._found(self.script, signs, MOST_SHELLS)
        if found is None:
            return None
        self.told(found[1])
        return _command(self, *found, alone)

    def _found(
        self, script: Script, signs: Collection[str], shells: int
    ) -> tuple[Script, Sequence[str]] | None:
        """The words of the command, and the script that has it."""
        commands = [each for each in script.commands if each and each[0] not in TELLERS]
        lines = [word for each in commands if each[0].startswith("--") for word in each]
        arrays = [word for each in script.arrays for word in each]
        wanted = [each for each in commands if _has(each, signs)]
        begun = [each for each in wanted if not each[0].startswith("--")]
        if begun and lines:
            raise LaunchError(
                f"{self.path}: {shown(lines[0])} is a command of its own, after the end of "
                f"{program_of(begun[-1])}: a comment, or a line without a \\ at its end, ends a "
                "command; expected a single command"
            )
        if wanted and wanted[-1][0].startswith("--"):
            return script, arrays if _has(arrays, signs) else lines
        if wanted:
            return script, self._only(_programs(wanted, signs))
        inner = {each: None for each in script.inner if each and each[0] not in TELLERS}
        branches = [each for each in inner if _has(each, signs)]
        if len(branches) == 1:
            return script, branches[0]
        texts = _handed_over((*commands, *inner), signs) if shells else ()
        handed = [self._found(self._script(text, script), signs, shells - 1) for text in texts]
        if found := [each for each in handed if each is not None]:
            listed = self._only([words for _, words in found])
            return next(each for each in found if each[1] == listed)
        if _has(arrays, signs):
            return script, arrays
        if branches:
            raise LaunchError(
                f"{self.path}: which of {len(branches)} commands is run is known only at run time; "
                "expected a single one, in a file of its own"
            )
        return None

    def _only(self, commands: Sequence[Sequence[str]]) -> Sequence[str]:
        """The one command that some are, if they differ in nothing but options that are neutral.
        Raises `LaunchError` if not."""
        different = list({self._bearing(each): each for each in reversed(commands)}.values())[::-1]
        if len(different) > 1:
            raise LaunchError(
                f"{self.path}: {len(different)} commands could be read: {_told_apart(different)}; "
                "expected a single one: put the one to read into a file of its own"
            )
        return different[0]

    def _bearing(self, command: Sequence[str]) -> str:
        """A command without its neutral options."""
        words: list[str] = []
        options = [each for each in _options(command, words) if not self.is_neutral(each[0])]
        return repr((words, options))

    def _script(self, text: str, around: Script | None = None) -> Script:
        try:
            return read_script(text, self.variables, around, self._text_beside)
        except LaunchError as error:
            raise LaunchError(f"{self.path}: {error}") from error

    def _text_beside(self, name: str) -> str | None:
        found = None if Path(name).name == self.path.name else self.beside(name)
        return None if found is None else found.text

    def options(self, signs: Collection[str]) -> dict[str, Any] | None:
        """The options of that command."""
        found = self.command(signs)
        return None if found is None else dict(found.options)

    def beside(self, name: object) -> Source | None:
        """A file that this one names, looked for beside it. Raises `LaunchError` if that is no
        name."""
        if not isinstance(name, str):
            raise LaunchError(f"{self.path}: {shown(name)} is not the name of a file")
        path = self.path.parent / Path(name).name
        if not is_file(path):
            return None
        self.found_beside.append(read_source(path, self.variables))
        return self.found_beside[-1]


def read_source(path: Path, variables: Mapping[str, str]) -> Source:
    """Reads a file, or the one in a folder that is for a launch. Raises `LaunchError` if there is
    none, or if it is no text."""
    if is_folder(path):
        inside = (path / name for name in FILES)
        found = next((each for each in inside if is_file(each)), None)
        if found is None:
            raise LaunchError(f"{path}: none of {', '.join(FILES)} is in this folder")
        path = found
    if not is_file(path):
        raise LaunchError(f"{path}: there is no such file")
    text = read_text(path, LaunchError)
    if len(text) > MOST_CHARACTERS:
        raise LaunchError(
            f"{path}: more than {MOST_CHARACTERS:,} characters; expected a launch script or a file "
            "of options"
        )
    if "\0" in text:
        raise LaunchError(f"{path}: not a text file: it contains null bytes")
    return Source(path, text, variables)


_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-[^{}]*)?\}|(\w+))")


class _Filled:
    """Puts the variables that a user states into the texts of a file of options."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self._begun: dict[int, object] = {}
        """What lists and tables have become, by identity: a file may have one of them often."""

    def of(self, content: object) -> object:
        """The content with variables put in. Raises `LaunchError` if it contains itself."""
        if isinstance(content, str):
            return _VARIABLE.sub(self._value, content)
        if not isinstance(content, (dict, list)):
            return content
        whole = cast("dict[object, object] | list[object]", content)
        if id(whole) not in self._begun:
            self._begun[id(whole)] = None
            self._begun[id(whole)] = (
                {name: self.of(each) for name, each in whole.items()}
                if isinstance(whole, dict)
                else [self.of(each) for each in whole]
            )
        found = self._begun[id(whole)]
        if found is None:
            raise LaunchError("a list or table contains itself; expected options")
        return found

    def _value(self, found: re.Match[str]) -> str:
        return self.variables.get(found[1] or found[2], found[0])


def _json(source: Source) -> object:
    return parsed(source.text, source.path, _parse_json, "JSON", LaunchError)


_COMMENT = re.compile(
    r'(?P<string>"(?:\\.|[^"\\\n])*"?)|#[^\n]*|//[^\n]*|/\*(?:.*?\*/|.*)', re.DOTALL
)
_LAST_COMMA = re.compile(r'(?P<string>"(?:\\.|[^"\\\n])*"?)|,(?=\s*[}\]])')


def _parse_json(text: str) -> object:
    """JSON, with the comments and last commas that DeepSpeed, which reads Hjson, lets there be."""
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(_blank, text)
    return json.loads(text, object_pairs_hook=_once)


def _blank(found: re.Match[str]) -> str:
    """A string as it is, anything else as blanks, so that lines and columns stay."""
    return found["string"] or re.sub(r"[^\n]", " ", found[0])


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The table of some names with their values. Raises `ValueError` if a name is there twice, of
    which JSON would take the last one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(
            f"{shown(twice)} is stated {names.count(twice)} times; leave out all but one"
        )
    return found


def _yaml(source: Source) -> object:
    return parsed(source.text, source.path, parse_yaml, "YAML", LaunchError)


def _has(listed: Sequence[str], signs: Collection[str]) -> bool:
    """Whether some word is, or begins an option with, one of the signs; a program counts in any
    folder."""
    return any(
        word in signs or word.partition("=")[0] in signs or word.rpartition("/")[2] in signs
        for word in listed
    )


def _programs(commands: Sequence[Sequence[str]], signs: Collection[str]) -> Sequence[Sequence[str]]:
    """Those of some commands that start a program of the framework; all, if none says so by its
    name: others, as to convert checkpoints, may take the same options."""
    names = [sign for sign in signs if not sign.startswith("-")]
    return [each for each in commands if _has(each, names)] or commands


MOST_TOLD = 3
"""Commands, and options of each, that a message names."""


def _told_apart(commands: Sequence[Sequence[str]]) -> str:
    """Some commands by what they start, and by options that not all of them have so."""
    stated = [dict(_options(each, [])) for each in commands]
    told: list[str] = []
    for command, options in list(zip(commands, stated, strict=True))[:MOST_TOLD]:
        own = [
            spelled(name, given)
            for name, given in options.items()
            if any(name not in other or other[name] != given for other in stated)
        ]
        told.append(shown(" ".join([program_of(command), *own[:MOST_TOLD]])))
    more = len(commands) - len(told)
    return ", ".join([*told, f"{more} more"] if more else told)


def _handed_over(commands: Iterable[Sequence[str]], signs: Collection[str]) -> Iterator[str]:
    """The texts that commands hand to a shell, as `bash -c` and `eval` do, the last one first."""
    words = [word for each in commands for word in each]
    for word in reversed(words):
        if any(blank in word for blank in " \n\t") and any(sign in word for sign in signs):
            yield word


def _command(
    source: Source, script: Script, listed: Sequence[str], alone: Callable[[str], bool]
) -> Command:
    place = _program(listed)
    before, after = listed[:place], listed[place:]
    launcher = dict(_options(before, []))
    words = [word for word in after if alone(word)]
    after = [word for word in after if not alone(word)]
    options = {name: given for name, given in launcher.items() if name in LAUNCHER}
    options |= _options(after, words)
    open_words = [word for word in before[1:] if script.is_open(word) or _is_variable(word)]
    if any(not before[at - 1].startswith("-") for at in map(before.index, open_words)):
        options["--nnodes"] = open_words[0]  # it may say how many there are
    for word in after:
        if script.is_open(word):
            name = word.strip("${}@[]*")
            decides = script.uncertain.get(name)
            what = f"what decides that with --set {decides}=VALUE, or " if decides else ""
            raise LaunchError(
                f"{source.path}: {word} is known only at run time; state {what}its words with "
                "--set "
                f"{name}='…'"
            )
    for word in (*words, *_further_values(source, after)):
        if _is_variable(word) and not word.startswith("$(("):  # a sum is one number
            raise LaunchError(f"{source.path}: {_left_open(word)}")
    return Command(tuple(words), options, launcher)


def _further_values(source: Source, listed: Sequence[str]) -> Iterator[str]:
    """The values of options behind the first ones, where options bear on time or memory."""
    for name, given in _options(listed, []):
        if isinstance(given, list) and not source.is_neutral(name):
            yield from cast("list[str]", given)[1:]


def _left_open(word: str) -> str:
    """That a word stands for what nobody knows: a value, several, or options."""
    name = word.strip("${}").partition("[")[0]
    how = f"state them with --set {name}='…'" if name.isidentifier() else "write them in its place"
    return f"{shown(word)} may stand for several words, including options; {how}"


def program_of(words: Sequence[str]) -> str:
    """The program that a command starts."""
    return words[_program(words)]


def _program(listed: Sequence[str]) -> int:
    """The place of the program that a launcher starts; 0 if there is none."""
    for place, word in enumerate(listed):
        if word.startswith("-"):
            continue
        if word.endswith(".py"):
            return place
        if place and listed[place - 1] in ("-m", "--module") and word not in STARTERS:
            return place
    return 0


def _options(listed: Sequence[str], words: list[str]) -> Iterator[tuple[str, Any]]:
    """The options among words with their values: True, a text, or several texts. Words before the
    first one, and those behind the launcher's options, go to `words`."""
    name, values = "", list[str]()
    for word in [*listed, "--"]:
        if not word.startswith("--"):
            (values if name else words).append(word)
            continue
        if name:
            yield _ended(name, values, words)
        name, equals, given = word.partition("=")
        values = [given] if equals else []


def _ended(name: str, values: list[str], words: list[str]) -> tuple[str, Any]:
    plain = name.replace("_", "-")
    if plain in LAUNCHER and len(values) > 1:
        words.extend(values[1:])  # the program that is launched, and its own words
        values = values[:1]
    name = plain if plain in LAUNCHER else name
    kept = [each for each in values if each not in ("$@", "${@}")]
    if not kept:
        return name, True
    return name, kept[0] if len(kept) == 1 else kept


def _is_variable(word: str) -> bool:
    """Whether a word is a variable or what a command prints, and no path that begins with one."""
    printed = word.startswith("$(") and word.endswith(")")
    path = "/" in word and not printed
    return word.startswith("$") and word not in ("$@", "${@}", "$*") and not path


def devices_of(options: Mapping[str, Any]) -> int | None:
    """The devices of a launcher's options; None if they do not say it as numbers."""
    nodes, each = options.get("--nnodes", "1"), options.get("--nproc-per-node")
    if each is None or ("--hostfile" in options and "--nnodes" not in options):
        return None
    try:
        return int(str(nodes)) * int(str(each))
    except ValueError:
        return None


def processes_of(count: object, machines: object) -> dict[str, Any]:
    """The options of a launcher for so many processes on all machines together, as accelerate
    states them: by machine where that is a number, else as if there were one machine."""
    try:
        each, rest = divmod(int(str(count)), int(str(machines)))
    except (ValueError, ZeroDivisionError):
        each = rest = 0
    if rest or each < 1:
        return {"--nproc-per-node": count}
    return {"--nnodes": machines, "--nproc-per-node": each}


__all__ = [
    "LAUNCHER",
    "Command",
    "Source",
    "devices_of",
    "processes_of",
    "program_of",
    "read_source",
    "shown",
]
