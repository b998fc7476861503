"""Damaged texts: real files with a few random changes to their bytes, lines, numbers and words."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

SMALL = ("1", "2", "4", "8", "16", "32", "64", "128")
"""Numbers with which most things still work, in other ways than before."""

NUMBERS = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "3",
        "4",
        "7",
        "8",
        "16",
        "64",
        "100",
        "0.25",
        "0.5",
        "-0.0",
        "1e-320",
        "1e30",
        "1e308",
        "-1e308",
        "1e400",
    ),
    *("nan", "inf", "-inf", ".nan", ".inf", "NaN", "Infinity", "1_000", "0x10", "0" * 50 + "1"),
    *(str(10**power) for power in (4, 6, 9, 12, 18, 19, 30, 400)),
    *("9" * 5000, "0x" + "f" * 5000, str(1 << 31), str(1 << 63), str(-(1 << 63)), "16384"),
)
WORDS = (
    *("", "a" * 5000, "none", "null", "true", "no", "~", "~nobody/x", "..", "/", ".", "-", "--"),
    *("{}", "[]", "[" * 3000, "[" * 20 + "]" * 20, "{" * 3000, "(", '"', "'", "é" * 300, "\u202e"),
    *("a\\u0000b", "2020-99-99", "!!float x", "!!timestamp x", "&a [*a]", "*a", "%", "=", ",", ";"),
    *("heads", "all", "default", "1f1b", "interleaved", "/dev/null", "bf16", "5 GB/s", "1e300 s"),
    *("1e-300 B/s", "1e999 GiB", "80 GiB", "0 s", "A100", "x y z", "1F1", "0B0", "\t", "=1+1"),
)

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z_][\w-]*|\"[^\"\n]*\"")

Change = Callable[[str, random.Random], str]


def mutated_text(text: str, rng: random.Random) -> bytes:
    """The text with some changes; now and then no text any more."""
    for _ in range(rng.choice((1, 1, 1, 1, 1, 2, 4))):
        text = rng.choice(CHANGES)(text, rng)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        data = mutated_bytes(data, rng)
    return data


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """The file with some bytes changed, cut out, doubled or cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 5, 20))):
        place = rng.randrange(max(1, len(changed)))
        kind = rng.random()
        if kind < 0.6:
            changed[place : place + 1] = bytes([rng.randrange(256)])
        elif kind < 0.75:
            del changed[place : place + rng.randrange(1, 64)]
        elif kind < 0.9:
            changed[place:place] = changed[place : place + rng.randrange(1, 64)]
        else:
            del changed[place:]
    return bytes(changed)


def _replace(pattern: re.Pattern[str], others: tuple[str, ...]) -> Change:
    """Puts one of `others`, or what stands elsewhere, in place of one match."""

    def change(text: str, rng: random.Random) -> str:
        found = list(pattern.finditer(text))
        if not found:
            return text
        match = rng.choice(found)
        new = rng.choice(others) if rng.random() < 0.8 else rng.choice(found)[0]
        if match[0].startswith('"') and rng.random() < 0.9:
            new = f'"{new}"'
        return text[: match.start()] + new + text[match.end() :]

    return change


def _change_lines(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.random()
    if kind < 0.35:
        del lines[place]
    elif kind < 0.6:
        lines.insert(other, lines[place])
    elif kind < 0.8:
        lines[place], lines[other] = lines[other], lines[place]
    elif kind < 0.9:
        lines[place] *= rng.choice((3, 100))
    else:
        del lines[place:]
    return "".join(lines)


def _change_character(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text) + 1)
    new = rng.choice(("", "[", "]", "{", "}", '"', "'", ",", ":", "=", "\n", "\0", "-", "#", " "))
    return text[:place] + new + text[place + rng.randrange(2) :]


def _insert_word(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice((*WORDS, *NUMBERS)) + text[place:]


CHANGES: tuple[Change, ...] = (
    *[_replace(_NUMBER, SMALL)] * 5,
    *[_replace(_NUMBER, NUMBERS)] * 4,
    _replace(_NUMBER, WORDS),
    *[_replace(_WORD, WORDS)] * 2,
    _replace(_WORD, NUMBERS),
    *[_change_lines] * 2,
    _change_character,
    _insert_word,
)
"""Mostly numbers: they are what a file may say and still be read."""
