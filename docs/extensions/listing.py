"""The directive `listing SUBCOMMAND`: what a subcommand such as `models` lists, as a table."""

from __future__ import annotations

import contextlib
import io
import json

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from autotune.cli import main


class Listing(SphinxDirective):
    """A table of names and summaries, from the JSON of the subcommand that is its argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # the page depends on code
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            main([self.arguments[0], "--json", "-"])
        lines = ["| name | what it is |", "| --- | --- |"]
        for entry in json.loads(printed.getvalue()):
            lines.append(f"| `{entry['name']}` | {entry['summary'].replace('|', chr(92) + '|')} |")
        container = nodes.Element()
        self.state.nested_parse(StringList(lines, source=__file__), 0, container)
        return container.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive("listing", Listing)
    return {"parallel_read_safe": True}
