"""Certified search beside the grid, over problems drawn by a seed.

    python -m experiments.certified                        # 50 full spaces timed, 100 compared
    python -m experiments.certified --timed 10 --compared 0 --json -
    python -m experiments.certified --share 2/4            # every fourth, from the second on
    python -m experiments.certified --problems mine.yaml   # as `experiments.samplers` reads them

Two questions. *Timed* problems have full spaces: is certified search ever slower than the grid?
*Compared* problems have spaces that are evaluated as a whole: is the best the same? Both searches
begin from nothing, each in a process of its own, and seconds are those of the processor without
those of reading the model. A grid that takes longer than `--grid-seconds` ends with the chunk at
hand, and its seconds are estimated from the chunks that were evaluated, which are spread over the
space. Results are kept in `--cache` as long as the software is the same, so that a run that was
interrupted goes on, and so that shares of the problems come together.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, TypeVar

import autotune
from autotune.exhaustive.certified import certify
from autotune.exhaustive.chunks import evaluated_chunk, stretches
from autotune.exhaustive.collect import Collector
from autotune.objectives.costs import EQUAL
from distir.files import write_text
from experiments.certified.problems import (
    MOST_COMPARED,
    compared_questions,
    space_size,
    timed_questions,
)
from experiments.command import exit_status, note
from experiments.samplers.problems import Question, read_questions
from experiments.samplers.truth import SIMULATOR, key_of
from experiments.speed.grids import spread_out
from search_spaces.columns import SpaceColumns

CACHE = Path("build/certified")
TIMED, COMPARED, SEED = 50, 100, 20261124
"""How many problems are drawn, and by which seed."""
GRID_SECONDS = 20.0
"""CPU seconds after which no further chunk of a timed space is evaluated."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Beside:
    """A problem searched in both ways."""

    problem: str
    strategies: int
    certified_seconds: float
    """CPU seconds."""
    certified_cost: float | None
    """What the best costs, None where nothing fits."""
    certified_evaluated: int
    grid_seconds: float
    """CPU seconds, estimated where not all was evaluated."""
    grid_cost: float | None
    """What the best of those evaluated costs."""
    grid_evaluated: int

    @property
    def ratio(self) -> float:
        """How many times as long the grid takes."""
        return self.grid_seconds / self.certified_seconds

    @property
    def agrees(self) -> bool:
        """Whether certified search found the grid's best. Where only a part was evaluated, whether
        nothing in it is better."""
        mine, other = self.certified_cost, self.grid_cost
        if mine is None or other is None:
            return other is None and (mine is None or self.grid_evaluated < self.strategies)
        if self.grid_evaluated < self.strategies and mine < other:
            return True
        return abs(mine - other) <= EQUAL * abs(other)

    def row(self) -> str:
        """A line for people."""
        about = "" if self.grid_evaluated == self.strategies else "~"
        grid = f"{about}{self.grid_seconds:,.2f}"
        return (
            f"{self.strategies:12,}{self.certified_seconds:10.2f}{grid:>12}{self.ratio:8.2f}"
            f"{'' if self.agrees else '  DIFFERS':9}  {self.problem}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line per problem and what they come to; 1 if certified search was slower or found
    something else."""
    options = _parsed(argv)
    part, parts = (int(each) for each in options.share.split("/"))
    found: dict[str, list[Beside]] = {}
    for sort, questions in _questions(options).items():
        seconds = options.grid_seconds if sort == "timed" else float("inf")
        own = questions[part - 1 :: parts]
        note(f"{sort}:  strategies  certified s      grid s   ratio")
        found[sort] = [_noted(_known(each, seconds, options.cache)) for each in own]
    summary = {sort: summary_of(each) for sort, each in found.items() if each}
    if options.json:
        rows = {
            sort: [{**asdict(each), "ratio": each.ratio, "agrees": each.agrees} for each in own]
            for sort, own in found.items()
        }
        text = json.dumps({"summary": summary, **rows}, indent=2)
        print(text) if options.json == "-" else write_text(options.json, text + "\n")
    for sort, said in summary.items() if options.json != "-" else ():
        print(
            f"{sort}: {said['problems']} problems, certified search no slower on "
            f"{said['no_slower']} (the grid takes {said['least_ratio']:.2f} times as long at "
            f"least, {said['median_ratio']:.1f} in the median), the same best on {said['agree']}"
        )
    agree = all(each["agree"] == each["problems"] for each in summary.values())
    timed = summary.get("timed")
    return 0 if agree and (not timed or timed["no_slower"] == timed["problems"]) else 1


def _questions(options: argparse.Namespace) -> dict[str, list[Question]]:
    """The problems, by what is asked of them."""
    if options.problems is not None:
        return {"compared": read_questions(options.problems)}

    def size_of(question: Question) -> int:
        return int(_kept(options.cache, lambda: space_size(question), question, "size"))

    return {
        "timed": timed_questions(options.timed, options.seed, size_of),
        "compared": compared_questions(options.compared, options.seed, size_of, options.most),
    }


def summary_of(found: Sequence[Beside]) -> dict[str, Any]:
    """What problems come to."""
    ratios = [each.ratio for each in found]
    return {
        "problems": len(found),
        "no_slower": sum(ratio >= 1 for ratio in ratios),
        "least_ratio": min(ratios),
        "median_ratio": median(ratios),
        "agree": sum(each.agrees for each in found),
        "grids_in_full": sum(each.grid_evaluated == each.strategies for each in found),
    }


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="experiments.certified", description=__doc__)
    parser.add_argument("--timed", type=int, default=TIMED, help=f"full spaces ({TIMED})")
    parser.add_argument("--compared", type=int, default=COMPARED, help=f"others ({COMPARED})")
    parser.add_argument(
        "--problems", type=Path, metavar="FILE.yaml", help="compare these, in place of drawn ones"
    )
    parser.add_argument(
        "--most", type=int, default=MOST_COMPARED, help=f"strategies to compare ({MOST_COMPARED:,})"
    )
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--share", default="1/1", metavar="I/N", help="every N-th from the I-th on")
    parser.add_argument("--grid-seconds", type=float, default=GRID_SECONDS, metavar="S")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"({CACHE})")
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE, or to stdout for -")
    return parser.parse_args(argv)


def _noted(found: Beside) -> Beside:
    note(found.row())
    return found


# --- one problem ----------------------------------------------------------------------------------


def _known(question: Question, grid_seconds: float, folder: Path) -> Beside:
    """A problem searched in both ways, from the folder if it is there."""
    made = partial(_searched, question, grid_seconds)
    return Beside(**_kept(folder, made, question, grid_seconds))


def _searched(question: Question, grid_seconds: float) -> dict[str, Any]:
    return asdict(beside(question, grid_seconds))


def _kept(folder: Path, make: Callable[[], Any], question: Question, *others: object) -> Any:
    """What a function returns, from the folder if it is there; the file's name changes with the
    software."""
    file = folder / f"{key_of(question, (*SIMULATOR, autotune), *others)}.json"
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(found := make()))
    return found


def beside(question: Question, grid_seconds: float = float("inf")) -> Beside:
    """Both searches of a problem, each in a process of its own."""
    certified = _apart(_certified, question, grid_seconds)
    return Beside(question.name, **certified, **_apart(_grid, question, grid_seconds))


def _apart(search: Callable[..., dict[str, Any]], *given: object) -> dict[str, Any]:
    """What a function returns in a process that ends with it, as no memory of others helps it."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(search, given)


def _certified(question: Question, _: float) -> dict[str, Any]:
    problem = question.problem()
    objective, count = question.goal.over(problem), problem.space.count()
    begun = process_time()
    found = certify(problem, objective)
    return {
        "strategies": count,
        "certified_seconds": process_time() - begun,
        "certified_cost": None if found.best is None else found.best.cost,
        "certified_evaluated": found.evaluated,
    }


def _grid(question: Question, most_seconds: float) -> dict[str, Any]:
    problem = question.problem()
    objective, count = question.goal.over(problem), problem.space.count()
    begun = process_time()
    found = Collector(objective, 1)
    table = SpaceColumns(problem.space)
    for stretch in spread_out(list(stretches(table.borders))):
        found.add(evaluated_chunk(objective, *table.taken(*stretch)))
        seconds = process_time() - begun
        if seconds > most_seconds:
            break
    seconds = process_time() - begun
    return {
        "grid_seconds": seconds * count / found.evaluated,
        "grid_cost": None if found.best is None else found.best.cost,
        "grid_evaluated": found.evaluated,
    }


if __name__ == "__main__":
    sys.exit(exit_status(main))
