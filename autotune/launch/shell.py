r"""The commands of a shell script, read and never executed.

    TP=4
    ARGS=(--tensor-model-parallel-size $TP --bf16)
    torchrun --nproc-per-node 8 pretrain_gpt.py "${ARGS[@]}" --micro-batch-size 1

gives the commands of the script as lists of words, with variables that the script itself sets put
in, and sums of whole numbers worked out. What is set in a branch, a loop or a function, what a
command would print, and what is not set at all stays as it stands, with its dollar.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.launch.errors import LaunchError
from autotune.launch.shell_words import AND, CLOSE, END, MOST_WORDS, OPEN, OR, Word, words

OPENING = {"if", "for", "while", "until", "case", "{", "select", "function"}
CLOSING = {"fi", "done", "esac", "}"}

_NAME = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_VARIABLE = re.compile(
    r"\$\{(?P<braced>[A-Za-z_]\w*|\d+)(?:\[[@*]\])?(?P<rest>[^{}]*)\}"
    r"|\$(?P<plain>[A-Za-z_]\w*|\d)"
)
_SUM = re.compile(r"\$\(\((?P<terms>[^$`]{1,200}?)\)\)")
"""An arithmetic expansion without variables in it."""

TESTS = ("[", "((", "test", "grep", "command", "which")
"""Commands whose success says something, so that what follows `&&` may not run."""


@dataclass(frozen=True, slots=True)
class _Before:
    """A variable before a block that may not run and sets it."""

    value: list[str] | None
    uncertain: str | None
    """What decided its value, if that was not known."""
    decided_by: str
    """What decides whether it is set."""


@dataclass(slots=True)
class _Block:
    """A branch, a loop or a function that is being read."""

    runs: bool | None = None
    """Whether what is in it runs; None if that is not known."""
    ran: bool | None = False
    """Whether an earlier branch runs; None if that is not known."""
    decided_by: str = ""
    """The variable without a value that decides it, if that is one."""
    is_case: bool = False
    before: dict[str, _Before] = field(default_factory=dict[str, "_Before"])
    """Variables that are set in it, which have their values there alone, as they were before."""

    def turn(self, holds: bool | None) -> None:
        """Goes on with the next branch, whose condition `holds`, or nobody knows."""
        self.ran = True if True in (self.ran, self.runs) else _known(self.ran, self.runs)
        if self.ran or holds is False:
            self.runs = False
        else:
            self.runs = None if self.ran is None else holds


def _known(*parts: bool | None) -> bool | None:
    return None if None in parts else False


@dataclass
class _Script:
    variables: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    uncertain: dict[str, str] = field(default_factory=dict[str, str])
    """Variables that are set where it depends on what runs, and the variable that decides it, if
    that is one."""
    commands: list[list[str]] = field(default_factory=list[list[str]])
    inner: list[list[str]] = field(default_factory=list[list[str]])
    blocks: list[_Block] = field(default_factory=list[_Block])
    further: list[tuple[Word, list[Word]]] = field(default_factory=list[tuple[Word, list[Word]]])
    """What a condition has behind its first test: `AND` or `OR`, and a test."""
    doubtful: bool = False
    """Whether what is taken in runs only after a command that may fail."""
    passed_over: bool = False
    """Whether what is taken in does not run, as a test before it says."""
    succeeded: bool | None = None
    """Whether what ran last in a chain of `&&` and `||` succeeded."""

    beside: Callable[[str], str | None] = lambda name: None
    """The text of a file that the script reads in; None if it is not there."""
    read_in: list[str] = field(default_factory=list[str])
    """The files that are being read in, one in another."""
    files: int = 0
    """How many have been read in."""
    unread: list[str] = field(default_factory=list[str])
    """The files that it reads in and that are not there."""

    outside: list[tuple[dict[str, list[str]], dict[str, str]]] = field(
        default_factory=list[tuple[dict[str, list[str]], dict[str, str]]]
    )
    """The variables, certain and not, as they are again behind brackets that are being read."""

    def turn_to_shell(self, *, begins: bool) -> None:
        """Begins or ends what a shell of its own runs, whose variables are its own."""
        if begins:
            self.outside.append((dict(self.variables), dict(self.uncertain)))
        elif self.outside:
            self.variables, self.uncertain = self.outside.pop()

    @property
    def certain(self) -> bool:
        """Whether what is taken in runs in any case."""
        return not self.doubtful and all(block.runs for block in self.blocks)

    @property
    def decided_by(self) -> str:
        """The variable without a value that decides whether what is taken in runs."""
        unknown = [block.decided_by for block in self.blocks if block.runs is None]
        return unknown[0] if len(unknown) == 1 and not self.doubtful else ""

    @property
    def skipped(self) -> bool:
        """Whether what is taken in does not run."""
        return self.passed_over or any(block.runs is False for block in self.blocks)

    @property
    def open_block(self) -> _Block | None:
        """The innermost block of which it is not known whether it runs."""
        return next((each for each in reversed(self.blocks) if each.runs is None), None)

    @property
    def runs_group(self) -> bool | None:
        """Whether commands in braces run: behind a test whose outcome is known. Others may be the
        body of a function."""
        return None if self.succeeded is None or self.doubtful else not self.passed_over

    def remember(self, name: str) -> None:
        """Keeps what a variable is before it is set in a block that may not run."""
        if (block := self.open_block) is not None and name not in block.before:
            value, uncertain = self.variables.get(name), self.uncertain.get(name)
            block.before[name] = _Before(value, uncertain, self.decided_by)

    def turn(self) -> None:
        """Gives variables back the values that they have where the next branch runs."""
        for name, before in self.blocks[-1].before.items():
            self.variables.pop(name, None)
            self.uncertain.pop(name, None)
            if before.value is not None:
                self.variables[name] = before.value
            if before.uncertain is not None:
                self.uncertain[name] = before.uncertain

    def close(self) -> None:
        """Ends a block: what is set in it is not known behind it."""
        for name, before in self.blocks.pop().before.items():
            self.uncertain.setdefault(name, before.decided_by)
            self.variables.pop(name, None)

    def go_on(self, sign: Word, command: list[Word]) -> None:
        """Goes on behind a command, with what runs in any case or by whether it succeeds."""
        if sign is not AND and sign is not OR:
            self.doubtful, self.passed_over, self.succeeded = False, False, None
            return
        if not self.passed_over:
            self.succeeded = None if self.doubtful else _succeeds(self, command, sign)
        runs = self.succeeded if sign is AND or self.succeeded is None else not self.succeeded
        self.doubtful, self.passed_over = runs is None, runs is False


@dataclass(frozen=True, slots=True)
class Script:
    """What a script says: its commands as words, and its variables."""

    commands: tuple[tuple[str, ...], ...]
    inner: tuple[tuple[str, ...], ...]
    """Commands in branches, loops and functions: whether they run depends on what runs."""
    variables: Mapping[str, tuple[str, ...]]
    arrays: tuple[tuple[str, ...], ...]
    """The values of variables that hold several words, in order."""
    uncertain: Mapping[str, str]
    """Variables whose values depend on what runs, and the variable that decides it, if it is one.
    """
    unread: tuple[str, ...] = ()
    """Files that it reads in (`source`), and that are not there."""

    def is_open(self, word: str) -> bool:
        """Whether a word may stand for several: an array, or a variable that depends on what
        runs, as it stands."""
        found = _VARIABLE.fullmatch(word)
        name = (found["braced"] or found["plain"]) if found else ""
        return bool(name) and (name in self.uncertain or word.endswith(("[@]}", "[*]}")))


def read_script(
    text: str,
    given: Mapping[str, str] | None = None,
    around: Script | None = None,
    beside: Callable[[str], str | None] = lambda name: None,
) -> Script:
    """Reads a script. Variables that are `given` keep their values whatever the script says. A text
    that a script `around` it hands to a shell has the variables of that script. `beside` gives the
    text of a file that it reads in, or None. Raises `LaunchError` if a quote or a bracket is not
    closed."""
    found = _Script(beside=beside)
    if around is not None:
        found.variables.update({name: list(value) for name, value in around.variables.items()})
        found.uncertain.update(around.uncertain)
    stated = {name: [value] for name, value in (given or {}).items()}
    found.variables.update(stated)
    _take_text(found, text, stated)
    while found.blocks:
        found.close()
    return Script(
        tuple(map(tuple, found.commands)),
        tuple(map(tuple, found.inner)),
        {name: tuple(value) for name, value in found.variables.items()},
        tuple(filter(None, map(_listed, found.variables.values()))),
        dict(found.uncertain),
        tuple(dict.fromkeys(found.unread)),
    )


def _take_text(found: _Script, text: str, stated: Mapping[str, list[str]]) -> None:
    """Takes the commands of a text in."""
    command: list[Word] = []
    begun: list[Word] = []
    for word in [*words(text), END]:
        if word.pieces:
            command.append(word)
            continue
        if begun:
            found.further[-1][1].extend(command)
        if word is not END and (begun or _begins_branch(command)):
            begun = begun or command
            found.further.append((word, []))
            command = []
            continue
        _take(found, begun or command, stated)
        found.go_on(word, command)
        if word is OPEN or word is CLOSE:
            found.turn_to_shell(begins=word is OPEN)
        command, begun = [], []
        found.further.clear()


SOURCES = ("source", ".")
"""Commands that read a file in, as if it stood in their place."""

MOST_READ_IN, MOST_FILES = 5, 100
"""Files that are read in, one in another and in all."""


def _take_file(found: _Script, name: str, stated: Mapping[str, list[str]]) -> None:
    """Takes the commands of a file in that a script reads in."""
    deep = name in found.read_in or len(found.read_in) == MOST_READ_IN
    text = None if deep or found.files == MOST_FILES else found.beside(name)
    if text is None:
        found.unread.append(name)
        return
    chain, depth = (found.doubtful, found.passed_over, found.succeeded), len(found.blocks)
    found.read_in.append(name)
    found.files += 1
    _take_text(found, text, stated)
    found.read_in.pop()
    found.doubtful, found.passed_over, found.succeeded = chain
    while len(found.blocks) > depth:
        found.close()


def _succeeds(found: _Script, command: list[Word], sign: Word) -> bool | None:
    """Whether a command succeeds; None if that depends on what runs. What others are to follow
    with `&&` is taken to succeed, if it is no test."""
    if command and command[0].text.startswith(TESTS):
        return _holds(found, command)
    sets = len(command) == 1 and _NAME.match(command[0].text) and "$(" not in command[0].text
    return True if sign is AND or sets else None


def _begins_branch(command: list[Word]) -> bool:
    """Whether a command is the first test of a condition."""
    before = (*_BEFORE, "else")
    first = next((w for w in command if w.text not in before and not w.text.endswith(")")), END)
    return first.plain and first.text in ("if", "elif")


def _listed(value: list[str]) -> tuple[str, ...]:
    """The words of a variable that holds several: an array, or options in one text."""
    if len(value) == 1 and value[0].lstrip().startswith("--"):
        return tuple(words_of_value(value[0]))
    return tuple(value) if len(value) > 1 else ()


def _take(found: _Script, command: list[Word], stated: Mapping[str, list[str]]) -> None:
    """Takes a command in."""
    if found.blocks and found.blocks[-1].is_case and command and _is_pattern(command[0]):
        found.turn()
    command = _bare(found, command)
    if not command:
        return
    first = command[0].text if command[0].plain else ""
    rest = command[1 + (first != "{") :]
    if rest and (first == "{" or (first.endswith("()") and command[1].text == "{")):
        found.blocks.append(_Block(found.runs_group if first == "{" else None))
        _take(found, rest, stated)
        return
    if first in OPENING or command[-1].text in ("()", "{"):
        other = _Block(found.runs_group if first == "{" else None, is_case=first == "case")
        found.blocks.append(_branch(found, command[1:]) if first == "if" else other)
        _forget_changed(found, command, first, stated)
        return
    if first in CLOSING:
        if found.blocks:
            found.close()
        return
    if first in ("elif", "else") and found.blocks:
        found.turn()
        following = _branch(found, command[1:]) if first == "elif" else _Block(True)
        found.blocks[-1].turn(following.runs)
        if following.runs is None:
            found.blocks[-1].decided_by = ""  # and by the branches before
        if first == "else":
            _take(found, command[1:], stated)
        return
    if found.skipped:
        return
    while command and (match := _NAME.match(command[0].text)) and command[0].pieces[0][1] == "":
        name, adds = match[1], bool(match[2])
        listed = command[0].without(match.end()).opens_array
        value, command = _value(found, command, match.end())
        if name in stated:
            continue
        if found.doubtful or (adds and name in found.uncertain):
            found.uncertain.setdefault(name, found.decided_by)
            found.variables.pop(name, None)
        else:
            found.remember(name)
            found.uncertain.pop(name, None)
            before = found.variables.get(name, []) if adds else []
            if before and not listed:
                before, value = [], [before[0] + value[0], *before[1:]]
            found.variables[name] = [*before, *value]
    while command and (match := _ELEMENT.match(command[0].text)) and not command[0].pieces[0][1]:
        _take_element(found, match, command[0].without(match.end()), stated)
        command = command[1:]
    if command and command[0].text in SOURCES and len(command) > 1:
        _take_file(found, "".join(_joined(found, command[1])), stated)
        return
    if command:
        _forget_changed(found, command, command[0].text, stated)
        words = [each for word in command for each in _expanded(found, word)]
        surely = all(block.runs for block in found.blocks)
        (found.commands if surely else found.inner).append(words)


_ELEMENT = re.compile(r"([A-Za-z_]\w*)\[([^\]]*)\](\+?)=")
"""What gives an element of an array another value."""


def _take_element(
    found: _Script, match: re.Match[str], word: Word, stated: Mapping[str, list[str]]
) -> None:
    """Takes in that an element of an array gets a value, the text of a word."""
    name, place, adds = match.groups()
    if name in stated:
        return
    elements = found.variables.get(name, [])
    known = found.certain and name not in found.uncertain and not adds and word.pieces
    if not known or not place.isdecimal() or len(place) > 4 or int(place) > len(elements):
        _forget(found, name)
        return
    value = "".join(_joined(found, word))
    found.variables[name] = [*elements[: int(place)], value, *elements[int(place) + 1 :]]


_CHANGE = re.compile(r"(?:\+\+|--)\s*(\w+)|(\w+)\s*(?:\+\+|--|[-+*/%]?=(?!=))")
"""What an arithmetic command gives another value."""

READERS = ("read", "mapfile", "readarray", "unset", "getopts")
"""Commands that give variables other values, by their names."""


def _forget(found: _Script, name: str) -> None:
    found.uncertain.setdefault(name, "")
    found.variables.pop(name, None)


_ASSIGNED = re.compile(r"\(\(\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)([^=]*)\)\)")
"""An arithmetic command that gives one variable a value."""


def _forget_changed(
    found: _Script, command: list[Word], first: str, stated: Mapping[str, list[str]]
) -> None:
    """Takes in that a command gives variables other values, of which that of a sum is followed."""
    for name in _changed(command, first):
        if name in stated:
            continue
        value = _assigned(found, command)
        _forget(found, name)
        if value is not None:
            found.variables[name] = [str(value)]
            found.uncertain.pop(name, None)


def _assigned(found: _Script, command: list[Word]) -> int | None:
    """The value that an arithmetic command gives its one variable, where it surely runs."""
    match = _ASSIGNED.fullmatch(command[0].text) if len(command) == 1 else None
    if match is None or not found.certain or _CHANGE.search(match[3]):
        return None
    terms = f"{match[1]} {match[2]} ({match[3]})" if match[2] else match[3]
    return _worked_out(found, _substituted(found, terms))


def _changed(command: list[Word], first: str) -> Iterator[str]:
    """The variables that a command gives values that are not followed."""
    texts = [word.text for word in command]
    if first in READERS:
        yield from (text for text in texts[1:] if text.isidentifier())
    elif first == "let" or any(text.startswith("((") for text in texts[:2]):
        for match in _CHANGE.finditer(" ".join(texts)):
            yield match[1] or match[2]
    elif first in ("for", "select"):
        yield from texts[1:2]
    elif first == "printf" and texts[1:2] == ["-v"]:
        yield from texts[2:3]


_BEFORE = ("then", "do", "export", "readonly", "declare", "local", "typeset")


def _is_pattern(word: Word) -> bool:
    """Whether a word ends a pattern of a case."""
    return word.plain and word.text.endswith(")") and "(" not in word.text


def _bare(found: _Script, command: list[Word]) -> list[Word]:
    """A command without the words before it that say nothing here, and without the patterns of a
    case."""
    while (
        command
        and command[0].plain
        and (command[0].text in _BEFORE or (found.blocks and _is_pattern(command[0])))
    ):
        command = command[1:]
        behind = next((at for at, w in enumerate(command) if not w.text.startswith("-")), 0)
        if behind and _NAME.match(command[behind].text):
            command = command[behind:]
    return command


_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-gt": int.__gt__, "-ge": int.__ge__, "-lt": int.__lt__,
    "-le": int.__le__, "=": str.__eq__, "==": str.__eq__, "!=": str.__ne__,
}  # fmt: skip
"""Tests of two words: of numbers, or of texts."""


def _branch(found: _Script, first: list[Word]) -> _Block:
    """The branch behind a condition, with the variable that decides it if it has one unknown."""
    unknown = dict.fromkeys(
        match["braced"] or match["plain"]
        for test in (first, *(test for _, test in found.further))
        for word in test
        for text in _joined(found, word)
        for match in _VARIABLE.finditer(text)
    )
    holds = _holds(found, first)
    for sign, test in found.further:
        both = (holds, _holds(found, test))
        decisive = sign is OR
        holds = decisive if decisive in both else None if None in both else not decisive
    return _Block(holds, decided_by=next(iter(unknown)) if len(unknown) == 1 else "")


def _holds(found: _Script, condition: list[Word]) -> bool | None:
    """Whether a test such as `[ "$TP" -gt 1 ]` holds; None if that depends on what runs."""
    texts = ["".join(_joined(found, word)) for word in condition]
    if len(texts) == 1 and texts[0].startswith("(("):
        terms = _substituted(found, texts[0].strip("()"))
        value = _worked_out(found, terms)
        return None if value is None or _CHANGE.search(terms) else bool(value)
    if len(texts) < 3 or (texts[0], texts[-1]) not in (("[", "]"), ("[[", "]]")):
        return None
    if any(mark in text for text in texts[1:-1] for mark in "$`*?"):
        return None
    match texts[1:-1]:
        case ["!", *rest]:
            holds = _tested(rest)
            return None if holds is None else not holds
        case rest:
            return _tested(rest)


def _tested(texts: list[str]) -> bool | None:
    match texts:
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [one, sign, other] if sign in _COMPARED:
            if not sign.startswith("-"):
                return _COMPARED[sign](one, other)
            if len(one + other) > 40:
                return None
            try:
                return _COMPARED[sign](int(one), int(other))
            except ValueError:
                return None
        case _:
            return None


def _value(found: _Script, command: list[Word], start: int) -> tuple[list[str], list[Word]]:
    """The value of the assignment at the head of a command, and what follows it."""
    first = command[0]
    rest = first.without(start)
    if rest.opens_array:
        inside = [rest.without(1), *command[1:]]
        end = next((place for place, word in enumerate(inside) if word.closes()), None)
        if end is None:
            raise LaunchError(f"the array {first.text[:40]} is not closed; expected a )")
        *others, (text, _) = inside[end].pieces
        kept = Word((*others, (text[:-1], "")) if text[:-1] else tuple(others))
        listed = [*inside[:end], kept]
        values = [each for word in listed if word.pieces for each in _expanded(found, word)]
        return values, inside[end + 1 :]
    return ["".join(_joined(found, rest))], command[1:]


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
    """A variable's value cut at blanks, as where a script uses it without quotes. What a command
    would print stays whole."""
    listed: list[str] = []
    open_brackets = 0
    for part in re.split(r"(\s+)", text.replace("\\\n", " ")):
        if open_brackets and listed:
            listed[-1] += part
        elif part.strip():
            listed.append(part)
        if "$(" in part or open_brackets:
            open_brackets = max(0, open_brackets + part.count("(") - part.count(")"))
    return listed


def _substituted(found: _Script, text: str) -> str:
    """A text with the variables that are known put in, to some depth."""

    def value(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        rest = match["rest"] or ""
        if name in found.variables:
            known = _operated(" ".join(found.variables[name]), rest)
            return match[0] if known is None else known
        if name not in found.uncertain and rest.startswith((":-", "-", ":=", "=")):
            default = _unquoted(rest.lstrip(":")[1:])
            if "=" in rest[:2] and found.certain:
                found.variables[name] = [default]
            elif "=" in rest[:2]:
                found.uncertain.setdefault(name, found.decided_by)
            return default
        return match[0]

    for _ in range(4):
        changed = _VARIABLE.sub(value, text)
        changed = _SUM.sub(lambda match: _sum(found, match), changed)
        if changed == text:
            break
        text = changed
        if len(text) > MOST_WORDS:
            raise LaunchError("the variables of the script grow without limit")
    return text


def _operated(value: str, rest: str) -> str | None:
    """What a variable that has a value is with what follows its name: `:-4`, `:+--flag`. None for
    what is not followed, as a part of it."""
    sign, word = rest.lstrip(":")[:1], _unquoted(rest.lstrip(":")[1:])
    is_missing = rest.startswith(":") and not value
    if not rest or sign == "?":
        return value
    if sign in "-=":
        return word if is_missing else value
    if sign == "+":
        return "" if is_missing else word
    return None


def _unquoted(text: str) -> str:
    """A default value without quotes around it."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}
