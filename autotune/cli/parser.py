"""Parsers of command lines whose errors are one line that names the cause."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, cast

from distir.errors import brief, shown
from distir.limits import MOST_NAME_CHARACTERS

FEW_COMMANDS = 4
"""Commands that are named when an option of theirs is given to another."""

_NUMBER = re.compile(r"-\.?\d")
_REQUIRED = re.compile(r"the following arguments are required: (.*)")


class Parser(argparse.ArgumentParser):
    """A parser of options that are spelled out. A mistake is told in one line, with what was
    probably meant; of what is long it repeats the ends."""

    def __init__(self, *arguments: Any, **options: Any):
        # `--device` is no beginning of `--devices`: a new option must not change old commands.
        super().__init__(*arguments, **{"allow_abbrev": False, **options})
        self._given: list[str] = []
        self._siblings: Mapping[str, Parser] = {}
        """The parsers of all commands, where this is that of one."""

    def parse_known_args(  # type: ignore[override]  # argparse has overloads for the namespace
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses; a name that is no option's ends it before anything that is missing does."""
        self._given = list(sys.argv[1:] if args is None else args)
        for word in self._own_words():
            self._check_option(word)
        found, left = super().parse_known_args(self._given, namespace)
        if left and self._subparsers is None:
            self.error(self._said_stray(left[0], hasattr(found, "model")))
        return found, left

    def error(self, message: str) -> NoReturn:
        """Ends the program with status 2 after one line."""
        self.exit(2, f"{self.prog}: error: {self.said(message)} ({self._hint()})\n")

    def said(self, message: str) -> str:
        """A mistake in words for users, given what argparse says of it."""
        missing = _REQUIRED.fullmatch(message)
        return brief(message if missing is None else self._said_missing(missing[1]))

    def complete_by(self, completers: Mapping[str, Any]) -> None:
        """Has values of options, and of subcommands' options, completed; by names of attributes."""
        for action in self._actions:
            if action.dest in completers:
                setattr(action, "completer", completers[action.dest])  # noqa: B010  argcomplete's
        for parser in self._commands.values():
            parser.complete_by(completers)

    def introduce_commands(self) -> None:
        """Tells the parsers of commands of each other, so that each knows whose an option is that
        it lacks."""
        commands = self._commands
        for parser in commands.values():
            parser.is_beside(commands)

    def is_beside(self, commands: Mapping[str, Parser]) -> None:
        """Learns of the parsers of all commands."""
        self._siblings = commands

    def has_option(self, name: str) -> bool:
        """Whether an option is called so."""
        return name in self._option_string_actions

    @property
    def _commands(self) -> Mapping[str, Parser]:
        """The parsers of subcommands by their names."""
        every = [action.choices for action in self._actions if action.dest == "command"]
        return cast("Mapping[str, Parser]", every[0] if every else {})

    def _hint(self) -> str:
        usage = (self.usage or f"{self.prog} COMMAND [OPTION …]").partition("   ")[0]
        return f"usage: {usage}; {self.prog} --help says more"

    def _own_words(self) -> list[str]:
        """The words that are this parser's: before a command, if it has commands, and before what
        are no options for sure."""
        words = self._given
        if self._subparsers is not None:
            first = (place for place, word in enumerate(words) if not word.startswith("-"))
            words = words[: next(first, len(words))]
        return words[: words.index("--")] if "--" in words else words

    def _check_option(self, word: str) -> None:
        """Ends the program if a word looks like an option and is none."""
        name = word.partition("=")[0]
        is_option = len(word) > 1 and word.startswith("-") and " " not in word
        if not is_option or _NUMBER.match(word) or name in self._option_string_actions:
            return
        if not name.startswith("--") and name[:2] in self._option_string_actions:
            return  # a short option with its value
        self.error(f"unknown option {_quoted(name)}{self._whose(name)}")

    def _whose(self, name: str) -> str:
        """`; it is an option of grid`, if other commands have it, or what was meant."""
        others = [command for command, each in self._siblings.items() if each.has_option(name)]
        if not others:
            return meant(name, self._option_string_actions)
        few = ", ".join(others[:FEW_COMMANDS])
        more = ", and others" if len(others) > FEW_COMMANDS else ""
        return f"; it is an option of {few}{more}"

    def _said_missing(self, missing: str) -> str:
        stray = self._stray_words()
        if stray and "--model" in missing.split(", "):
            return self._said_stray(stray[0], has_model=False)
        return f"{missing} {'are' if ',' in missing else 'is'} missing"

    def _said_stray(self, word: str, has_model: bool) -> str:
        """What to say of a word that is neither an option nor its value."""
        forgotten = "--model" in self._option_string_actions and not has_model
        guess = f"; did you mean --model {_quoted(word)}?" if forgotten else ""
        return f"unexpected {_quoted(word)}{guess}"

    def _stray_words(self) -> list[str]:
        """Words that are neither options nor their values."""
        stray: list[str] = []
        expects_value = False
        for word in self._own_words():
            if expects_value:
                expects_value = False
            elif word.startswith("-"):
                action = self._option_string_actions.get(word)
                expects_value = action is not None and action.nargs != 0
            else:
                stray.append(word)
        return stray

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        if action.dest == "command":
            raise argparse.ArgumentError(
                None, f"unknown command {_quoted(str(value))}{meant(str(value), choices)}"
            )
        near = meant(str(value), choices) or f"; expected {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"{shown(value)} is not known{near}")


def meant(name: str, known: Iterable[str]) -> str:
    """`; did you mean --model?`, or nothing if no name is near."""
    near = get_close_matches(name[:MOST_NAME_CHARACTERS], list(known), n=3, cutoff=0.6)
    swapped = [each for each in near if sorted(each) == sorted(name)]
    near = swapped or near
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _quoted(word: str) -> str:
    """A word as it was typed, or with quotation marks where it would not be read as one."""
    return word if re.fullmatch(r"[\w./:=+-]{1,80}", word) else shown(word)


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help with defaults, each once and only where one says something, and with names and
    explanations side by side."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=32)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        told = action.help or ""
        if action.default in (None, False) or "(default" in told:
            return told
        return (
            f"{told} (default: on)" if action.default is True else super()._get_help_string(action)
        )
