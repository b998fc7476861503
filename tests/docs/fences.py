"""Fenced blocks of Markdown pages, and how what they show is compared with what runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.distributed.backend import torch_installed

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(sorted(path for pattern in ("*.md", "docs/**/*.md") for path in ROOT.glob(pattern)))

_FENCE = re.compile(
    r"^```(?P<info>[^`\n]*)\n(?P<text>.*?)^```[ ]*$", flags=re.DOTALL | re.MULTILINE
)
_FILE_NAME = re.compile(r"# ([\w-]+\.(?:py|toml|yaml|txt))\b")


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block. The words after its language say how it is treated: `slow`, `torch` where it
    needs PyTorch, or `not-run` and the reason."""

    page: Path
    line: int
    language: str
    words: str
    text: str
    shows_output: bool
    """Whether it follows a block of Python at once: it is then what that prints."""

    @property
    def where(self) -> str:
        """Page and line, as editors and terminals understand them."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The name of the file that the block is, if its first line is a comment that says so."""
        found = _FILE_NAME.match(self.text)
        return found[1] if found else None

    @property
    def runs(self) -> bool:
        """Whether the block is executed at all."""
        if self.words == "torch" and not torch_installed():
            return False
        return self.language in ("console", "python") and not self.words.startswith("not-run")

    @property
    def is_slow(self) -> bool:
        """Whether the block is left out of everyday runs."""
        return self.words == "slow"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console block, and what the page shows of its output."""

    line: str
    shown: str


def fences(page: Path) -> Iterator[Fence]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    end_of_python = -1
    for found in _FENCE.finditer(text):
        language, _, words = found["info"].strip().partition(" ")
        follows = end_of_python >= 0 and not text[end_of_python : found.start()].strip()
        yield Fence(
            page=page,
            line=text.count("\n", 0, found.start()) + 1,
            language=language,
            words=words.strip(),
            text=found["text"],
            shows_output=follows and language == "text",
        )
        end_of_python = found.end() if language == "python" else -1


def commands(fence: Fence) -> Iterator[Command]:
    """The commands of a console block: lines with a dollar, continued by a backslash."""
    joined = fence.text.replace("\\\n", " ")
    for part in re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        yield Command(line.strip(), shown)


def matches(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed.

    `…` stands for anything. Where lines break is no matter, nor are how long a search took, what is
    lost to rounding (1e-10 and below, which depends on the machine), and how often a sampler came
    back to a strategy, which changes with Optuna's releases.
    """
    parts = [re.escape(_comparable(part)) for part in shown.split("…")]
    return re.fullmatch(r"\s?.*?\s?".join(parts), _comparable(printed), re.DOTALL) is not None


def _comparable(text: str) -> str:
    text = re.sub(r"((?:\bin |\())[\d.]+ (?:us|ms|s|min)\b", r"\1# s", " ".join(text.split()))
    text = re.sub(r"\b\d\.?\d*e-1\d\b", "#", text)
    return re.sub(r"\d+ (suggestions? answered)", r"# \1", text)
