r"""The words of a shell script, read and never executed.

    TP=4
    ARGS=(--tensor-model-parallel-size $TP --bf16)
    torchrun --nproc-per-node 8 pretrain_gpt.py "${ARGS[@]}" --micro-batch-size 1

gives the commands of the script as lists of words, with variables that the script itself sets put
in. What is set in a branch, a loop or a function, what a command would print, and what is not set
at all stays as it stands, with its dollar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotune.launch.errors import LaunchError

OPENING = {"if", "for", "while", "until", "case", "{", "select", "function"}
CLOSING = {"fi", "done", "esac", "}"}
MOST_WORDS = 100_000
"""Words after which what is read is no script of a launch."""

_NAME = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_VARIABLE = re.compile(
    r"\$\{(?P<braced>[A-Za-z_]\w*)(?:\[[@*]\])?(?P<rest>[^{}]*)\}|\$(?P<plain>[A-Za-z_]\w*)"
)


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its quotes taken off. `pieces` are its parts and how each was quoted: `'` as it
    stands, `"` with variables put in, nothing: with variables put in and cut at blanks."""

    pieces: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The word without quotes, variables as they stand."""
        return "".join(text for text, _ in self.pieces)

    @property
    def plain(self) -> bool:
        """Whether nothing of it is quoted."""
        return all(not quote for _, quote in self.pieces)


END = Word(())
"""The end of a command."""


@dataclass
class _Script:
    variables: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    uncertain: set[str] = field(default_factory=set[str])
    """Variables that are set where it depends on what runs."""
    commands: list[list[str]] = field(default_factory=list[list[str]])


@dataclass(frozen=True, slots=True)
class Script:
    """What a script says: its commands as words, and its variables."""

    commands: tuple[tuple[str, ...], ...]
    variables: Mapping[str, tuple[str, ...]]
    arrays: tuple[tuple[str, ...], ...]
    """The values of variables that hold several words, in order."""
    uncertain: frozenset[str]
    """Variables whose values depend on what runs."""

    def is_open(self, word: str) -> bool:
        """Whether a word may stand for several: an array, or a variable that depends on what
        runs, as it stands."""
        found = _VARIABLE.fullmatch(word)
        name = (found["braced"] or found["plain"]) if found else ""
        return bool(name) and (name in self.uncertain or word.endswith(("[@]}", "[*]}")))


def read_script(text: str, given: Mapping[str, str] | None = None) -> Script:
    """Reads a script. Variables that are `given` keep their values whatever the script says. Raises
    `LaunchError` if a quote or a bracket is not closed."""
    found = _Script()
    stated = {name: [value] for name, value in (given or {}).items()}
    found.variables.update(stated)
    depth = 0
    command: list[Word] = []
    for word in [*words(text), END]:
        if word is not END:
            command.append(word)
            continue
        depth = _take(found, command, depth, stated)
        command = []
    return Script(
        tuple(map(tuple, found.commands)),
        {name: tuple(value) for name, value in found.variables.items()},
        tuple(tuple(v) for v in found.variables.values() if len(v) > 1),
        frozenset(found.uncertain),
    )


def _take(found: _Script, command: list[Word], depth: int, stated: Mapping[str, list[str]]) -> int:
    """Takes a command in; returns how deep in branches and loops what follows is."""
    while (
        command
        and command[0].plain
        and command[0].text in ("then", "do", "else", "export", "readonly", "declare", "local")
    ):
        command = command[1:]
        while command and command[0].text.startswith("-") and _NAME.match(command[-1].text):
            command = command[1:]
    if not command:
        return depth
    first = command[0].text if command[0].plain else ""
    if first in OPENING or command[-1].text in ("()", "{"):
        return depth + 1
    if first in CLOSING:
        return max(0, depth - 1)
    while command and (match := _NAME.match(command[0].text)) and command[0].pieces[0][1] == "":
        name, adds = match[1], bool(match[2])
        value, command = _value(found, command, match.end())
        if name in stated:
            continue
        if depth:
            found.uncertain.add(name)
            found.variables.pop(name, None)
        else:
            found.variables[name] = [*(found.variables.get(name, []) if adds else []), *value]
    if command and not depth:
        words = [each for word in command for each in _expanded(found, word)]
        found.commands.append(words)
    return depth


def _value(found: _Script, command: list[Word], start: int) -> tuple[list[str], list[Word]]:
    """The value of the assignment at the head of a command, and what follows it."""
    first = command[0]
    rest = _without(first, start)
    if rest.text.startswith("(") and rest.pieces and rest.pieces[0][1] == "":
        inside = [_without(rest, 1), *command[1:]]
        end = next((i for i, w in enumerate(inside) if w.plain and w.text.endswith(")")), None)
        if end is None:
            raise LaunchError(f"the array {first.text[:40]} is not closed; expected a )")
        last = inside[end]
        kept = Word(((last.text[:-1], ""),)) if last.text[:-1] else None
        listed = [*inside[:end], *([kept] if kept else [])]
        values = [each for word in listed if word.pieces for each in _expanded(found, word)]
        return values, inside[end + 1 :]
    return ["".join(_joined(found, rest))], command[1:]


def _without(word: Word, start: int) -> Word:
    """A word without its first characters."""
    pieces: list[tuple[str, str]] = []
    for text, quote in word.pieces:
        cut, start = text[start:], max(0, start - len(text))
        if cut or quote:
            pieces.append((cut, quote))
    return Word(tuple(pieces))


def _joined(found: _Script, word: Word) -> Iterator[str]:
    for text, quote in word.pieces:
        yield text if quote == "'" else _substituted(found, text)


def _expanded(found: _Script, word: Word) -> list[str]:
    """The words that a word becomes: variables without quotes are cut at blanks."""
    if not word.pieces:
        return []
    literal = any(quote == "'" for _, quote in word.pieces)
    whole = None if literal else _VARIABLE.fullmatch(word.text)
    if (
        whole
        and not whole["rest"]
        and (name := whole["braced"] or whole["plain"]) in found.variables
    ):
        value = found.variables[name]
        return [w for each in value for w in words_of_value(each)] if word.plain else list(value)
    joined = "".join(_joined(found, word))
    if any("$" in text and not quote for text, quote in word.pieces) and joined != word.text:
        return words_of_value(joined)
    return [joined]


def words_of_value(text: str) -> list[str]:
    """A variable's value cut at blanks, as where a script uses it without quotes."""
    return text.replace("\\\n", " ").split()


