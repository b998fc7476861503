"""The directive `command-line`: help of every subcommand, from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from autotune.cli import make_parser


class CommandLine(SphinxDirective):
    """A section per subcommand: what it does, how it is called, and its options by group."""

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # the page depends on code
        parser = make_parser()
        lines = [line for name, sub in subcommands(parser) for line in _section(name, sub)]
        container = nodes.Element()
        self.state.nested_parse(StringList(lines, source=__file__), 0, container, match_titles=True)
        return container.children


def subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Names and parsers of the subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _section(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """The Markdown of one subcommand."""
    usage = (parser.usage or "").split("   ")[0]
    yield from (f"## autotune {name}", "", f"{parser.description}", "", "```text", usage, "```", "")
    yield from (f"```{{program}} autotune {name}", "```", "")
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        actions = [
            each
            for each in group._group_actions
            if each.help != argparse.SUPPRESS and each.dest != "help"
        ]
        if not actions:
            continue
        yield from (f"### {name}: {group.title}", "")
        for action in actions:
            text = formatter._expand_help(action) if action.help else ""
            yield from (f"::::{{option}} {_signature(action)}", text, "::::", "")


def _signature(action: argparse.Action) -> str:
    """An option as it is typed, such as `--dp N`, or the name of an argument without dashes."""
    value = ""
    if action.nargs != 0:
        choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
        value = str(action.metavar or choices or action.dest.upper())
    if not action.option_strings:
        return value
    return ", ".join(f"{option} {value}".strip() for option in action.option_strings)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
