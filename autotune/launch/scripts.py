"""Shell scripts that start a launch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from autotune.launch.facts import Launch

Words = Sequence[Sequence[str]]
"""A command as lines of words: what belongs together is one line."""


def quoted(word: str) -> str:
    """A word as a shell reads it; a word that is a variable stays one."""
    return f'"{word}"' if word.startswith("${") else shlex.quote(word)


def one_line(command: Words, environment: Mapping[str, str]) -> str:
    """A command in one line, after the variables that it needs."""
    words = [quoted(word) for line in command for word in line]
    return " ".join([*(f"{name}={text}" for name, text in environment.items()), *words])


def script(title: str, command: Words, environment: Mapping[str, str], last: Words = ()) -> str:
    """A shell script that runs the command, with further arguments of its own before the `last`
    words."""
    lines, ends = ([" ".join(map(quoted, line)) for line in each] for each in (command, last))
    body = " \\\n    ".join([*lines, '"$@"', *ends])
    exports = [f"export {name}={text}" for name, text in environment.items()]
    head = ["#!/usr/bin/env bash", *(f"# {line}" for line in title.splitlines())]
    return "\n".join([*head, "set -euo pipefail", *exports, body]) + "\n"


def header(launch: Launch, label: str) -> str:
    """The comment at the head of a script."""
    nodes, per_node = launch.nodes
    said = f"{launch.title}\n{launch.strategy.label}, written for {label}"
    if nodes == 1:
        return said
    each = f"{nodes} nodes of {per_node} devices"
    return f"{said}\nOn each of {each}, with NODE_RANK and MASTER_ADDR set"


def torchrun(launch: Launch, *program: str) -> list[list[str]]:
    """`torchrun` on the nodes of the cluster, and what it runs."""
    nodes, per_node = launch.nodes
    return [
        ["torchrun"],
        ["--nnodes", str(nodes), "--nproc-per-node", str(per_node)],
        ["--node-rank", "${NODE_RANK:-0}"],
        ["--master-addr", "${MASTER_ADDR:-localhost}", "--master-port", "${MASTER_PORT:-29500}"],
        list(program),
    ]


def option_lines(options: Mapping[str, object]) -> list[list[str]]:
    """Options of a command line: a flag alone, others with their values."""
    lines: list[list[str]] = []
    for name, given in options.items():
        if given is True:
            lines.append([name])
        elif isinstance(given, (list, tuple)):
            lines.append([name, *map(str, given)])  # type: ignore[arg-type]
        else:
            lines.append([name, str(given)])
    return lines