"""What is worked out of whole numbers, towards zero as a shell does."""


_ORDERED: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: int.__eq__, ast.NotEq: int.__ne__, ast.Lt: int.__lt__, ast.LtE: int.__le__,
    ast.Gt: int.__gt__, ast.GtE: int.__ge__,
}  # fmt: skip


def _worked_out(found: _Script, terms: str) -> int | None:
    """The value of an arithmetic expression; None if something of it is not known."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)) if type(number) is int:
                return number
            case ast.Name(id=name) if len(known := found.variables.get(name, ())) == 1:
                return int(known[0])
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.Compare(left=one, ops=[sign], comparators=[other]) if type(sign) in _ORDERED:
                return int(_ORDERED[type(sign)](value(one), value(other)))
            case ast.BinOp(left=one, op=sign, right=other) if type(sign) in _OPERATIONS:
                result = _OPERATIONS[type(sign)](value(one), value(other))
                if abs(result) < 1 << 62:
                    return result
            case _:
                pass
        raise ValueError

    if "#" in terms:  # a number in another base, to Python a comment
        return None
    try:
        return value(ast.parse(terms.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _sum(found: _Script, match: re.Match[str]) -> str:
    """The value of an arithmetic expansion, or the text as it stands."""
    result = _worked_out(found, match["terms"])
    return match[0] if result is None else str(result)
