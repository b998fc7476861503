"""How many measurements it takes to find the best of the strategies that were measured.

    python -m experiments.measured_search ../shared/measurements/measurements.csv --json -

Rows with equal source, cluster, devices, batch, model and sequence are a group. In every group
with at least four measured strategies each sampler measures one strategy after the other, until one
is within 1 % of the group's best. The simulator's expectations are made twice: with the software
that the runs were measured with, and with one that is wrong on purpose (`--wrong-stack`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune.cli.options import positive
from autotune.cli.parser import Parser
from autotune.objectives import Evaluation, Objective
from autotune.questions.compare import CLOSE
from autotune.samplers import Sampler, load_sampler
from autotune.samplers.guided import GuidedSampler
from autotune.study.study import Stop, Stopped, Study
from distir.cost import load_stack
from distir.errors import DistirError
from distir.files import check_writable, write_text
from distir.strategy import Strategy
from distir.units import counted
from experiments.command import exit_status, note
from experiments.measured_search.groups import Group, read_groups
from search_spaces import listed_space

WRONG_STACK = "ideal"
"""Datasheet rates without overheads: wrong about every run, and about some strategies more than
about others."""

Make = Callable[[Group, int], Sampler]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table, or writes it as JSON; returns 1 if there are no groups."""
    parser = Parser(
        prog="experiments.measured_search",
        usage="experiments.measured_search FILE.csv [OPTION …]",
        description=__doc__,
    )
    parser.add_argument("file", type=Path, help="the measurements")
    parser.add_argument(
        "--seeds", type=positive, default=5, help="of samplers that draw (default 5)"
    )
    parser.add_argument("--wrong-stack", default=WRONG_STACK, help=f"(default {WRONG_STACK})")
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE, or to stdout for -")
    options = parser.parse_args(argv)
    if options.json and options.json != "-":
        check_writable(options.json)
    load_stack(options.wrong_stack)  # which raises what there is to say
    right = read_groups(options.file, None, note)
    wrong = read_groups(options.file, options.wrong_stack) if right else []
    found: dict[str, Any] = {
        **_counts(right, UNINFORMED, options.seeds),
        **_counts(right, EXPECTING, 1),
        "wrong_stack": {"stack": options.wrong_stack, **_counts(wrong, EXPECTING, 1)},
    }
    if options.json:
        text = json.dumps(found, indent=2)
        print(text) if options.json == "-" else write_text(options.json, text + "\n")
    else:
        _print(found)
    return 0 if right else 1


@dataclass(frozen=True, slots=True)
class _InOrder:
    """Proposes the strategies of a group in the order of their expected times, those first that are
    expected to fit."""

    strategies: list[Strategy]

    @classmethod
    def of(cls, group: Group, _seed: int) -> _InOrder:
        expected = group.expected
        order = np.lexsort((expected.log_cost, expected.log_fill > 0))
        return cls([expected.table[int(place)] for place in order])

    def ask(self) -> Strategy | None:
        return self.strategies.pop(0) if self.strategies else None

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """Learns nothing."""


def _guided(group: Group, _seed: int) -> Sampler:
    return GuidedSampler(group.expected, group.batch_size)


def _named(name: str) -> Make:
    return lambda group, seed: load_sampler(name, listed_space(list(group.seconds)), seed)


UNINFORMED: dict[str, Make] = {"random": _named("random"), "tpe": _named("tpe")}
EXPECTING: dict[str, Make] = {"simulator_order": _InOrder.of, "guided": _guided}
"""Samplers by what they start from."""


def _counts(groups: Sequence[Group], samplers: Mapping[str, Make], seeds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, make in samplers.items():
        counts = [until_close(group, make, seed) for group in groups for seed in range(seeds)]
        found[name] = {
            "mean_to_1_percent": float(np.mean(counts)) if counts else None,
            "p90_to_1_percent": float(np.percentile(counts, 90)) if counts else None,
            "groups": len(groups),
        }
    return found


def until_close(group: Group, make: Make, seed: int) -> int:
    """Measurements until one is within 1 % of the group's best. It ends the search: what samplers
    would try after it counts for nothing, and in large groups takes most of the time."""
    objective = Objective("measured", _measuring(group), "seconds", "minimize")
    space = listed_space(list(group.seconds))
    stops = (_close_to(group.best),)
    study = Study(space, objective, make(group, seed), objective.measure, seed, stops=stops)
    study.run(space.count())
    if study.interrupted:
        raise KeyboardInterrupt
    if study.error is not None:
        raise DistirError(study.error)
    return len(study.trials)


def _close_to(best: float) -> Stop:
    def reached(study: Study) -> Stopped | None:
        cost = study.trials[-1].cost if study.trials and study.trials[-1].feasible else None
        is_close = cost is not None and cost <= best * (1 + CLOSE)
        return Stopped("close", "one within 1 % of the best is found") if is_close else None

    return reached


def _measuring(group: Group) -> Callable[[Strategy], Evaluation]:
    def measure(strategy: Strategy) -> Evaluation:
        seconds = group.seconds[strategy]
        if seconds is None:
            return Evaluation({}, feasible=False, reason="out of memory", violation=1.0)
        return Evaluation({"seconds": seconds})

    return measure


def _print(found: Mapping[str, Any]) -> None:
    wrong = found["wrong_stack"]
    tables = [
        ("with the software that was measured", found),
        (f"with the stack {wrong['stack']}", wrong),
    ]
    for title, table in tables:
        count = table["simulator_order"]["groups"]
        print(f"measurements until within 1 % of the best, {title}; {counted(count, 'group')}")
        for name, each in table.items():
            if count and name not in ("stack", "wrong_stack"):
                mean, tail = each["mean_to_1_percent"], each["p90_to_1_percent"]
                print(f"  {name:16} mean {mean:5.2f}   p90 {tail:3.0f}")


if __name__ == "__main__":
    sys.exit(exit_status(main))