def _substituted(found: _Script, text: str) -> str:
    """A text with the variables that are known put in, to some depth."""

    def value(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        rest = match["rest"] or ""
        if name in found.variables:
            return " ".join(found.variables[name]) if not rest or rest[0] in ":-" else match[0]
        if name not in found.uncertain and rest.startswith((":-", "-", ":=", "=")):
            return rest.lstrip(":").removeprefix("-").removeprefix("=")
        return match[0]

    for _ in range(4):
        changed = _VARIABLE.sub(value, text)
        if changed == text:
            break
        text = changed
        if len(text) > MOST_WORDS:
            raise LaunchError("the variables of the script grow without end")
    return text


# --- words ----------------------------------------------------------------------------------------

_BLANK = " \t\r"
_SEPARATORS = "\n;&|"


def words(text: str) -> Iterator[Word]:
    """The words of a script, with `END` between commands. Comments and continued lines are left
    out; an array in brackets is one command, however many lines it has."""
    place, count = 0, 0
    brackets = 0
    while place < len(text):
        here = text[place]
        if here in _BLANK:
            place += 1
        elif text.startswith("\\\n", place):
            place += 2
        elif text.startswith("\\\r\n", place):
            place += 3
        elif here == "#":
            place = _line_end(text, place)
        elif here in _SEPARATORS:
            place += 1
            if not (brackets and here == "\n"):
                yield END
        else:
            word, place = _word(text, place)
            opened = word.plain and re.match(r"\w+\+?=\(", word.text) is not None
            brackets += opened
            if brackets and word.plain and word.text.endswith(")") and "$(" not in word.text:
                brackets = 0
            count += 1
            if count > MOST_WORDS:
                raise LaunchError(f"more than {MOST_WORDS:,} words; expected a script or a command")
            yield word


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _word(text: str, place: int) -> tuple[Word, int]:
    """The word that begins at a place, and where it ends."""
    pieces: list[tuple[str, str]] = []
    plain: list[str] = []

    def end_plain() -> None:
        if plain:
            pieces.append(("".join(plain), ""))
            plain.clear()

    start = place
    while place < len(text) and text[place] not in _BLANK + _SEPARATORS:
        here = text[place]
        if here in "'\"":
            end_plain()
            quoted, place = _quoted(text, place, here)
            pieces.append((quoted, here))
        elif text.startswith("\\\n", place):
            break
        elif here == "\\" and place + 1 < len(text):
            end_plain()
            pieces.append((text[place + 1], "'"))
            place += 2
        elif text.startswith(("$(", "${"), place):
            end = _closed(text, place + 1, start)
            plain.append(text[place:end])
            place = end
        elif here == "`":
            end = text.find("`", place + 1)
            if end < 0:
                raise LaunchError(f"{_where(text, place)}: a ` is not closed")
            plain.append(f"$({text[place + 1 : end]})")
            place = end + 1
        elif here == ")" and not plain and not pieces:
            plain.append(here)
            place += 1
            break
        else:
            plain.append(here)
            place += 1
    end_plain()
    return Word(tuple(pieces)), place


def _quoted(text: str, place: int, quote: str) -> tuple[str, int]:
    """What is between quotes, and the place behind them."""
    parts: list[str] = []
    at = place + 1
    while at < len(text):
        here = text[at]
        if here == quote:
            return "".join(parts), at + 1
        if quote == '"' and here == "\\" and at + 1 < len(text) and text[at + 1] in '"\\$`\n':
            parts.append("" if text[at + 1] == "\n" else text[at + 1])
            at += 2
            continue
        parts.append(here)
        at += 1
    raise LaunchError(f"{_where(text, place)}: a quote {quote} is not closed")


_PAIRS = {"(": ")", "{": "}"}


def _closed(text: str, place: int, start: int) -> int:
    """The place behind the bracket that closes the one at a place."""
    opening, closing, depth = text[place], _PAIRS[text[place]], 0
    for at in range(place, len(text)):
        depth += (text[at] == opening) - (text[at] == closing)
        if not depth:
            return at + 1
    raise LaunchError(f"{_where(text, start)}: a {opening} is not closed")


def _where(text: str, place: int) -> str:
    line = text.count("\n", 0, place) + 1
    return f"line {line}"
