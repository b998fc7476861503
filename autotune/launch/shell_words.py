"""A shell script cut into words, as a shell cuts it.

Quotes are taken off, and how each part of a word was quoted is kept. Comments, redirections and the
texts of here-documents are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.launch.errors import LaunchError

MOST_WORDS = 100_000
"""Words after which what is read is no script of a launch."""

_BLANK = " \t\r"
_ARRAY = re.compile(r"\w+\+?=\(")
_SEPARATORS = "\n;&|"
_CONTINUED = re.compile(r"\\\r?\n")
_CUT_SHORT = re.compile(r"\\[ \t]+\r?\n")
_PLACEHOLDER = re.compile(r"<[A-Za-z][^<>|&;()\n]*>")
"""What an author leaves for others to fill in, `<path to data>`, which a shell would not take."""
_REDIRECTION = re.compile(
    rf"(?!{_PLACEHOLDER.pattern})(?:\d+|&)?(<<<|<<-|<<|<&|<>|>>|>&|>\||(?:<|>)(?!\())"
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

    @property
    def opens_array(self) -> bool:
        """Whether it begins an array, as what follows the = of an assignment may."""
        return bool(self.pieces) and self.pieces[0][0].startswith("(") and not self.pieces[0][1]

    def closes(self, *, opened: bool = False) -> bool:
        """Whether its last bracket closes one that is not in it, or that it `opened`."""
        unquoted = "".join(text for text, quote in self.pieces if not quote)
        return (
            bool(self.pieces)
            and self.pieces[-1][0].endswith(")")
            and not self.pieces[-1][1]
            and unquoted.count(")") + opened > unquoted.count("(")
        )

    def without(self, start: int) -> Word:
        """The word without its first characters."""
        pieces: list[tuple[str, str]] = []
        for text, quote in self.pieces:
            left, start = text[start:], max(0, start - len(text))
            if left or quote:
                pieces.append((left, quote))
        return Word(tuple(pieces))


END, AND, OR = Word(()), Word(()), Word(())
"""Ends of a command: what follows runs in any case, if the command succeeds, if it fails."""

OPEN, CLOSE = Word(()), Word(())
"""Ends of a command where brackets begin and end whose commands a shell of their own runs."""


def _target(text: str, place: int) -> tuple[str, int]:
    """The word behind a redirection, and where it ends."""
    while place < len(text) and text[place] in _BLANK:
        place += 1
    if place < len(text) and text[place] == "&":
        place += 1
    word, place = _word(text, place)
    return word.text, place


def _behind_documents(text: str, place: int, documents: list[tuple[str, bool]]) -> int:
    """The place behind the here-documents that begin at a place: each ends with a line that is its
    word alone. One without that line goes to the end, as in a shell."""
    for end, indented in documents:
        while place < len(text):
            stop = _line_end(text, place)
            line = text[place:stop].rstrip("\r")
            place = min(len(text), stop + 1)
            if (line.lstrip("\t") if indented else line) == end:
                break
    return place


def words(text: str) -> Iterator[Word]:
    """The words of a script, with `END` and the like between commands. Comments and continued lines
    are left out; an array in brackets is one command, however many lines it has."""
    place, count = 0, 0
    brackets = shells = 0
    begins = True
    documents: list[tuple[str, bool]] = []
    while place < len(text):
        here = text[place]
        if here == "\n" and documents:
            place = _behind_documents(text, place + 1, documents) - 1
            documents = []
        if (redirection := _REDIRECTION.match(text, place)) is not None:
            target, place = _target(text, redirection.end())
            if redirection[1] in ("<<", "<<-"):
                documents.append((target, redirection[1] == "<<-"))
        elif here in _BLANK:
            place += 1
        elif text.startswith("\\\n", place):
            place += 2
        elif text.startswith("\\\r\n", place):
            place += 3
        elif here == "#":
            place = _line_end(text, place)
        elif here in _SEPARATORS:
            double = here in "&|" and text.startswith(here * 2, place)
            place += 1 + double
            if not (brackets and here == "\n"):
                yield (AND if here == "&" else OR) if double else END
            begins = not brackets
        elif text.startswith("((", place) and (end := text.find("))", place)) > 0:
            yield Word(((text[place : end + 2], "'"),))
            place, begins = end + 2, False
        elif (here == "(" and begins) or (here == ")" and shells and not brackets):
            shells += 1 if here == "(" else -1
            place, begins = place + 1, True
            yield OPEN if here == "(" else CLOSE
        else:
            word, place = _word(text, place, ")" if shells and not brackets else "")
            begins = False
            opened = bool(word.pieces) and _ARRAY.match(word.pieces[0][0]) is not None
            opened = opened and not word.pieces[0][1]
            brackets += opened
            if brackets and word.closes(opened=opened):
                brackets = 0
            count += 1
            if count > MOST_WORDS:
                raise LaunchError(f"more than {MOST_WORDS:,} words; expected a script or a command")
            yield word


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _word(text: str, place: int, ends: str = "") -> tuple[Word, int]:
    """The word that begins at a place, and where it ends; also before one of the characters that
    it `ends` with, as a command in brackets does."""
    pieces: list[tuple[str, str]] = []
    plain: list[str] = []

    def end_plain() -> None:
        if plain:
            pieces.append(("".join(plain), ""))
            plain.clear()

    start = place
    while place < len(text) and text[place] not in _BLANK + _SEPARATORS + ends:
        here = text[place]
        if here == "<" and (left_open := _PLACEHOLDER.match(text, place)) is not None:
            plain.append(left_open[0])
            place = left_open.end()
        elif here in "<>" and not text.startswith("(", place + 1):
            break
        elif here in "'\"":
            end_plain()
            quoted, place = _quoted(text, place, here)
            pieces.append((quoted, here))
        elif (continued := _CONTINUED.match(text, place)) is not None:
            place = continued.end()
        elif _CUT_SHORT.match(text, place) is not None:
            raise LaunchError(
                f"{_where(text, place)}: a blank follows the \\ at the end of the line, so the "
                "command ends there; remove the blank"
            )
        elif here == "$" and text.startswith(("'", '"'), place + 1):
            place += 1  # a quote of another kind, whose escapes stay as they stand
        elif here == "\\" and place + 1 < len(text):
            end_plain()
            pieces.append((text[place + 1], "'"))
            place += 2
        elif text.startswith(("$(", "${", "<(", ">("), place):
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


__all__ = ["AND", "CLOSE", "END", "MOST_WORDS", "OPEN", "OR", "Word", "words"]
